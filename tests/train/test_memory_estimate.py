"""The memory estimate against the tensors that a real update holds, against sizes worked out by hand, and what it says
of the packaged configs."""

import pytest
import torch
from querylect.configs.load import known_configs, load_config
from querylect.configs.schema import RunConfig
from querylect.rollouts.policy import add_lora
from querylect.slurm.job_env import FOLDER, request_of
from querylect.train.memory import (
    CPU_RESERVED,
    GIB,
    ModelShape,
    ProcessLayout,
    estimate,
    from_config,
    longest_tree,
    resolve_gradient_checkpointing,
    shape_of,
    trained_parameters,
)
from querylect.train.processes import Processes

from ..tiny import tiny_model
from .rectangular import packed_logps
from .tensor_bytes import LiveBytes

pytestmark = [pytest.mark.model, pytest.mark.slow]

BAND = (0.8, 1.3)
"""Estimate over measurement."""
CPU = ProcessLayout(gpu_gib=None)
SIZES = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 64}  # fmt: skip


def config(**train):
    """A run whose longest tree has 678 tokens: 222 + 4·(18 + 24) + 16·18."""
    policy, checkpointing = train.pop("policy", {}), train.pop("gradient_checkpointing", False)
    return RunConfig.model_validate(
        {
            "policy": {"dtype": "float32", "lora": None, **policy},
            "rollout": {"branching": [4, 4], "max_prompt_tokens": 264, "max_new_tokens": 18, "documents": 3,
                        "document_tokens": 8, "engine": "vllm_server"},
            "train": {"gradient_checkpointing": checkpointing, **train},
        }
    )  # fmt: skip


def measured(run, model, mixed=False, steps=2):
    """The most bytes that the tensors of an update held: forward and backward pass of the longest tree, and AdamW."""
    tokens, sampled, _ = longest_tree(run.rollout, run.train)
    ids = iter(torch.randint(3, 300, (tokens,), generator=torch.Generator().manual_seed(0)).tolist())
    take = lambda count: [next(ids) for _ in range(count)]  # noqa: E731
    prompt, rows, target_mask = take(222), [], []
    for _ in range(4):
        first, observation = take(18), take(24)
        for leaf in range(4):
            rows.append([*prompt, *first, *observation, *take(18)])
            target_mask.append([leaf == 0] * 18 + [False] * 24 + [True] * 18)
    assert sum(map(sum, target_mask)) == sampled
    batch, keep = torch.tensor(rows), torch.tensor(target_mask)
    if run.train.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        if run.policy.lora is not None:
            model.enable_input_require_grads()
    model.train()
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-4)
    with LiveBytes([*model.parameters(), *model.buffers()]) as live:
        for _ in range(steps):
            with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                logps, _, packed = packed_logps(model, batch, torch.ones_like(batch), keep, 1.0)
            assert packed == tokens
            (-logps.sum()).backward()
            del logps
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    return live.peak


@pytest.mark.parametrize(
    ("kind", "how", "checkpointing"),
    [
        ("qwen3", "float32", False),
        ("llama", "mixed", True),
        ("llama", "lora", False),
        ("qwen3", "lora bfloat16", True),
    ],
)
def test_an_update_holds_what_is_estimated(kind, checkpointing, how):
    """Weights, gradients, optimizer and the activations of the longest tree, within the band."""
    lora = {"r": 8, "alpha": 16} if "lora" in how else None
    dtype = {"mixed": "auto", "lora bfloat16": "bfloat16"}.get(how, "float32")
    run = config(gradient_checkpointing=checkpointing, policy={"lora": lora, "dtype": dtype})
    model = tiny_model(kind, **SIZES)
    shape = from_config(model.config.to_dict())
    assert shape.parameters == pytest.approx(sum(weight.numel() for weight in model.parameters()), rel=0.001)
    if how == "lora bfloat16":
        model = model.to(torch.bfloat16)
    model = add_lora(model, run.policy)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert trained_parameters(run.policy.lora, shape) == pytest.approx(trained, rel=0.001)
    expected = estimate(run, shape, CPU)
    peak = measured(run, model, mixed=how in ("mixed", "lora bfloat16"))
    assert BAND[0] < (expected.of_phase("update") - CPU_RESERVED) / peak < BAND[1], expected.lines()


