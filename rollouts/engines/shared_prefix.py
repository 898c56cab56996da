"""What a policy's settings say against computing shared prefixes once, for sampling and for training alike.

Trees need attention of which each score depends on two tokens and their distance in the sequence, and on nothing else
that happened in the row. Settings can be read before anything runs; what they do not say, a comparison with the plain
forward pass has to find.
"""

from typing import TYPE_CHECKING

from ...errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

ATTENDING = {"full_attention", "sliding_attention", "chunked_attention"}


def obstacle(config: "PreTrainedConfig", longest: int | None = None) -> str:
    """Why the policy of this text config cannot share prefixes, or "" where nothing in it speaks against it.

    A window is in the way only where a sequence of `longest` tokens reaches past it; None asks for any length.
    """
    kinds = set(getattr(config, "layer_types", None) or [])
    window, chunk = getattr(config, "sliding_window", None), getattr(config, "attention_chunk_size", None)
    limits = {f"layers of kind {kind} that see": window for kind in kinds & {"sliding_attention"}}
    limits |= {f"layers of kind {kind} that see": chunk for kind in kinds & {"chunked_attention"}}
    if not kinds and window and getattr(config, "use_sliding_window", True):
        limits["a sliding window of"] = window
    for what, size in limits.items():
        if longest is None or size is None or longest > size:
            return f"{what} {size} tokens" + ("" if longest is None else f", and a sequence may have {longest}")
    if kinds - ATTENDING:
        return f"layers of kind {', '.join(sorted(kinds - ATTENDING))}"
    if getattr(config, "attn_logit_softcapping", None):
        return "soft-capped attention scores"
    if getattr(config, "alibi", False) or getattr(getattr(config, "attn_config", None), "alibi", False):
        return "ALiBi position biases"
    return ""


def refuse_special_attention(model: "PreTrainedModel", longest: int | None = None) -> None:
    """Raise ModelError where shared prefixes would be wrong for sequences of `longest` tokens (None: any length)."""
    config = model.config.get_text_config()
    if reason := obstacle(config, longest):
        raise ModelError(
            f"policy {getattr(config, 'model_type', '?')!r} uses {reason}, which trees with shared prefixes cannot "
            "reproduce. Choose a policy with full attention in every layer (Llama, SmolLM2, Qwen2, Qwen3, …)."
        )
