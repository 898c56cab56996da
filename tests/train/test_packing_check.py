"""Which policies are trained on packed rows: by settings, by measurement, and the reason given."""

import re

import pytest
from querylect.train import packing
from querylect.train.packing import why_not

from ..tiny import tiny_model

pytestmark = pytest.mark.model

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

TAKEN = [
    ("mistral", {"sliding_window": 100}),
    ("qwen2", {"use_sliding_window": False, "sliding_window": 8}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 100, "max_window_layers": 1}),
    ("gemma3_text", {"sliding_window": 100}),
    ("gpt2", {"n_embd": 64, "n_head": 4, "n_layer": 2}),
    ("qwen3_moe", {**EXPERTS, "router_aux_loss_coef": 0.0}),
]

REFUSED = [
    ("mistral", {"sliding_window": 99}, "a sliding window of 99 tokens, and a sequence may have 100"),
    ("gemma3_text", {"sliding_window": 99}, "sliding_attention that see 99 tokens, and a sequence may have 100"),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, "sliding_attention"),
    ("bloom", {"n_head": 4}, "does not take a packed row"),
    ("stablelm", {}, "differ by"),
    ("qwen3_moe", EXPERTS, r"router_aux_loss_coef 0\.001"),
]


@pytest.mark.parametrize(("kind", "changes"), TAKEN)
def test_policies_with_full_attention_are_taken(kind, changes):
    assert why_not(tiny_model(kind, **changes), 100) == ""


@pytest.mark.parametrize(("kind", "changes", "reason"), REFUSED)
def test_policies_that_packing_would_falsify_are_found(kind, changes, reason):
    assert re.search(reason, why_not(tiny_model(kind, **changes), 100))


SILENT = {
    "gemma2": ({"sliding_window": 100}, "softcap"),
    "mpt": ({"d_model": 64, "n_heads": 4, "n_layers": 2}, "differ by"),
    "mamba": ({}, "does not take a packed row"),
    "jamba": ({"attn_layer_period": 2, "attn_layer_offset": 1, "router_aux_loss_coef": 0.0}, "differ by"),
}


@pytest.mark.parametrize("kind", SILENT)
def test_what_the_settings_do_not_say_is_found_by_running(kind, monkeypatch):
    """With all knowledge about settings removed."""
    monkeypatch.setattr(packing, "obstacle", lambda *_: "")
    changes, reason = SILENT[kind]
    assert reason in why_not(tiny_model(kind, **changes), 4096)
