"""Detect rewrites that repeat earlier texts."""

from collections.abc import Collection, Sequence

from ..data.leakage import words


def repeats(rewrites: Sequence[str], previous: Collection[str]) -> bool:
    """Whether every rewrite has the words of one of `previous` (by `words`), ignoring case and punctuation."""
    return all(words(rewrite) in previous for rewrite in rewrites)
