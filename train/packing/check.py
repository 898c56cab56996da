"""Check whether a policy can be trained on packed rows, by its config and by a small tree computed both ways.

If it cannot, an error has the reason and the measured values.
"""

import logging
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import ModelError
from ...rollouts.engines.shared_prefix import obstacle
from .attention import Kind
from .packing import token_logps

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)

NOISE = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.02}
"""Minimum tolerance, as RMS in nats, for log-probabilities computed in two different orders."""


def refuse_unpackable(model: "PreTrainedModel | PeftModel", longest: int) -> None:
    """Raise ModelError if the policy, adapters included, cannot be trained on packed rows of up to `longest` tokens."""
    reason = why_not(model, longest, attention_kind(next(model.parameters()).device))
    if reason:
        raise ModelError(
            f"the policy cannot be trained on packed trees: {reason}. Set train.packing=false to train every leaf in a "
            "row of its own, which costs more, or choose a policy with full attention in every layer (Llama, SmolLM2, "
            "Qwen2, Qwen3, …)."
        )


def attention_kind(device: torch.device) -> Kind:
    """The attention implementation for this device."""
    return "flex" if device.type == "cuda" else "sdpa"


def why_not(model: "PreTrainedModel | PeftModel", longest: int, kind: Kind = "sdpa") -> str:
    """Why `model` cannot use packed rows with sequences of up to `longest` tokens; "" if it can."""
    config = model.config.get_text_config()
    name = repr(getattr(config, "model_type", "?"))
    if unsupported := obstacle(config, longest):
        return f"{name} uses {unsupported}"
    balance = getattr(config, "router_aux_loss_coef", None)
    if balance and hasattr(config, "output_router_logits"):
        return (
            f"{name} balances its experts by a loss over the tokens of rows (router_aux_loss_coef {balance:g}), and a "
            "packed row has other tokens"
        )
    try:
        gap, allowed = compare(model, kind)
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError, ModelError) as error:
        return f"{name} does not take a packed row ({' '.join(str(error).split())[:200]})"
    log.info("packed against flat log-probabilities: %.2g apart, %.2g allowed", gap, allowed)
    if gap <= allowed:
        return ""
    return (  # also for NaN
        f"on a small random tree the log-probabilities of {name} differ by {gap:.2g} between packed and flat, where "
        f"{allowed:.2g} is rounding"
    )


@torch.no_grad()
def compare(model: nn.Module, kind: Kind = "sdpa") -> tuple[float, float]:
    """Compute a tree of two first turns and four second turns packed, row by row, and as one padded batch.

    Returns RMS differences in nats: of the packed row from single rows, and what is allowed, by the numerical noise of
    one padded batch against single rows.
    """
    device = next(model.parameters()).device
    rows = _small_tree(int(model.get_input_embeddings().weight.shape[0]))  # type: ignore[operator]
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=device)
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=device)
    target_mask = mask[:, 1:].bool()
    target_mask[:, : PROMPT - 1] = False
    was_training = model.training
    model.eval()
    try:
        by_row = torch.zeros(target_mask.shape, device=device)
        for row, length in enumerate(map(len, rows)):
            row_ids = ids[row : row + 1, :length]
            by_row[row, : length - 1] = _next(model(input_ids=row_ids, use_cache=False).logits, row_ids)[0]
        batched = _next(model(input_ids=ids, attention_mask=mask, use_cache=False).logits, ids)
        targets = [np.arange(PROMPT, len(row)) for row in rows]
        packed = torch.zeros_like(by_row)
        packed[target_mask], _, _ = token_logps(model, [np.array(row) for row in rows], targets, 1.0, attention=kind)
    finally:
        model.train(was_training)
    noise = _rms(batched - by_row, target_mask)
    floor = NOISE.get(next(model.parameters()).dtype, NOISE[torch.float32])
    return _rms(packed - by_row, target_mask), max(floor, 3 * noise)


PROMPT = 12
"""Number of prompt tokens of the small tree."""


def _small_tree(vocabulary: int) -> list[list[int]]:
    random = torch.Generator().manual_seed(0)

    def ids(count: int) -> list[int]:
        return torch.randint(vocabulary, (count,), generator=random).tolist()

    prompt = ids(PROMPT)
    stems = [prompt + ids(9), prompt + ids(14)]
    return [stem + ids(length) for stem in stems for length in (5, 8)]


def _next(logits: Tensor, ids: Tensor) -> Tensor:
    """(rows, tokens − 1) log-probability of each token after the first."""
    return torch.log_softmax(logits[:, :-1].float(), -1).gather(-1, ids[:, 1:, None])[..., 0]


def _rms(difference: Tensor, mask: Tensor) -> float:
    return float(difference[mask].square().mean().sqrt())
