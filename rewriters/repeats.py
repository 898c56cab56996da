"""Whether rewrites only say again what was said before."""

from collections.abc import Collection, Sequence

from ..data.leakage import words


def repeats(rewrites: Sequence[str], said: Collection[str]) -> bool:
    """Whether every rewrite has the words of one of `said` (as `words` gives them), case and punctuation aside."""
    return all(words(rewrite) in said for rewrite in rewrites)
