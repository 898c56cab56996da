"""The forms of an answer: how a prompt asks for one, and the parsers that read its parts.

A parser gets the text sampled in one turn and never the prompt, so tags in instructions, examples or documents earn
nothing. `parse` is strict, for a policy in training. `read` is for prompted models: it skips their thinking and what
they write around the form. None of them raises: a format error is returned as a failure.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..llms.base import THINK_CLOSE, THINK_OPEN
from ..llms.prose import answer_of, passage_of, without_end_of_turn

REWRITE_OPEN, REWRITE_CLOSE = "<rewrite>", "</rewrite>"
MAX_REWRITES = 4
TAGS = (THINK_OPEN, THINK_CLOSE, REWRITE_OPEN, REWRITE_CLOSE)
EXAMPLE_REWRITE = "what the retriever gets"
ONE_REWRITE = f"Give exactly one {REWRITE_OPEN} part."

_REWRITE = re.compile(r"<rewrite>(.*?)</rewrite>", re.DOTALL | re.IGNORECASE)
_BLANK = re.compile(r"\n[ \t]*\n")
_PLACEHOLDER = re.compile(r"<[^<>]*>|…|\.{3}")
"""A part that was copied from the request."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """The parts of an answer, stripped of surrounding whitespace. `parts` is empty exactly if parsing failed."""

    think: str = ""
    parts: tuple[str, ...] = ()
    failure: str = ""
    """Why parsing failed, in two or three words; "" if it did not."""


class Form(ABC):
    """One form of an answer."""

    @property
    def request(self) -> str:
        """The sentence that asks for the form; "" where the task says it."""
        return ""

    @property
    def opening(self) -> str:
        """What every answer begins with, given to a policy instead of sampled."""
        return ""

    def parse(self, text: str) -> Parsed:
        """Parse what a policy sampled after the opening."""
        return self._parse(without_end_of_turn(text))

    def read(self, text: str) -> Parsed:
        """Parse the whole answer of a prompted model."""
        split = answer_of(text)
        if split.failure:
            return Parsed(split.thinking, failure=split.failure)
        return replace(self.parse(self._strip(split.answer)), think=split.thinking)

    @abstractmethod
    def _parse(self, text: str) -> Parsed: ...

    @abstractmethod
    def _strip(self, answer: str) -> str:
        """An answer of the form without what stands around its parts."""


@dataclass(frozen=True, slots=True)
class TagForm(Form):
    """One `<think>` part (may be empty), then one or more `<rewrite>` parts, with whitespace between them alone.

    A think part ends at the first `</think>`; a rewrite ends at the first `</rewrite>` and may hold anything but the
    four tags themselves: `p < 0.05` and `</b>` are text.
    """

    reason: str = ""
    """What the think part should be about."""
    count: str = ONE_REWRITE
    """How many rewrites an answer should hold."""
    most: int = MAX_REWRITES
    """Rewrites of an answer; more is a format failure."""

    @property
    def request(self) -> str:
        return (
            f"Reason first, between {THINK_OPEN} and {THINK_CLOSE}: {self.reason}. Then write the query between "
            f"{REWRITE_OPEN} and {REWRITE_CLOSE}: only the query, none of the reasoning. {self.count} Write nothing "
            f"outside of these parts:\n{render('how you arrive at the rewrite', [EXAMPLE_REWRITE])}"
        )

    def _parse(self, text: str) -> Parsed:
        if not text:
            return Parsed(failure="empty answer")
        if not text.startswith(THINK_OPEN):
            return Parsed(failure="text outside tags" if THINK_OPEN in text else "missing think")
        think, closed, remaining = text.removeprefix(THINK_OPEN).partition(THINK_CLOSE)
        think, remaining = think.strip(), remaining.lstrip()
        if not closed:
            return Parsed(failure="unclosed think")
        rewrites: list[str] = []
        while remaining.startswith(REWRITE_OPEN):
            body, closed, remaining = remaining.removeprefix(REWRITE_OPEN).partition(REWRITE_CLOSE)
            body, remaining = body.strip(), remaining.lstrip()
            if any(tag in body for tag in TAGS):
                return Parsed(think, failure="nested tag")
            if not closed or not body:
                return Parsed(think, failure="empty rewrite" if closed else "unclosed rewrite")
            if len(rewrites) == self.most:
                return Parsed(think, failure="too many rewrites")
            rewrites.append(body)
        if remaining and (rewrites or REWRITE_OPEN in remaining):
            return Parsed(think, failure="text outside tags")
        return Parsed(think, tuple(rewrites)) if rewrites else Parsed(think, failure="missing rewrite")

    def _strip(self, answer: str) -> str:
        bodies = (" ".join(body.split()) for body in _REWRITE.findall(answer))
        return render("", [body for body in dict.fromkeys(bodies) if body != EXAMPLE_REWRITE])


@dataclass(frozen=True, slots=True)
class LineForm(Form):
    """Labelled parts, each beginning with its label at the start of a line (`Query 1: …`): every label once and in
    order, after an optional think part, and nothing else.

    Markup around a label (`**Query 1:**`) is skipped; a part may span several lines, without a blank one. Nothing needs
    escaping, so a model of some hundred million parameters can learn the form from the reward.
    """

    parts: Mapping[str, str]
    """A description of each part by its label."""

    @property
    def request(self) -> str:
        lines = "\n".join(f"{label}: <{description}>" for label, description in self.parts.items())
        return f"Write plain text in exactly this form and nothing else, each part on a line of its own:\n{lines}"

    @property
    def opening(self) -> str:
        """The first label, which never varies."""
        return f"{next(iter(self.parts))}:"

    def _parse(self, text: str) -> Parsed:
        think, answer, closed = split_think(text)
        if not closed:
            return Parsed(think, failure="unclosed think")
        preamble, marks = self._split(answer)
        if preamble and not text.startswith(THINK_OPEN):
            # The model may repeat the opening, which is not part of `text`.
            preamble, marks = self._split(f"{self.opening} {answer}")
        labels, bodies = [label for label, _ in marks], [body for _, body in marks]
        if set(labels) != set(self.parts):
            return Parsed(think, failure="missing part")
        if labels != list(self.parts):
            return Parsed(think, failure="repeated part" if len(labels) > len(self.parts) else "parts out of order")
        if preamble or any(_BLANK.search(body) for body in bodies):
            return Parsed(think, failure="text outside parts")
        texts = tuple(" ".join(body.split()) for body in bodies)
        empty = any(not text or _PLACEHOLDER.fullmatch(text) for text in texts)
        return Parsed(think, failure="empty part") if empty else Parsed(think, texts)

    def _strip(self, answer: str) -> str:
        _, marks = self._split(answer.replace("```", "\n\n"))
        return "\n".join(f"{label}: {_BLANK.split(body)[0]}" for label, body in marks)

    def _split(self, text: str) -> tuple[str, list[tuple[str, str]]]:
        """The text before the first label, and each label with the text up to the next one."""
        words = {label: "[ _]".join(map(re.escape, re.split("[ _]", label))) for label in self.parts}
        pattern = rf"^[ \t>#*_-]*(?:{'|'.join(f'({label})' for label in words.values())})[ \t*_]*[:：][ \t*_]*"
        marks = list(re.finditer(pattern, text, re.IGNORECASE | re.MULTILINE))
        ends = [*(mark.start() for mark in marks), len(text)][1:]
        labels = list(self.parts)
        split = [
            (labels[(mark.lastindex or 1) - 1], text[mark.end() : end].strip())
            for mark, end in zip(marks, ends, strict=True)
        ]
        return text[: marks[0].start()].strip() if marks else text, split


@dataclass(frozen=True, slots=True)
class PassageForm(Form):
    """The whole answer is the one part, after an optional think part: no form is required, so a model cannot learn it,
    only what to write."""

    def _parse(self, text: str) -> Parsed:
        think, body, closed = split_think(text)
        if not closed:
            return Parsed(think, failure="unclosed think")
        return Parsed(think, (body,)) if body else Parsed(think, failure="empty answer")

    def _strip(self, answer: str) -> str:
        return passage_of(answer).answer


def render(think: str, rewrites: Sequence[str]) -> str:
    """An answer in tags, which `TagForm` reads back where no part contains a tag."""
    return f"{THINK_OPEN}{think}{THINK_CLOSE}" + "".join(f"{REWRITE_OPEN}{text}{REWRITE_CLOSE}" for text in rewrites)


def split_think(text: str) -> tuple[str, str, bool]:
    """The think part that a text begins with, what follows it, and whether the part ends."""
    if not text.startswith(THINK_OPEN):
        return "", text, True
    think, closed, answer = text.removeprefix(THINK_OPEN).partition(THINK_CLOSE)
    return think.strip(), answer.strip(), bool(closed)
