"""Typing mistakes, which need no model."""

import random

_WORDS_PER_TYPO = 6
_SHORTEST = 4
"""Letters of the shortest word that a typing mistake goes into."""


def with_typos(text: str, seed: str) -> str:
    """The text with typing mistakes in longer words, one for every six words: letters swapped, left out or
    doubled. The first letter of a word is right; the same seed gives the same text.
    """
    typed = text.split()
    draw = random.Random(seed)
    longer = [position for position, word in enumerate(typed) if sum(map(str.isalpha, word)) >= _SHORTEST]
    for position in draw.sample(longer, min(len(longer), max(1, round(len(typed) / _WORDS_PER_TYPO)))):
        typed[position] = _mistyped(typed[position], draw)
    return " ".join(typed)


def _mistyped(word: str, draw: random.Random) -> str:
    """The word after one mistake; two equal letters are not swapped, so it always differs."""
    inner = [index for index in range(1, len(word)) if word[index].isalpha()]
    index = draw.choice(inner)
    head, letter, tail = word[:index], word[index], word[index + 1 :]
    edits = [head + tail, head + letter + letter + tail]
    if index + 1 in inner and tail[0] != letter:
        edits.append(head + tail[0] + letter + tail[1:])
    return draw.choice(edits)
