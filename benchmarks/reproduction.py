"""The paper's comparisons on the reverse dictionary of `demo`, three seeds each: trains, tests and judges.

    python benchmarks/reproduction.py run [--only a b c] [--seeds 0 1 2] [--steps 60] [--minutes 600] [KEY=VALUE …]
    python benchmarks/reproduction.py table [--only a b c] [--page docs/reproduction.md]

(a) turn, trajectory: 4×4 trees with credit per turn against 16×1 with credit per trajectory, at equal numbers of
    sampled tokens: 16×1 is trained for --steps, 4×4 until it has sampled as many tokens as 16×1 of the same seed;
(b) bm25, minilm: trained with BM25 and with all-MiniLM-L6-v2, each policy tested on both retrievers, their rewrites
    compared by RE-MMD at every checkpoint;
(c) general, explore, direct: three levels of guidance, as few-shot prompts (benchmarks/prompts).

`run` does what is missing, seed after seed: a run that was stopped is resumed from its last checkpoint, a finished
evaluation is not repeated. It takes many hours; give it again after an interruption, or with --minutes, as often as it
takes. It ends with exit code 0 where nothing is missing and 75 where it was stopped. More steps may be asked for later.
Parts may run side by side, one process each (--only).
`table` measures nothing; with --page it writes the tables of these parts into the page and their drawings beside it.
Everything lies in --folder, with a log (reproduction.log). `--tiny` does two steps on a few questions: it shows that
every part works and says nothing about the paper.
"""

import argparse
import fcntl
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import floor
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Any

from greedy import greedy_trees
from machine import describe
from querylect.configs.schema import RunConfig
from querylect.data.types import Question
from querylect.envs.builder.build import build_index
from querylect.envs.client.child_process import local_service
from querylect.envs.client.connect import open_environment
from querylect.envs.client.discovery import VARIABLE, register_service
from querylect.errors import ConfigError, QuerylectError, StoppedError
from querylect.eval.answering import run_raw
from querylect.eval.leakage import held_out_questions
from querylect.eval.records import TRAINED, UNTRAINED, records_of_trees, write_records
from querylect.logs import set_up_logging
from querylect.train.run import train
from reproduction_arms import ARMS, Arm, Options, write_tiny_data
from reproduction_drift import measure_drift
from reproduction_results import Results, is_complete, last_step, sampled_tokens
from reproduction_tables import draw, render, write_page

log = logging.getLogger("querylect.reproduction")


class _Stopped(BaseException):
    """SIGTERM or SIGHUP, from outside or by --minutes, while nothing trains."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, or print what is there; returns the exit code."""
    args = _parse(arguments)
    options = Options(
        folder=args.folder or Path("runs/reproduction-tiny" if args.tiny else "runs/reproduction"),
        seeds=tuple(args.seeds),
        parts=tuple(args.only),
        steps=args.steps,
        questions=args.questions,
        tiny=args.tiny,
        changes=args.changes,
    )
    set_up_logging()
    if args.what == "table":
        results = Results(options)
        for part in options.parts:
            curves = args.page and args.page.with_name(f"{args.page.stem}-{part}.svg")
            text = render(results, part, curves and curves.name)
            print(text, end="\n\n")
            if curves:
                draw(results, part, curves)
                write_page(args.page, part, text)
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    with _alone(options.folder, options.parts), _logged(options.folder / "reproduction.log"):
        log.info("%s; parts %s, seeds %s", describe(), " ".join(options.parts), options.seeds)
        try:
            with _stoppable(args.minutes) as check, Services(options) as services:
                run(options, services, check)
        except (_Stopped, StoppedError) as stopped:
            log.warning("stopped (%s); the same command goes on from here", stopped or "out of time")
            return StoppedError.exit_code
        log.info("complete; see the tables: python benchmarks/reproduction.py table")
        return 0


def run(options: Options, services: "Services", check: Callable[[], None]) -> None:
    """Train, test and compare what is missing. Raises StoppedError where a signal ends it; `check` raises where one
    came that nothing has answered."""
    for seed in options.seeds:
        for arm in options.arms:
            check()
            train_arm(options, arm, seed, services)
            step = last_step(options.run_folder(arm, seed))
            for retriever in arm.tested_on:
                check()
                answer(options, arm, seed, step, retriever, services)
                answer(options, arm, seed, 0, retriever, services)
            if arm.part == "b":  # what it writes as it learns, searched with its own retriever
                for number in range(0, step + 1, options.save_steps):
                    check()
                    answer(options, arm, seed, number, arm.trained_on, services, split="validation")
    if "b" in options.parts:
        measure_drift(options)


def train_arm(options: Options, arm: Arm, seed: int, services: "Services") -> None:
    """Train a run to its number of steps, or of sampled tokens, unless it is there."""
    config, folder = options.config(arm, seed), options.run_folder(arm, seed)
    while True:
        steps = config.train.steps
        if arm.tokens_of is not None:
            budget = sum(sampled_tokens(options.run_folder(ARMS[arm.tokens_of], seed)))
            steps = next_steps(sampled_tokens(folder), budget, options.save_steps) or last_step(folder)
        if is_complete(folder, steps):
            return
        services.open(config)
        longer = config.model_copy(update={"train": config.train.model_copy(update={"steps": steps})})
        log.info("%s: training to step %d", folder.name, steps)
        train(longer, resume=(folder / "config.yaml").exists())


