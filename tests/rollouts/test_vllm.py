"""Both vLLM engines against the policy itself: their requests, samples and weights.

vLLM does not run without a GPU; tests/vllm_doubles.py stands in for it at its own interfaces.
"""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from querylect.configs.schema import RunConfig
from querylect.errors import ConfigError, EngineUnavailableError
from querylect.rollouts.engines import vllm_server
from querylect.rollouts.engines.base import Sampling
from querylect.rollouts.engines.transformers import TransformersEngine
from querylect.rollouts.policy import add_lora, load_policy
from querylect.rollouts.weights import weights_in_files

from ..lessons import change
from ..raising import refused
from ..tree_samplers import engine_around
from ..vllm_doubles import serving

pytestmark = pytest.mark.model

PROMPTS = [[5, 6, 7, 8], [9, 10], [5, 6, 7, 11, 12]]
HOT = Sampling(temperature=0.8, top_p=0.9, max_new_tokens=5)


@pytest.fixture
def config(tiny_policy) -> RunConfig:
    return RunConfig.model_validate(
        {
            "policy": {"model": str(tiny_policy), "dtype": "float32", "lora": {"r": 4, "alpha": 8}},
            "rollout": {"max_new_tokens": 8, "max_prompt_tokens": 64},
        }
    )


def trained(config, seed=0):
    """A policy whose adapters are not zero, and its tokenizer."""
    model, tokenizer = load_policy(config.policy)
    policy = add_lora(model, config.policy)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight.data.normal_(0, 0.2)
    return policy, tokenizer


KINDS = ("vllm", "nccl", "files")
"""Each way in which vLLM gets the weights."""


def settings_of(kind, url, folder):
    settings = {"rollout.engine": "vllm" if kind == "vllm" else "vllm_server", "rollout.server.base_url": url}
    return settings | ({"rollout.server.weights_folder": str(folder)} if kind == "files" else {})


@pytest.fixture
def started(config, vllm, run_app, monkeypatch, tiny_policy, tmp_path):
    """`with started(kind, **info) as (config, server)`: settings for a server that was started with `info`."""

    @contextmanager
    def start(kind="nccl", folder=tmp_path / "weights", **info):
        with serving(run_app, monkeypatch, tiny_policy, **info) as (url, server):
            yield change(config, **settings_of(kind, url, folder)), server

    return start


@pytest.fixture(params=["vllm", "files"])
def opened(request, config, started):
    """(engine, policy under training, tokenizer, config) of a kind, refreshed."""
    policy, tokenizer = trained(config)
    with started(request.param) as (config, _):
        engine, weights = engine_around(config, policy, tokenizer)
        weights.refresh()
        yield engine, policy, tokenizer, config


@pytest.mark.parametrize("opened", KINDS, indirect=True)
def test_trained_weights_arrive_merged_and_under_the_names_of_the_checkpoint(opened, tiny_policy, vllm):
    from safetensors import safe_open

    engine, policy, _, config = opened
    one_token = Sampling(temperature=0.0, max_new_tokens=1)
    untrained = engine.generate(PROMPTS, 1, one_token)
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight.mul_(-2)
    assert engine.generate(PROMPTS, 1, one_token) == untrained, "not before it is told"
    trainable = {name: weight.clone() for name, weight in policy.named_parameters()}
    engine.refresh()
    now = engine.generate(PROMPTS, 1, one_token)
    expected = TransformersEngine(policy, engine.tokenizer).generate(PROMPTS, 1, one_token)
    for (updated,), (reference,), (old,) in zip(now, expected, untrained, strict=True):
        assert updated.logprobs == pytest.approx(reference.logprobs, abs=1e-4)
        assert updated.logprobs != pytest.approx(old.logprobs, abs=1e-3)
    assert all(torch.equal(weight, trainable[name]) for name, weight in policy.named_parameters())
    if config.rollout.engine == "vllm":
        with safe_open(tiny_policy / "model.safetensors", "pt") as saved:
            assert sorted(vllm[0].answers.loaded[-1]) == sorted(saved.keys())


