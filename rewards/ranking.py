"""What every ranking metric checks before it counts."""

from collections.abc import Sequence


def top(ranking: Sequence[str], k: int | None) -> Sequence[str]:
    """The first `k` documents of a ranking (all where k is None).

    Raises ValueError for k < 1 and for a document that stands in the ranking twice: it would be paid twice.
    """
    if k is not None and k < 1:
        raise ValueError(f"k is {k}; a ranking is judged at k >= 1, or at None for all of it")
    if len(set(ranking)) != len(ranking):
        twice = next(document for place, document in enumerate(ranking) if document in ranking[:place])
        raise ValueError(f"document {twice!r} stands in the ranking more than once; expected every document once")
    return ranking[:k]
