"""Which option of a multiple-choice question an answer names: a JSON field, a box, "Answer: B", or a letter alone.

The surest kind of statement counts, and of several the last one. Anything else names none, which counts as wrong.
"""

import re
import string
import unicodedata
from collections.abc import Sequence

from ...llms.json_answers import find_values
from ...llms.prose import boxed, without_end_of_turn
from .metrics import normalise

_FIELD = re.compile(r"(?:final|correct)?(?:answer|choice|option)+(?:letter)?")
_STATED = re.compile(
    r"(?:(?<![a-z])(?:answer|choice|option|conclusion|ans)\b(?: here| key)?(?:\W*[:=\n–-]|\W*\b(?:is|would be)\b)|"
    r"\bi(?:'d| would| will)? (?:choose|pick|select|go with)\b)\W*(?=(.*))",
    re.IGNORECASE,
)
"""What follows "The answer is", "Answer:" or "I choose"."""
_CONDITION = re.compile(
    r"\b(?:if(?! i ha(?:d|ve) to)|unless|whether|assuming|suppose)\b(?:(?! (?:so|but|however)\b)[^.;:!?\n])*\Z",
    re.IGNORECASE,
)
_REJECTED = re.compile(r" ?(?:(?:is|was) (?:not|wrong|incorrect|ruled)|isnt|wasnt|or)\b")
"""What follows the words of an option that is not chosen, or not alone."""
_GOES_ON = re.compile(
    r"[.):]+ [A-Z]|,? because|, (?!(?:or|if|unless|(?:(?:and|possibly|perhaps|maybe) )+(?:option )?\(?[A-Z])\b)[a-z]"
)
_LETTER = re.compile(r"\W*(?:(?:option|answer|choice) )?\(?([A-Z])\b[)\]\"'.:]*\s*", re.IGNORECASE)


def chosen(answer: str, options: Sequence[str]) -> int | None:
    """The index of the option that an answer names; None where it names none, or more than one."""
    text = re.sub(r"[*`$]", "", unicodedata.normalize("NFKC", without_end_of_turn(answer))).strip()
    if surest := choice_fields(answer) or boxed(answer):
        return _named(surest[-1], options)
    stated = [
        index
        for said in _STATED.finditer(text)
        if (index := _named(said[1], options)) is not None and not _CONDITION.search(text[: said.start()])
    ]
    if stated:
        return stated[-1]
    lines = [line for line in text.splitlines() if line.strip()]
    outer = {index for line in {*lines[:1], *lines[-1:]} if (index := _named(line, options)) is not None}
    return outer.pop() if len(outer) == 1 else None


def choice_fields(text: str) -> list[str]:
    """The values of the JSON fields that hold the choice, such as `answer_choice`, of the last object with such."""
    fields = [
        [str(member) for key, member in value.items() if _FIELD.fullmatch(re.sub(r"\W|_", "", str(key)).lower())]
        for value in find_values(text, finished=True)
        if isinstance(value, dict)
    ]
    return next(filter(None, reversed(fields)), [])


def _named(text: str, options: Sequence[str]) -> int | None:
    """The option that a line begins with: its words up to a comma or full stop, or its letter, alone or before them."""
    words = [normalise(option) for option in options]
    clause = normalise(re.split(r"[.;,!?]\s|\s[-–—(]", text)[0])
    if words.count(clause) == 1:
        return words.index(clause)
    mark = _LETTER.match(text)
    index = string.ascii_uppercase.find(mark[1].upper()) if mark else -1
    if mark is None or not 0 <= index < len(options):
        return None
    rest = normalise(text[mark.end() :])
    of_option = rest.startswith(words[index])
    if of_option and _REJECTED.match(rest.removeprefix(words[index])):
        return None
    return index if not rest or of_option or (rest not in words and _GOES_ON.match(text[mark.end(1) :])) else None
