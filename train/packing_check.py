"""Check whether a policy can be trained on packed rows, by its config and by a small tree computed both ways."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from ..errors import ModelError
from ..rollouts.engines.transformers import obstacle
from .attention import Kind, attention_kind
from .packing import token_logps

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

NOISE = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.02}
"""Minimum tolerance, as RMS in nats, for log-probabilities computed in two different orders."""
PROMPT = 12
"""Number of prompt tokens of the small tree."""


def refuse_unpackable(model: "PreTrainedModel | PeftModel", longest: int) -> None:
    """Raise ModelError if the policy, adapters included, cannot be trained on packed rows of up to `longest` tokens."""
    if reason := why_not(model, longest, attention_kind(next(model.parameters()).device)):
        name = getattr(model.config.get_text_config(), "model_type", "?")
        raise ModelError(
            f"the policy ({name!r}) cannot be trained on packed trees: {reason}. Set train.packing=false to train "
            "every leaf in a row of its own, which costs more, or choose a policy with full attention in every layer "
            "(Llama, SmolLM2, Qwen2, Qwen3, …)."
        )


def why_not(model: "PreTrainedModel | PeftModel", longest: int, kind: Kind = "sdpa") -> str:
    """Why `model` cannot use packed rows with sequences of up to `longest` tokens; "" if it can."""
    config = model.config.get_text_config()
    if unsupported := obstacle(config, longest):
        return f"it uses {unsupported}"
    balance = getattr(config, "router_aux_loss_coef", None)
    if balance and hasattr(config, "output_router_logits"):
        return f"it balances its experts by a loss over the tokens of rows (router_aux_loss_coef {balance:g})"
    try:
        gap, allowed = compare(model, kind)
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError, ModelError) as error:
        return f"it does not take a packed row ({' '.join(str(error).split())[:200]})"
    if gap <= allowed:  # False for NaN
        return ""
    return f"log-probabilities of packed and flat rows differ by {gap:.2g}, where {allowed:.2g} is rounding"


@torch.no_grad()
def compare(model: "PreTrainedModel | PeftModel", kind: Kind = "sdpa") -> tuple[float, float]:
    """Compute a tree of two first turns and four second turns packed, row by row, and as one padded batch.

    Returns RMS differences in nats: of the packed row from single rows, and what is allowed, by the numerical noise of
    one padded batch against single rows.
    """
    draw = np.random.default_rng(0).integers
    words = int(model.get_input_embeddings().weight.shape[0])  # type: ignore[index]
    prompt = draw(words, size=PROMPT)
    stems = [np.concatenate([prompt, draw(words, size=length)]) for length in (9, 14)]
    rows = [np.concatenate([stem, draw(words, size=length)]) for stem in stems for length in (5, 8)]
    targets = [np.arange(PROMPT, len(row)) for row in rows]
    was_training = model.training
    model.eval()
    try:  # flat first, while every layer still has its own attention
        pairs = zip(rows, targets, strict=True)
        single = torch.cat([token_logps(model, [row], [target], 1.0, attention=None)[0] for row, target in pairs])
        batched, _, _ = token_logps(model, rows, targets, 1.0, attention=None)
        packed, _, _ = token_logps(model, rows, targets, 1.0, attention=kind)
    finally:
        model.train(was_training)
    gap, noise = (float((logps - single).square().mean().sqrt()) for logps in (packed, batched))
    return gap, max(NOISE.get(next(model.parameters()).dtype, NOISE[torch.float32]), 3 * noise)
