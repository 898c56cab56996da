"""The memory estimate against the tensors that a real update holds, against sizes worked out by hand, and what it says
of the packaged configs."""

from dataclasses import replace

import pytest
import torch
from querylect.configs.load import known_configs, load_config
from querylect.configs.schema import RunConfig
from querylect.rollouts.policy import add_lora
from querylect.train.memory_estimate import CPU_RESERVED, GIB, Layout, estimate, longest_tree, trained_parameters
from querylect.train.model_shape import KNOWN, ModelShape, by_name, from_config, shape_of
from querylect.train.packing import packed_logps

from .tensor_bytes import LiveBytes
from .tiny import tiny_model

BAND = (0.8, 1.3)
"""Estimate over measurement."""
CPU = Layout(gpu_gib=None)
SIZES = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 64}  # fmt: skip


def config(**train):
    """A run whose longest tree has 600 tokens: 216 + 4·(24 + 24) + 16·12."""
    policy, checkpointing = train.pop("policy", {}), train.pop("gradient_checkpointing", False)
    return RunConfig.model_validate(
        {
            "policy": {"dtype": "float32", "lora": None, **policy},
            "rollout": {"branching": [4, 4], "max_prompt_tokens": 264, "max_new_tokens": [24, 12], "documents": 3,
                        "document_tokens": 8, "engine": "vllm_server"},
            "train": {"gradient_checkpointing": checkpointing, **train},
        }
    )  # fmt: skip


def measured(run, model, mixed=False, steps=2):
    """The most bytes that the tensors of an update held: forward and backward pass of the longest tree, and AdamW."""
    tokens, sampled, _ = longest_tree(run)
    ids = iter(torch.randint(3, 300, (tokens,), generator=torch.Generator().manual_seed(0)).tolist())
    take = lambda count: [next(ids) for _ in range(count)]  # noqa: E731
    prompt, rows, wanted = take(216), [], []
    for _ in range(4):
        first, shown = take(24), take(24)
        for leaf in range(4):
            rows.append([*prompt, *first, *shown, *take(12)])
            wanted.append([leaf == 0] * 24 + [False] * 24 + [True] * 12)
    assert sum(map(sum, wanted)) == sampled
    batch, keep = torch.tensor(rows), torch.tensor(wanted)
    if run.train.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        if run.policy.lora is not None:
            model.enable_input_require_grads()
    model.train()
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-4)
    with LiveBytes([*model.parameters(), *model.buffers()]) as seen:
        for _ in range(steps):
            with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                logps, _, packed = packed_logps(model, batch, torch.ones_like(batch), keep, 1.0)
            assert packed == tokens
            (-logps.sum()).backward()
            del logps
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    return seen.peak


@pytest.mark.parametrize(
    ("kind", "how", "checkpointing"),
    [
        ("qwen3", "float32", False),
        ("qwen3", "mixed", False),
        ("llama", "mixed", True),
        ("llama", "float32", True),
        ("qwen3", "lora", False),
        ("llama", "lora bfloat16", False),
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
    trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
    assert trained_parameters(run, shape) == pytest.approx(trained, rel=0.001)
    expected = estimate(run, shape, CPU)
    found = measured(run, model, mixed=how in ("mixed", "lora bfloat16"))
    assert BAND[0] < (expected.of_phase("update") - CPU_RESERVED) / found < BAND[1], expected.lines()


def test_bytes_of_tensors_that_are_alive_are_counted_once_and_given_back():
    kept = torch.zeros(1000)
    with LiveBytes([kept]) as seen:
        assert seen.now == 4000
        one = kept + 1
        view = one[10:]
        assert seen.now == 8000
        del one
        assert seen.now == 8000, "a view holds it"
        del view
        assert seen.now == 4000
    assert seen.peak == 8000
