"""What a policy's settings say against computing shared prefixes once, for sampling and for training alike.

Trees need attention of which each score depends on two tokens and their distance in the sequence, and on nothing else
that happened in the row. Settings can be read before anything runs; what they do not say, a comparison with the plain
forward pass has to find.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

ATTENDING = {"full_attention", "sliding_attention", "chunked_attention"}


def obstacle(config: "PreTrainedConfig", longest: int | None = None) -> str:
    """Why the policy of this text config cannot share prefixes, or "" where nothing in it speaks against it.

    A window is in the way only where a sequence of `longest` tokens reaches past it; None asks for any length.
    """
    kinds = set(getattr(config, "layer_types", None) or [])
    for kind, setting in (("sliding_attention", "sliding_window"), ("chunked_attention", "attention_chunk_size")):
        if kind in kinds and _reaches(longest, getattr(config, setting, None)):
            return f"layers of kind {kind} that see {getattr(config, setting, None)} tokens{_length_note(longest)}"
    if kinds - ATTENDING:
        return f"layers of kind {', '.join(sorted(kinds - ATTENDING))}"
    window = getattr(config, "sliding_window", None)
    if not kinds and window and getattr(config, "use_sliding_window", True) and _reaches(longest, window):
        return f"a sliding window of {window} tokens{_length_note(longest)}"
    if getattr(config, "attn_logit_softcapping", None):
        return "soft-capped attention scores"
    if getattr(config, "alibi", False) or getattr(getattr(config, "attn_config", None), "alibi", False):
        return "ALiBi position biases"
    return ""


def _reaches(longest: int | None, window: int | None) -> bool:
    return longest is None or window is None or longest > window


def _length_note(longest: int | None) -> str:
    return "" if longest is None else f", and a sequence may have {longest}"
