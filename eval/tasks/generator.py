"""The prompts with which the reader answers, one for all methods of a task, and what is read out of its answer.

Multiple choice: step by step and then a letter, as one JSON object (the MIRAGE template of seed 000, figures 3 and 12;
seed 001, section 3.3). Open questions: a short answer, or one after some thinking (seed 004, section 3.2). Content
questions: a few sentences from the documents alone, or a refusal (seed 002, appendix H.3). The words are this
project's own. Without documents a prompt does not speak of any.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...data.types import Document, Question
from ...llms.base import Message, Prompt
from ...llms.structured import without_thinking
from ..answers.metrics import chosen, letter
from ..answers.prompt import CHOICE, SHORT, shortened

VERSION = "generator-1"
"""To be raised with every change of the wording: it stands in every result."""

Style = Literal["reasoned", "short", "grounded"]
"""`reasoned` thinks first, `short` answers at once, `grounded` keeps to the documents."""

_EXPERT = "You are a careful {field} expert. "
_TASK = "Answer the question below."
_FROM = "Answer the question below with the help of the documents before it, which a search found for it."
_THINK_CHOICE = (
    "Think step by step first, then choose one of the options; you have to choose. Answer with one JSON object and "
    'nothing else: {"step_by_step_thinking": "your thoughts", "answer_choice": "the letter of one option"}'
)
_THINK_SHORT = (
    "Let's think step by step. End with one line of this form, with the shortest answer that is complete:\nAnswer: …"
)
_GROUNDED = (
    "Use nothing but the documents. Think about them, then answer in 3 to 6 short sentences, kindly and encouragingly, "
    "without saying that there are documents. Make nothing up: where they do not hold the answer, write 'I cannot "
    "determine the answer to that.', and where there are none, 'I do not know the answer to that.'"
)
_NONE_FOUND = "(no document was found)"

_CHOICE_TEXT = re.compile(r'"answer_choice"\s*:\s*"((?:[^"\\]|\\.)*)"')
_CHOICE_BARE = re.compile(r'"answer_choice"\s*:\s*\(?([A-Za-z])\b')
_ANSWER_LINE = re.compile(r"^\W*answer\W*[:：]\s*(\S.*)$", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Answered:
    """What the reader's text says."""

    answer: str
    """The answer alone: the whole text where nothing marks it."""
    choice: int | None = None
    """Multiple choice: the place of the option that it names; None where it names none, which is a wrong answer."""
    marked: bool = True
    """Whether the answer stood where it was asked for."""


def generator_prompt(
    question: Question, documents: Sequence[Document], style: Style, words: int, field: str = ""
) -> Prompt:
    """One user message; `words` are kept of each document, `field` says what the expert is of."""
    shown = [f"[{place}] {shortened(document, words)}" for place, document in enumerate(documents, start=1)]
    if style == "grounded" and not shown:
        shown = [_NONE_FOUND]
    options = [f"{letter(place)}. {option}" for place, option in enumerate(question.options)]
    parts = [
        (_EXPERT.format(field=field) if field else "") + (_FROM if shown else _TASK),
        *(["Documents:\n" + "\n\n".join(shown)] if shown else []),
        "\n".join([f"Question: {question.text}", *options]),
        _form(bool(options), style),
    ]
    return Prompt((Message(role="user", content="\n\n".join(parts)),), f"{VERSION}/{style}")


def read_answer(text: str, question: Question, style: Style) -> Answered:
    """Read the reader's text for a question; thinking in <think> tags is taken off first."""
    said = without_thinking(text).strip()
    if question.options:
        return _choice(said, question.options, style)
    if style == "reasoned":
        lines = _ANSWER_LINE.findall(said)
        return Answered(lines[-1].strip().strip("*").strip()) if lines else Answered(said, marked=False)
    return Answered(said)


def _form(choice: bool, style: Style) -> str:
    if style == "grounded":
        return _GROUNDED
    if style == "reasoned":
        return _THINK_CHOICE if choice else _THINK_SHORT
    return CHOICE if choice else SHORT


def _choice(said: str, options: Sequence[str], style: Style) -> Answered:
    named = _CHOICE_TEXT.findall(said)
    bare = _CHOICE_BARE.findall(said)
    if named:
        text = _unescaped(named[-1])
        return Answered(text, chosen(text, options))
    if bare:
        return Answered(bare[-1], chosen(bare[-1], options))
    return Answered(said, chosen(said, options), marked=style != "reasoned")


def _unescaped(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return text