def test_an_engine_in_the_process_is_asked_for_n_samples_of_ids_with_prefix_caching(config, vllm):
    import os

    policy, tokenizer = trained(config)
    config = change(config, **{"rollout.engine": "vllm", "rollout.vllm.gpu_memory_utilization": 0.45, "seed": 7})
    engine, weights = engine_around(config, policy, tokenizer)
    weights.refresh()
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0", "weights cannot be handed to another process"
    (llm,) = vllm
    assert llm.settings == {
        "dtype": "float32", "seed": 7, "gpu_memory_utilization": 0.45, "max_model_len": 72,
        "enable_sleep_mode": False,
        "enable_prefix_caching": True, "logprobs_mode": "processed_logprobs",
    } | ({} if torch.cuda.is_available() else {"enable_chunked_prefill": False, "enforce_eager": True})  # fmt: skip
    assert llm.events == ["load", "reset"], "what was computed with other weights is forgotten"
    engine.generate(PROMPTS, 4, replace(HOT, streams=(7, -1, 2**62)))
    assert [prompt for prompt, _ in llm.requests] == [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    sampling_params = [params for _, params in llm.requests]
    assert {(p.n, p.max_tokens, p.temperature, p.top_p) for p in sampling_params} == {(4, 5, 0.8, 0.9)}
    assert {tuple(p.stop_token_ids) for p in sampling_params} == {(tokenizer.eos_token_id,)}
    assert [p.seed for p in sampling_params] == [7, 2**62 - 1, 0], "by the random streams of the prompts"


def test_a_sleeping_engine_gives_its_memory_back_and_gets_its_weights_anew(config, vllm):
    policy, tokenizer = trained(config)
    config = change(config, **{"rollout.engine": "vllm", "rollout.vllm.enable_sleep_mode": True})
    engine, weights = engine_around(config, policy, tokenizer)
    weights.refresh()
    samples = engine.generate(PROMPTS, 2, HOT)
    weights.sleep()
    weights.sleep()
    assert engine.generate(PROMPTS, 2, HOT) == samples, "asked while it sleeps, it wakes up with the policy's weights"
    weights.sleep()
    weights.refresh()
    woken = ["wake weights", "load", "wake kv_cache", "reset"]
    assert vllm[0].events == ["load", "reset", "sleep", *woken, "sleep", *woken]


def test_every_prompt_is_one_request_to_the_server_with_a_seed_of_its_own(config, started, monkeypatch):
    policy, tokenizer = trained(config)
    with started() as (config, server):
        engine, weights = engine_around(config, policy, tokenizer)
        monkeypatch.setattr(vllm_server, "meet", lambda: server.events.append("all processes"))
        weights.refresh()
        updated = ["start", "update", "finish", "reset"]
        assert server.events == ["init", "all processes", *updated, "all processes"], "no process samples meanwhile"
        engine.generate([*PROMPTS, PROMPTS[0]], 4, HOT)
        assert sorted(body["prompt"] for body in server.requests) == sorted([p] for p in [*PROMPTS, PROMPTS[0]])
        assert {(body["n"], body["logprobs"], tuple(body["stop_token_ids"])) for body in server.requests} == {
            (4, 0, (tokenizer.eos_token_id,))
        }
        assert len({body["seed"] for body in server.requests}) == 4
        weights.refresh()
        assert len(server.answers.loaded) == 2
        assert server.wire.empty()


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_server_reloads_weights_from_files_which_are_then_removed(device, started, monkeypatch, tmp_path):
    folder = tmp_path / "new" / "weights"
    on_cpu = {
        "device_config": {"device": "cpu"},
        "parallel_config": {"worker_extension_cls": "querylect.rollouts.engines.vllm.WorkerExtension"},
    }
    monkeypatch.setattr(vllm_server, "transfer_device", lambda: pytest.fail("no GPU is needed"))
    with started("files", folder, **(on_cpu if device == "cpu" else {})) as (config, server):
        _, weights = engine_around(config, *trained(config))
        weights.refresh()
        head = ["renew_output_heads"] if device == "cpu" else []
        assert server.events == ["reload_weights", *head, "reset"]
        assert list(folder.iterdir()) == []
        server.down = True
        url = config.rollout.server.base_url
        with refused(EngineUnavailableError, url, "reload_weights", "500", "Cannot find any model weights"):
            weights.refresh()
        assert list(folder.iterdir()) == []


def test_weights_are_written_in_files_of_bounded_size(tmp_path):
    """A weight may be whole only until the next one is asked for."""
    from safetensors.torch import load_file

    buffer = torch.empty(4)
    with weights_in_files(((str(number), buffer.fill_(number)) for number in range(5)), tmp_path, 32) as folder:
        files = [load_file(file) for file in sorted(folder.glob("*.safetensors"))]
    assert [list(file) for file in files] == [["0", "1"], ["2", "3"], ["4"]]
    assert [float(weight[0]) for file in files for weight in file.values()] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("info", "facts"),
    [
        (
            {"device_config": {"device": "cpu"}},
            ["--worker-extension-cls is not set", "querylect.rollouts.engines.vllm.WorkerExtension"],
        ),
        ({"model_config": {"logprobs_mode": "raw_logprobs"}}, ["--logprobs-mode is raw_logprobs"]),
    ],
)
def test_a_server_that_was_started_in_another_way_is_refused(started, info, facts):
    with (
        started("files", **info) as (config, _),
        refused(ConfigError, config.rollout.server.base_url, *facts),
    ):
        engine_around(config, *trained(config))


def test_a_server_that_is_not_there_or_dies_is_named(config, started, monkeypatch):
    unreachable = settings_of("nccl", "http://127.0.0.1:9", None)
    monkeypatch.setattr("querylect.rollouts.engines.vllm_server.START_SECONDS", 0)
    with refused(EngineUnavailableError, "http://127.0.0.1:9 "):
        engine_around(change(config, **unreachable), *trained(config))
    with started() as (config, server):
        engine, _ = engine_around(config, *trained(config))
        server.down = True
        with refused(EngineUnavailableError, config.rollout.server.base_url, "the engine is dead", "--resume"):
            engine.generate(PROMPTS, 1, HOT)
