"""Whether a policy can be trained on packed rows: its settings are read, then a small tree is computed both ways.

Nothing is decided silently. `train.packing: true` refuses a policy that cannot, with the reason and the numbers seen;
`auto` says the same and goes on with one row per leaf.
"""

import logging
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..configs.schema import RunConfig
from ..errors import ConfigError, ModelError
from ..rollouts.shared_prefix import obstacle
from .packed_attention import Kind
from .packing import packed_logps

log = logging.getLogger(__name__)

NOISE = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.02}
"""Root mean square, in nats, by which log-probabilities of two orders of computation may always differ."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Log-probabilities of one small random tree, packed and flat: root mean squares of differences, in nats."""

    apart: float
    """Packed against every row by itself."""
    noise: float
    """The rows as one padded batch against every row by itself: what flat training differs from itself."""
    allowed: float

    @property
    def equal(self) -> bool:
        """Whether packed is as close to flat as flat is to itself, within rounding."""
        return self.apart <= self.allowed  # a NaN is not


def settle_packing(config: RunConfig, model: nn.Module) -> RunConfig:
    """`config` with `train.packing` true or false, as it will be done. `model` is the policy, adapters included.

    Raises ModelError where packing is asked for and the policy cannot, ConfigError where FlexAttention is asked for
    without a GPU.
    """
    wish = config.train.packing
    if wish is False:
        return config
    device = next(model.parameters()).device
    kind = attention_kind(config.train.packed_attention, device)
    if kind == "flex" and device.type != "cuda":
        raise ConfigError(
            f"train.packed_attention is flex and the policy is on {device.type}: FlexAttention has no backward pass "
            "there. Set it to auto or sdpa."
        )
    reason = why_not(model, config.rollout.longest_sequence, kind)
    if not reason:
        return _with_packing(config, True)
    if wish != "auto":
        raise ModelError(
            f"the policy cannot be trained on packed trees: {reason}. Set train.packing to auto or false to train "
            "every leaf in a row of its own, which costs more, or choose a policy with full attention in every layer "
            "(Llama, SmolLM2, Qwen2, Qwen3, …)."
        )
    log.warning("train.packing is auto: every leaf is trained in a row of its own, because %s", reason)
    return _with_packing(config, False)


def attention_kind(setting: Literal["auto", "sdpa", "flex"], device: torch.device) -> Kind:
    """What computes the ancestor mask on this device."""
    if setting == "auto":
        return "flex" if device.type == "cuda" else "sdpa"
    return setting


def why_not(model: nn.Module, longest: int, kind: Kind = "sdpa") -> str:
    """What keeps `model` from packed rows with sequences of up to `longest` tokens; "" where nothing does.

    Where there is a reason, the model attends as it did before the question.
    """
    whole: Any = model.config
    config = whole.get_text_config()
    name = repr(getattr(config, "model_type", "?"))
    if found := obstacle(config, longest):
        return f"{name} uses {found}"
    balance = getattr(config, "router_aux_loss_coef", None)
    if balance and hasattr(config, "output_router_logits"):
        return (
            f"{name} balances its experts by a loss over the tokens of rows (router_aux_loss_coef {balance:g}), and a "
            "packed row has other tokens"
        )
    before = whole._attn_implementation
    reason = ""
    try:
        seen = compare(model, kind)
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError, ModelError) as error:
        reason = f"{name} does not take a packed row ({' '.join(str(error).split())[:200]})"
    else:
        if not seen.equal:
            reason = (
                f"on a small random tree the log-probabilities of {name} differ by {seen.apart:.2g} between packed and "
                f"flat, where {seen.allowed:.2g} is rounding"
            )
        log.info("packed against flat log-probabilities: %.2g apart, %.2g allowed", seen.apart, seen.allowed)
    if reason:
        whole._attn_implementation = before
    return reason


@torch.no_grad()
def compare(model: nn.Module, kind: Kind = "sdpa") -> Comparison:
    """Compute a tree of two first turns and four second turns packed, row by row, and as one padded batch."""
    device = next(model.parameters()).device
    rows = _small_tree(int(model.get_input_embeddings().weight.shape[0]))  # type: ignore[operator, union-attr]
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=device)
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=device)
    wanted = mask[:, 1:].bool()
    wanted[:, : PROMPT - 1] = False
    was_training = model.training
    model.eval()
    try:
        alone = torch.zeros(wanted.shape, device=device)
        for row, length in enumerate(map(len, rows)):
            one = ids[row : row + 1, :length]
            alone[row, : length - 1] = _next(model(input_ids=one, use_cache=False).logits, one)[0]
        together = _next(model(input_ids=ids, attention_mask=mask, use_cache=False).logits, ids)
        packed, _, _ = packed_logps(model, ids, mask, wanted, 1.0, attention=kind)
    finally:
        model.train(was_training)
    noise = _rms(together - alone, wanted)
    least = NOISE.get(next(model.parameters()).dtype, NOISE[torch.float32])
    return Comparison(_rms(packed - alone, wanted), noise, max(least, 3 * noise))


PROMPT = 12
"""Tokens of the small tree's prompt."""


def _small_tree(vocabulary: int) -> list[list[int]]:
    random = torch.Generator().manual_seed(0)

    def ids(count: int) -> list[int]:
        return torch.randint(vocabulary, (count,), generator=random).tolist()  # type: ignore[no-any-return]

    prompt = ids(PROMPT)
    stems = [prompt + ids(9), prompt + ids(14)]
    return [stem + ids(length) for stem in stems for length in (5, 8)]


def _next(logits: Tensor, ids: Tensor) -> Tensor:
    """(rows, tokens − 1) log-probability of each token after the first."""
    return torch.log_softmax(logits[:, :-1].float(), -1).gather(-1, ids[:, 1:, None])[..., 0]


def _rms(difference: Tensor, where: Tensor) -> float:
    return float(difference[where].square().mean().sqrt())


def _with_packing(config: RunConfig, packing: bool) -> RunConfig:
    return config.model_copy(update={"train": config.train.model_copy(update={"packing": packing})})
