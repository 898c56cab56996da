"""Which option of a multiple-choice question an answer names: a JSON field, a box, "Answer: B", or a letter alone.

The surest kind of statement counts, and of several the last one. An answer that names two options, rejects one, or
names one under a condition names none; that counts as wrong and is never guessed at.
"""

import re
import string
import unicodedata
from collections.abc import Sequence

from ...llms.json_answers import find_values
from ...llms.prose import boxed, without_end_of_turn
from .metrics import normalise

_FIELD = re.compile(r"(?:final|correct)?(?:answer|choice|option)+(?:letter)?")
_TAG = re.compile(r"<(?:final_)?answer>(.*?)</(?:final_)?answer>", re.IGNORECASE | re.DOTALL)
_STATED = re.compile(
    r"\b(?:(?:answer|choice|option|conclusion|ans\.?)(?:[ _-](?:choice|key|to (?:the|this|your) question))?"
    r"(?:[\"' ]*(?:here )?(?:is|would be)\b|[\"' ]*[:：=]|[ \t]*\n)|"
    r"(?:it's|it is|so|thus|hence|therefore|choose|select|pick|say|go with),?"
    r"(?= (?:option )?[(\[]*(?-i:[A-HJ-Z])\b)(?! A [a-z]))"
    r"[\s:#\"']*(?:(?:probably|therefore|clearly|likely)\s)?(?=(?P<said>.*))",
    re.IGNORECASE,
)
_IS_BEST = re.compile(
    r"(?:^|[.,:;(]\s*|\b(?i:option|answer|choice|and|so) )(?=(?P<said>[A-Z]\b))\S+ is (?:the |clearly )?"
    r"(?:most|best|correct|right)\b",
    re.MULTILINE,
)
_INTRODUCTION = re.compile(r"^(?:based on|according to) the [^,]*, *", re.IGNORECASE)
_CONDITION = re.compile(r"\b(?:if|unless|whether|either|neither|could|might|may)\b", re.IGNORECASE)
_TURN = re.compile(r"\b(?:but|so|still|i|i'd)\b", re.IGNORECASE)
_LETTER = re.compile(
    r"(?:(?:the )?(?:option|choice|letter|answer) )?[(\[\"']*([A-Z])(?P<close>[)\]\"'.:]*)(?![\w'])", re.IGNORECASE
)
_ANOTHER = re.compile(r"(?:,|;|/|&|\bor\b|\band\b)\s*(?:option |choice )?\(?(?!A [a-z])([A-Z])\b")
_REJECTED = re.compile(r"\b(?:is|are|was|can be) ?(?:not|n't|wrong|incorrect|ruled|out)\b|^\W*\?")


def chosen(answer: str, options: Sequence[str]) -> int | None:
    """The index of the option that an answer names; None where it names none, or more than one."""
    text = re.sub(r"[*`$]", "", unicodedata.normalize("NFKC", without_end_of_turn(answer)).replace("’", "'")).strip()
    if fields := choice_fields(answer):
        named = {_named(value, options) for value in fields}
        return named.pop() if len(named) == 1 else None
    if surest := boxed(answer) or _TAG.findall(text):
        return _named(surest[-1], options)
    for pattern in (_STATED, _IS_BEST):
        marks = [mark for mark in pattern.finditer(text) if not _conditional(text[: mark.start()])]
        said = [_named(mark["said"], options) for mark in marks]
        if said:
            return said[-1] if pattern is _STATED or len(set(said)) == 1 else None
    lines = [_INTRODUCTION.sub("", line.lstrip("# ")) for line in text.splitlines() if line.strip()]
    outer = {index for line in {*lines[:1], *lines[-1:]} if (index := _named(line, options)) is not None}
    return outer.pop() if len(outer) == 1 and not _STATED.search(text) else None


def _conditional(before: str) -> bool:
    """Whether a sentence that begins with `before` says under which condition it holds."""
    sentence = re.split(r"[.!?;\n]", before)[-1]
    return _CONDITION.search(_TURN.split(sentence)[-1]) is not None


def choice_fields(text: str) -> list[str]:
    """The values of the JSON fields that hold the choice, such as `answer_choice`, of the last object with such."""
    fields = [
        [str(member) for key, member in value.items() if _FIELD.fullmatch(re.sub(r"\W|_", "", str(key)).lower())]
        for value in find_values(text, finished=True)
        if isinstance(value, dict)
    ]
    return next(filter(None, reversed(fields)), [])


def _named(text: str, options: Sequence[str]) -> int | None:
    """The option that a statement begins with: a letter, alone or before its option, or the words of an option."""
    text = text.strip().strip("\"'{}[] ")
    words = [normalise(option) for option in options]
    clause = normalise(re.split(r"[.;,!?]\s|[.;,]$|\s[-–—]|\n|\s\([A-Z]\)|\bbecause\b", text)[0])
    if words.count(clause) == 1:
        others = [f" {word} " for word in words if word != clause and (len(word) > 3 or word in ("yes", "no"))]
        return None if any(other in f" {normalise(text)} " for other in others) else words.index(clause)
    mark = _LETTER.match(text)
    index = string.ascii_uppercase.find(mark[1].upper()) if mark else -1
    if mark is None or not 0 <= index < len(options):
        return None
    rest, follows = text[mark.end() :], normalise(text[mark.end() :])
    others_named = {string.ascii_uppercase.find(letter) for letter in _ANOTHER.findall(rest)} - {index}
    if any(0 <= other < len(options) for other in others_named) or _REJECTED.search(rest.split("\n")[0]):
        return None
    if follows in words or not follows:
        return index if not follows or follows == words[index] else None
    of_option = follows.startswith(words[index])
    closed = bool(mark["close"]) or re.match(r"\s*(?:[-–—,;:\n(]|because\b|since\b|as\b)", rest) is not None
    abbreviation = mark["close"] == "." and re.match(r"\s*[A-Za-z]", rest) is not None
    return index if of_option or (closed and not abbreviation and mark[1].isupper()) else None
