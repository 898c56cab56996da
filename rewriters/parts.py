"""Answers in labelled parts: the parser for training, and what the rewriters that ask for them share.

An answer is a sequence of parts, each beginning with its label at the start of a line (`Query 1: …`): every label once
and in order, optional thinking in <think> tags before them, and nothing else. Markup of chat models around a label
(`**Query 1:**`, `- Query 1:`) is skipped; a part may span several lines, without a blank one. Nothing needs escaping,
so a model of some hundred million parameters can learn the form from the reward; its first label is prefilled
(`opening`). `read_labelled` reads the answers of models that are not trained: labels in any markup, a JSON object, or
a numbered list of as many parts.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..data.types import Document, Question
from ..envs.plan import SearchPlan, is_unicode
from ..llms.base import Message
from ..llms.json_answers import find_values
from ..llms.lines import is_placeholder, label_pattern, plain, split_at_labels
from ..llms.prose import (
    REFUSAL,
    answer_of,
    is_refusal,
    is_remark,
    paragraphs,
    unquoted,
    without_end_of_turn,
    without_fences,
)
from .base import Rewrite
from .case import case_text
from .levels import describe_results
from .parse import Parsed, without_think
from .plans import planned

_BLANK = re.compile(r"\n[ \t]*\n")
_TAG = re.compile(r"<(\w+)[^<>]*>([^<>]+)</\1>")
_ROW = re.compile(r"^[ \t]*\|(.*)\|[ \t]*$", re.MULTILINE)
_FINAL = re.compile(
    r"^\W*(?:final|refined|revised|improved) (?:\w+ )?(?:quer|question|version|answer)\w*\W*$", re.I | re.M
)
"""A heading above the parts that count, after a draft."""
_PURPOSE = re.compile(r"[\[({<][^\])}>\n]{1,40}[\])}>][*_]*[ \t]+(?!(?:AND|OR|NOT)\b)")
_TITLE = re.compile(r"(?:\*\*|__)[^*_\n]{1,60}?(?::(?:\*\*|__)|(?:\*\*|__):)[ \t]*")
_BULLET = re.compile(r"[ \t>]*[-*•–][ \t]+")
_ASKS = re.compile(r"quer|question|version|search|rewrit|paraphras", re.IGNORECASE)
_NUMBERED = re.compile(
    r"^[^\w\n]{0,8}(?:(?P<name>(?:[^\W\d_]{2,}[-_ #]*){0,2})(?P<number>\d{1,2})|"
    r"(?:(?:sub-?)?(?:query|question|version) )?(?P<letter>[a-d]|i{1,3})\b)"
    r"[*_`\" ]*(?:\([^()\n]*\))?[*_ ]*(?:[:：.)、]|[-–—=→>]+(?=[ \t]))[*_`]*[ \t]*",
    re.IGNORECASE | re.MULTILINE,
)
"""A numbered item: at most two words before a number, only "query" before a letter ("hepatitis B" is none)."""
_NUMBERS = {"a": 1, "b": 2, "c": 3, "d": 4, "i": 1, "ii": 2, "iii": 3}
NOTHING_FOUND = "Your last answer found no documents: it did not keep to the form, or nothing matched it."


def read_parts(text: str, labels: Sequence[str]) -> Parsed:
    """Parse one answer into its parts, each on one line. Never raises: a format error is returned as a failure."""
    text = without_end_of_turn(text)
    if not is_unicode(text):
        return Parsed(failure="invalid unicode")
    think, answer, failure = without_think(text)
    if failure or not answer:
        return Parsed(think, failure=failure or "empty answer")
    marks = split_at_labels(answer, labels, strict=True)
    actual = [label for label, _ in marks]
    if set(actual) != set(labels):
        return Parsed(think, failure="missing part")
    if len(actual) > len(labels):
        return Parsed(think, failure="repeated part")
    if actual != list(labels):
        return Parsed(think, failure="parts out of order")
    if not label_pattern(labels[0], strict=True).match(answer) or any(_BLANK.search(body.strip()) for _, body in marks):
        return Parsed(think, failure="text outside parts")
    texts = tuple(" ".join(body.split()) for _, body in marks)
    empty = any(not text or is_placeholder(text) for text in texts)
    return Parsed(think, failure="empty part") if empty else Parsed(think, texts)


def read_labelled(text: str, labels: Sequence[str], long: bool = False) -> Parsed:
    """The parts of a prompted model's answer, each on one line; `long` parts may have several paragraphs."""
    split = answer_of(text)
    if split.failure or not is_unicode(split.answer):
        return Parsed(split.thinking, failure=split.failure or "invalid unicode")
    texts, failure = list[str](), ""
    for answer in dict.fromkeys((_FINAL.split(split.answer)[-1], split.answer)):
        if not texts:
            texts, failure = _parts_of(answer, labels, long)
    if not texts:
        return Parsed(split.thinking, failure=REFUSAL if is_refusal(split.answer) else failure)
    heads = [_PURPOSE.match(part) for part in texts]
    if len(texts) > 1 and all(heads):  # each part begins with what it is for: "[support] …"
        texts = [part[head.end() :] for part, head in zip(texts, heads, strict=True) if head]
    if any(not part or is_placeholder(part) or is_refusal(part) for part in texts):
        return Parsed(split.thinking, failure="empty part")
    return Parsed(split.thinking, tuple(texts))