def next_steps(sampled: Sequence[int], budget: int, first: int) -> int | None:
    """Steps to train to next, so that a run samples `budget` tokens and less than a step more; None where it has.

    `sampled` are the tokens of the steps so far. The number is rounded down: the budget is approached from below.
    """
    missing = budget - sum(sampled)
    if missing <= 0:
        return None
    if not sampled:
        return first
    newest = sampled[-10:]
    return len(sampled) + max(1, floor(0.95 * missing * len(newest) / sum(newest)))


def answer(
    options: Options, arm: Arm, seed: int, step: int, retriever: str, services: "Services", split: str = "test"
) -> None:
    """Answer questions greedily with the policy of a step, unless that is done, and write the records of it and of the
    raw questions."""
    path = options.records(arm, seed, step, retriever, split)
    if path.exists():
        return
    config = options.config(arm, seed, retriever)
    eval_settings = {"split": split, "limit": options.questions if split == "test" else None}
    config = config.model_copy(update={"eval": config.eval.model_copy(update=eval_settings)})
    client = services.open(config)
    questions = services.questions(config)
    log.info("%s: %d questions", path.stem, len(questions))
    checkpoint = options.run_folder(arm, seed) / "checkpoints" / f"checkpoint-{step}" if step else None
    name = TRAINED if step else UNTRAINED
    answered = greedy_trees(config, client, checkpoint, questions)
    write_records(path, [*run_raw(client, questions), *records_of_trees(name, answered)])


class Services:
    """One service per retriever, started when it is first needed; training and tests use the same one, whose cache
    answers repeated searches."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._stack = ExitStack()
        self._clients: dict[str, Any] = {}
        self._questions: dict[tuple[str, str, int | None], list[Question]] = {}

    def __enter__(self) -> "Services":
        self._addresses = Path(self._stack.enter_context(TemporaryDirectory()))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def open(self, config: RunConfig) -> Any:
        """A client of the environment of a config, whose index is built where it is missing."""
        index = config.env.index
        if index not in self._clients:
            data = self.options.folder / "data"
            if self.options.tiny and not data.exists():
                write_tiny_data(data)
            if not Path(index).exists():
                log.info("building %s", index)
                build_index(config.env)
            service = self._stack.enter_context(local_service(config.env))
            address = self._addresses / f"{Path(index).name}.json"
            register_service(address, service.url, config.env, service.token or "")
            self._stack.enter_context(_variable(VARIABLE, str(self._addresses)))
            self._clients[index] = self._stack.enter_context(open_environment(config.env, config.client))
        return self._clients[index]

    def questions(self, config: RunConfig) -> list[Question]:
        """The held-out questions that `eval` of a config names."""
        key = (config.env.index, config.eval.split, config.eval.limit)
        if key not in self._questions:
            client = self.open(config)
            self._questions[key] = held_out_questions(client, client.environment(), config.eval).questions
        return self._questions[key]


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    previous = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if previous is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = previous


@contextmanager
def _alone(folder: Path, parts: Sequence[str]) -> Iterator[None]:
    """Hold the locks of these parts. Raises ConfigError where another process has one."""
    with ExitStack() as locks:
        for part in parts:
            file = locks.enter_context((folder / f"lock-{part}").open("w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ConfigError(
                    f"another process works on part {part} in {folder}; wait for it, choose other parts (--only), "
                    "or give another --folder."
                ) from None
        yield


@contextmanager
def _logged(path: Path) -> Iterator[None]:
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    logger = logging.getLogger("querylect")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


@contextmanager
def _stoppable(minutes: float | None) -> Iterator[Callable[[], None]]:
    """Turn SIGTERM and SIGHUP (where nohup does not ignore it) into an orderly end, and send SIGTERM to this process
    after so many minutes.

    While a run trains, training itself listens to the signal and saves a checkpoint. Python drops what a handler raises
    inside a destructor: the function that this gives raises once more.
    """
    came = False

    def stop(*_: object) -> None:
        nonlocal came
        came = True
        raise _Stopped

    def check() -> None:
        if came:
            raise _Stopped

    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, stop) for number in numbers}
    timer = Timer(60 * (minutes or 0), os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    try:
        if minutes is not None:
            timer.start()
        yield check
    finally:
        timer.cancel()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="settings to change in every run")
    parser.add_argument(
        "--only", nargs="+", choices=["a", "b", "c"], default=["a", "b", "c"], help="parts to run, or to print"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, help="optimizer steps of every arm but `turn` (60)")
    parser.add_argument("--questions", type=int, help="test questions, a seeded sample (all 1,500)")
    parser.add_argument("--minutes", type=float, help="stop, with a checkpoint, after so many")
    parser.add_argument("--tiny", action="store_true", help="two steps on a few questions")
    parser.add_argument("--folder", type=Path, help="where everything is kept (runs/reproduction)")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="with table: write the results into this page, a drawing beside it"
    )
    return parser.parse_intermixed_args(arguments)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except QuerylectError as error:
        sys.exit(f"{type(error).__name__}: {error}")
