"""Token sequences: what they share."""

from collections.abc import Sequence


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids `a` and `b` begin with in common."""
    for length, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return length
    return min(len(a), len(b))