def test_the_longest_tree_by_hand():
    """A prompt of 100 − (10 + 12) and two turns of 10 tokens, with 12 tokens of documents between."""
    rollout = {"branching": [2, 3], "max_prompt_tokens": 100, "max_new_tokens": 10, "documents": 3,
               "document_tokens": 4}  # fmt: skip

    def longest(train=None, **changes):
        run = RunConfig.model_validate({"rollout": {**rollout, **changes}, "train": train or {}})
        return longest_tree(run.rollout, run.train)

    assert longest() == (78 + 2 * (10 + 12) + 6 * 10, 2 * 10 + 6 * 10, 110)
    assert longest({"packing": False}) == (6 * 110, 6 * 32, 110)
    assert longest({"max_tokens_per_micro_batch": 150}) == (150, 80, 110)


@pytest.mark.parametrize(("setting", "tokens", "expected"), [
    ("auto", 24, False), ("auto", 400_000, True), (False, 400_000, False),
])  # fmt: skip
def test_auto_is_settled_by_the_policy_that_was_loaded(setting, tokens, expected):
    run = config(gradient_checkpointing=setting)
    rollout = run.rollout.model_copy(update={"max_new_tokens": tokens})
    run = run.model_copy(update={"rollout": rollout})
    assert resolve_gradient_checkpointing(run, tiny_model(), Processes()) == expected


SHAPE = ModelShape(1_000_000_000, 2048, 8192, 20, 2048, 512, 50_000)


def test_what_lies_there_for_the_whole_run_by_hand():
    """Bytes per parameter: 4 + 4 + 8 in float32; 2 + (4 + 12) / 8 by ZeRO-2; a reference is a second set of weights."""

    def resident(layout, **changes):
        parts = estimate(config(**changes), SHAPE, layout).resident
        return {name: size / 1e9 for name, size in parts.items() if name not in ("reserved", "DeepSpeed's buckets")}

    full = {"policy": {"dtype": "auto"}}
    assert resident(ProcessLayout(), **full) == {"weights": 4, "gradients": 4, "optimizer": 8}
    assert resident(ProcessLayout(8), **full) == {"weights": 4, "gradients": 4, "optimizer": 8, "DDP's buckets": 4}
    assert resident(ProcessLayout(8, "ZeRO-2"), beta=0.1, **full) == {"weights": 2, "gradients": 0.5, "optimizer": 1.5}
    offloaded = estimate(config(beta=0.1, **full), SHAPE, ProcessLayout(8, "ZeRO-2")).phases["reference"]
    assert offloaded["reference"] == 2e9, "on the GPU while its log-probabilities are computed"
    assert resident(ProcessLayout(1, gpu_gib=None), beta=0.1, **full)["reference"] == 4
    run = config(staleness=1, **full)
    ahead = run.model_copy(update={"rollout": run.rollout.model_copy(update={"engine": "transformers"})})
    assert estimate(ahead, SHAPE, ProcessLayout()).resident["copy to sample from"] == 4e9
    assert resident(ProcessLayout(8, "ZeRO-3"), beta=0.1, **full) == {
        "weights": 0.25, "gradients": 0.5, "optimizer": 1.5, "reference": 0.25,
    }  # fmt: skip
    assert resident(ProcessLayout(bfloat16=False), policy={"dtype": "auto", "lora": {"last_layers": 1}})["weights"] > 4


@pytest.mark.parametrize("name", known_configs())
def test_a_packaged_config_fits_the_gpus_that_its_slurm_script_asks_for(name):
    run = load_config(name, [])
    expected = estimate(run, shape_of(run.policy.model), request_of(run.env, run.policy)[1])
    assert expected.fits(), "\n".join(expected.lines())
    if run.policy.lora is None:
        layout = expected.layout
        split = f"{layout.sharding} on {layout.processes} GPUs of 80 GB: {expected.peak / GIB:.1f} GiB each"
        assert split in (FOLDER.parent / "configs" / f"{name}.yaml").read_text("utf-8")
