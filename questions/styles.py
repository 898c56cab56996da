"""Prompts for questions in the styles that users ask in, and typing mistakes, which need no model.

The examples are this project's, of texts that are in no packaged corpus.
"""

import random
from collections.abc import Mapping, Sequence

from ..configs.llm import Style
from ..data.leakage import words
from ..data.types import Document
from ..llms.structured import FormPrompt, WorkedExample
from .prompts import ONE_QUESTION_REQUEST, OneQuestion, cut

VERSION = "styles-1"
"""Raise it with every change of the wording: every set of questions records it."""

_TASKS: Mapping[Style, str] = {
    "question": "Write one question that a user asks and that the text below answers.",
    "keyword": (
        "Write what a user types into a search box who looks for the text below: two to five words, not a sentence."
    ),
    "vague": (
        "Write one short question that the text below answers, by a user who does not know the right terms: everyday "
        "words in place of those of the text, nothing exact."
    ),
    "multi_hop": (
        "Write one question that takes both texts below to answer: it asks for something of the second text by way of "
        "something in the first."
    ),
}
_RULES = "Ask only about what the text says, and do not copy its sentences. The text was {origin}."

_BREAD = (
    "Bread dough: Let the dough rise for two hours at 24 °C, or overnight in the refrigerator. Cold dough rises slowly "
    "and tastes stronger."
)
_BRAKES = (
    "Bicycle brakes: Replace the pads when less than two millimetres are left. Worn pads squeal and damage the rim."
)
_TYRES = "Bicycle rims: A rim with a groove can break. Only a workshop replaces a rim, which takes a day."
_EXAMPLES: Mapping[Style, Sequence[tuple[str, str]]] = {
    "question": [
        (_BREAD, "How long does dough have to rise at room temperature?"),
        (_BRAKES, "When is it time to change the brake pads of a bike?"),
    ],
    "keyword": [(_BREAD, "dough proofing time fridge"), (_BRAKES, "brake pad thickness minimum")],
    "vague": [(_BREAD, "why is my bread so flat?"), (_BRAKES, "bike makes an awful noise when I stop?")],
    "multi_hop": [
        (f"{_BRAKES}\n\n{_TYRES}", "How long is the bike away if squealing brakes were ignored for too long?")
    ],
}
EXAMPLES = frozenset(words(question) for examples in _EXAMPLES.values() for _, question in examples)
"""The words of the example questions, which small models copy."""


def style_prompt(style: Style, passages: Sequence[Document], origin: str, limit: int) -> FormPrompt:
    """The prompt for one question about the passages, of which `limit` words are shown.

    A question with typing mistakes begins as one without (`with_typos`), so both have the same prompt.
    """
    base: Style = "question" if style == "typo" else style
    examples = [WorkedExample(f"Text: {text}", OneQuestion(question=question)) for text, question in _EXAMPLES[base]]
    listing = "\n".join(f"{example.case}\n{example.json}" for example in examples)
    return FormPrompt(
        f"{_TASKS[base]} {_RULES.format(origin=origin)}",
        f"Text: {joined(passages, limit).text}",
        f"{VERSION}/{base}",
        tuple(examples),
        f"{ONE_QUESTION_REQUEST} Examples:\n{listing}\n\nNow this text.",
        request_last=False,
    )


def joined(passages: Sequence[Document], limit: int) -> Document:
    """Passages as one content of at most `limit` words, an equal share of each."""
    text = "\n\n".join(cut(passage, max(1, limit // len(passages))) for passage in passages)
    return Document(" ".join(passage.id for passage in passages), "", text)


_NEIGHBOURS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_WORDS_PER_TYPO = 6
_SHORTEST = 4
"""Letters of the shortest word that a typing mistake goes into."""


def with_typos(text: str, seed: str) -> str:
    """The text with typing mistakes in longer words, one for every six words: letters swapped, left out, doubled or
    replaced by their neighbour on the keyboard. The first letter of a word is right; the same seed gives the same text.
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
    for row in _NEIGHBOURS:
        if (column := row.find(letter)) >= 0:
            edits.append(head + row[column - 1 if column else 1] + tail)
    return draw.choice(edits)