def _parts_of(text: str, labels: Sequence[str], long: bool) -> tuple[list[str], str]:
    """The parts, or what is wrong."""
    if texts := _in_values(text, labels):
        return texts, ""
    body = without_fences(text)
    if body.startswith(labels[0]):  # all parts may stand on one line
        body = re.sub(rf"(?<=\S)[;,→ \t]+(?=(?:{'|'.join(map(re.escape, labels))})[:：])", "\n", body)
    parts = {(number, _part(part, long)) for number, part in _marks(body, labels)}
    by_number = dict(parts)
    if len(parts) > len(by_number) or len(by_number) > len(labels):
        return [], "too many parts" if len(by_number) > len(labels) else "repeated part"
    complete = len(by_number) == len(labels)
    return [by_number[number] for number in sorted(by_number)] if complete else [], "missing part"


def _in_values(text: str, labels: Sequence[str]) -> list[str]:
    """The parts of the only JSON object with a key for each, list or run of tags with as many texts; else []."""
    candidates: list[list[str]] = []
    values = find_values(text)
    tags = [body for name, body in _TAG.findall(text) if _ASKS.search(name)]
    for value in [*values, values, tags, _column(text)]:
        if isinstance(value, dict):
            by_key = {plain(key): item for key, item in value.items()}
            listed = next(
                (item for key, item in value.items() if _ASKS.search(key) and not isinstance(item, str)), value
            )
            parts = [by_key.get(plain(label)) for label in labels]
            value = parts if None not in parts else list(listed.values()) if isinstance(listed, dict) else listed
        texts = [_query_in(item) if isinstance(item, dict) else item for item in value or ()]
        if len(texts) == len(labels) and all(isinstance(item, str) for item in texts):
            candidates.append([unquoted(" ".join(str(item).split())) for item in texts])
    return candidates[0] if candidates and all(texts == candidates[0] for texts in candidates) else []


def _column(text: str) -> list[str]:
    """The cells of a table's column of queries."""
    rows = [[cell.strip(" *`") for cell in row.split("|")] for row in _ROW.findall(text)]
    if len(rows) < 3:
        return []
    matching = [number for number, head in enumerate(rows[0]) if _ASKS.search(head)]
    column = next((number for number in matching if not rows[2][number].isdigit()), len(rows[0]) - 1)
    return [row[column] for row in rows[2:] if matching and len(row) == len(rows[0])]


def _query_in(item: Mapping[str, object]) -> object:
    return next((value for key, value in item.items() if _ASKS.search(key) or key in ("text", "content")), None)


