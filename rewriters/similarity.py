"""Similarity of two texts, from 0 (nothing in common) to 1 (the same), for rewriters without a model.

`letters` is the cosine of the counts of letter trigrams, ignoring case and spacing: it needs no model, works for any
script, and recognises a paraphrase only as far as it keeps the words. Any other name is a sentence encoder, and the
similarity is the cosine of its embeddings.
"""

import math
from collections import Counter
from collections.abc import Callable
from functools import lru_cache

Similarity = Callable[[str, str], float]


def letters(first: str, second: str) -> float:
    """Cosine of the counts of letter trigrams. Texts without any letter are similar only if they are equal."""
    left, right = _triples(first), _triples(second)
    if not left or not right:
        return float(first.split() == second.split())
    product = sum(count * right[triple] for triple, count in left.items())
    squares = sum(count * count for count in left.values()) * sum(count * count for count in right.values())
    return min(1.0, product / math.sqrt(squares))


def open_similarity(name: str) -> Similarity:
    """The similarity of that name. Raises ModelError or ConfigError if it names no sentence encoder."""
    if name == "letters":
        return letters
    from ..llms.embedding import open_encoder

    encode, _ = open_encoder(name, setting="rewriter.chr.similarity")

    @lru_cache(maxsize=4096)
    def cosine(first: str, second: str) -> float:
        left, right = (vector.astype(float) for vector in encode([first, second]))
        lengths = math.sqrt(float(left @ left) * float(right @ right))
        return float(left @ right) / lengths if lengths else float(first == second)

    return cosine


def _triples(text: str) -> Counter[str]:
    words = f" {' '.join(text.casefold().split())} "
    return Counter(words[start : start + 3] for start in range(len(words) - 2))
