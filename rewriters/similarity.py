"""How alike two texts are, from 0 (nothing in common) to 1 (the same), for rewriters that hold no model.

`letters` is the cosine of the counts of letter triples, case and spacing aside: it needs no model, takes any script,
and sees that one text paraphrases another as far as it keeps its words. Any other name is a sentence encoder, and the
similarity is the cosine of its embeddings.
"""

import math
from collections import Counter
from collections.abc import Callable
from functools import lru_cache

Similarity = Callable[[str, str], float]


def letters(one: str, other: str) -> float:
    """Cosine of the counts of letter triples. Texts without any letter are alike only where they are equal."""
    left, right = _triples(one), _triples(other)
    if not left or not right:
        return float(one.split() == other.split())
    product = sum(count * right[triple] for triple, count in left.items())
    squares = sum(count * count for count in left.values()) * sum(count * count for count in right.values())
    return min(1.0, product / math.sqrt(squares))


def open_similarity(name: str) -> Similarity:
    """The similarity of that name. Raises ModelError or ConfigError where it names no sentence encoder."""
    if name == "letters":
        return letters
    from ..llms.embedding import open_encoder

    encode, _ = open_encoder(name, setting="rewriter.chr.similarity")

    @lru_cache(maxsize=4096)
    def cosine(one: str, other: str) -> float:
        left, right = (vector.astype(float) for vector in encode([one, other]))
        lengths = math.sqrt(float(left @ left) * float(right @ right))
        return float(left @ right) / lengths if lengths else float(one == other)

    return cosine


def _triples(text: str) -> Counter[str]:
    words = f" {' '.join(text.casefold().split())} "
    return Counter(words[at : at + 3] for at in range(len(words) - 2))