def _marks(text: str, labels: Sequence[str]) -> list[tuple[int, str]]:
    """The number of each part, from 0, and the text behind its label; else the items of a list numbered from 1, if what
    is written before it announces queries."""
    following = re.sub(r"\d+$", lambda number: str(int(number[0]) + 1), labels[-1])  # one too many
    all_labels = list(dict.fromkeys([*labels, following]))
    marks = [(all_labels.index(label), part) for label, part in split_at_labels(text, all_labels)]
    if marks or following == labels[-1]:
        return marks
    lines = [line for line in text.splitlines() if line.strip()]
    pieces = lines[-1].split(";") if 0 < len(lines) < 3 and not lines[-1].endswith(".") else []
    if len(pieces) == len(labels) > 2 and ":" not in pieces[0]:
        return [(n, _BULLET.sub("", re.sub(r"^ *\d+[.)]", "", piece))) for n, piece in enumerate(pieces)]
    numbers = list(_NUMBERED.finditer(text))
    intro = text[: numbers[0].start()].strip().splitlines() if numbers else []
    if not numbers:
        announced = bool(lines) and lines[0].endswith(":") and _ASKS.search(lines[0]) is not None
        listed = lines[1:] if announced else lines
        bulleted = all(map(_BULLET.match, listed))
        return [(n, _BULLET.sub("", line)) for n, line in enumerate(listed)] if announced or bulleted else []
    if intro and len(intro[-1].split()) > 1 and not numbers[0]["name"] and not _ASKS.search(intro[-1] + numbers[0][0]):
        return []
    ends = [*(mark.start() for mark in numbers), len(text)][1:]
    positions = [int(mark["number"] or _NUMBERS[mark["letter"].lower()]) for mark in numbers]
    return [(n - 1, text[mark.end() : end]) for n, mark, end in zip(positions, numbers, ends, strict=True)]


def _part(body: str, long: bool) -> str:
    """The text of a part on one line: its first line, or its paragraphs without closing remarks."""
    if not long:
        lines = [line.strip() for line in body.splitlines() if re.search(r"\w", line)]
        titled = len(lines) > 1 and lines[0].endswith("**") and lines[0].count("**") == 1
        line = unquoted(_TITLE.sub("", (lines or [""])[titled]))
        return unquoted(line.removesuffix("**")) if line.count("**") == 1 else line
    blocks = paragraphs(body)
    while len(blocks) > 1 and is_remark(blocks[-1]):
        blocks.pop()
    return unquoted(" ".join(" ".join(blocks).split()))


def form_of(labels: Sequence[str], field_hints: Sequence[str]) -> str:
    """The sentence that asks for the form, for the end of a prompt; `field_hints` describes each part."""
    lines = "\n".join(f"{label}: <{description}>" for label, description in zip(labels, field_hints, strict=True))
    return f"Write plain text in exactly this form and nothing else, each part on a line of its own:\n{lines}"


@dataclass(eq=False)
class PartsRewriter:
    """A rewriter whose answers are labelled parts."""

    name: str
    version: str
    """The version of the prompt's wording."""
    labels: tuple[str, ...]
    task: Callable[[Question], str]
    """The prompt without the form; it contains the question."""
    field_hints: tuple[str, ...]
    """A description of each part."""
    plan: Callable[[Question, Sequence[str]], SearchPlan]
    """The plan of a question and the texts of the parts."""
    example: tuple[Question, tuple[str, ...]] | None = None
    """A question and the parts of a good answer."""
    again: str = "Answer once more, and better, in the same form."
    """The instruction of later turns, before the form."""
    options: bool = True
    """Whether later turns show the question's answer options, if any, as `task` does."""
    long: bool = False
    """Whether a part may have several paragraphs."""

    @property
    def opening(self) -> str:
        """The first label, which never varies."""
        return f"{self.labels[0]}:"

    def first(self, question: Question) -> list[Message]:
        """One user message, for chat templates without a system role."""
        return [Message(role="user", content=f"{self.task(question)}\n\n{form_of(self.labels, self.field_hints)}")]

    def first_with_example(self, question: Question) -> list[Message]:
        if self.example is None:
            return self.first(question)
        example_question, texts = self.example
        answer = "\n".join(f"{label}: {text}" for label, text in zip(self.labels, texts, strict=True))
        return [*self.first(example_question), Message(role="assistant", content=answer), *self.first(question)]

    def follow_up(self, question: Question, documents: Sequence[Document], turn: int) -> str:
        """The ranked documents, and the same task again."""
        feedback = describe_results(documents) if documents else NOTHING_FOUND
        instruction = f"{self.again}\n{form_of(self.labels, self.field_hints)}"
        return f"{feedback}\n\n{instruction}\n\n{case_text(question, self.options)}"

    def parse(self, question: Question, text: str, turn: int) -> Rewrite:
        """Parse the text sampled in one turn after its opening; the model may repeat the first label."""
        text_starts = text.lstrip()
        has_opening = label_pattern(self.labels[0], strict=True).match(text_starts) or text_starts.startswith("<think>")
        parsed = read_parts(text if has_opening else f"{self.opening} {text}", self.labels)
        return planned(question, parsed, self.plan)

    def read(self, question: Question, text: str, turn: int) -> Rewrite:
        return planned(question, read_labelled(text, self.labels, self.long), self.plan)
