"""How a reader is asked, and how its answers are read.

Multiple choice: step by step and then a letter, as one JSON object (the MIRAGE template of the HCQR paper, figures 3
and 12; the CHR paper, section 3.3), or the letter alone. Open questions: a short answer, or one after some thinking
(the Misknow-RAG paper, section 3.2). Content questions: a few sentences from the documents alone, or a refusal (the
QB-RAG paper, appendix H.3). The wording is this project's own. Without documents the prompts do not mention any.
"""

import re
import string
from collections.abc import Sequence
from dataclasses import replace

from ...configs.paper import Style
from ...data.types import Document, Question
from ...errors import EngineUnavailableError
from ...llms.access import Llm
from ...llms.base import LlmResponse, Prompt
from ...llms.prose import boxed, without_end_of_turn, without_thinking
from ...methods.method import MISSING
from ...methods.prompts import numbered
from ...rewriters.case import case_text
from ..records import EvalRecord
from .metrics import normalise

PROMPT_VERSION = "reader-1"
"""Increase it with every change of the wording: every result records it."""

_TASK = "Answer the question below."
_TASK_WITH_DOCUMENTS = (
    "Answer the question below with the help of the documents before it, which a search found for it."
)
_INSTRUCTIONS = {
    (
        "short",
        False,
    ): "Answer with the shortest text that is complete, such as a name, a date, a number or a few words, "
    "and write nothing else.",
    ("short", True): "Answer with the letter of the right option and write nothing else.",
    ("reasoned", False): "Let's think step by step. End with one line of this form, with the shortest answer that is "
    "complete:\nAnswer: …",
    ("reasoned", True): "Think step by step first, then choose one of the options; you have to choose. Answer with one "
    'JSON object and nothing else: {"step_by_step_thinking": "your thoughts", "answer_choice": "the letter of one '
    'option"}',
    (
        "grounded",
        False,
    ): "Use nothing but the documents. Think about them, then answer in 3 to 6 short sentences, kindly "
    "and encouragingly, without saying that there are documents. Make nothing up: where they do not hold the answer, "
    "write 'I cannot determine the answer to that.', and where there are none, 'I do not know the answer to that.'",
}
"""By style, and whether there are options."""

_STATED = re.compile(
    r"(?:^[\W_]*(?:(?:so|thus|the|my|final|correct),? )*answer|answer_choice)\b[\"'*_ ]*(?:[:：]|is\b ?[:：]?)"
    r"[\"'*_ ]*\n?[\"'*_ ]*(?=(.*))",
    re.IGNORECASE | re.MULTILINE,
)
"""What follows "Answer:" or "The answer is" at the beginning of a line, or the JSON field of the prompt."""
_LETTER = re.compile(r"\W*(?:option )?([A-Z])(?=\s*(?:$|[).:,;\]\"'}]))", re.IGNORECASE | re.MULTILINE)


def reader_prompt(
    question: Question, documents: Sequence[Document], words: int, style: Style = "short", field: str = ""
) -> Prompt:
    """One user message, for chat templates without a system role; each document is cut to `words` words, `field` is the
    expert's field."""
    passages = f"Documents:\n{numbered(documents, words)}" if documents or style == "grounded" else ""
    parts = [
        (f"You are a careful {field} expert. " if field else "") + (_TASK_WITH_DOCUMENTS if passages else _TASK),
        passages,
        case_text(question),
        _INSTRUCTIONS[style, bool(question.options) and style != "grounded"],
    ]
    return Prompt.of("\n\n".join(filter(None, parts)))


def with_reply(record: EvalRecord, question: Question, reply: LlmResponse | None, style: Style = "short") -> EvalRecord:
    """The record with what the reader answered, not yet scored; with a failure where there was no reply."""
    if reply is None:
        return replace(record, failure=MISSING)
    text = reply.texts[0]
    return replace(
        record,
        answer=read_answer(text.text, question, style),
        text=text.text,
        cut=bool(record.cut) or not text.finished,
        reader_prompt_tokens=reply.prompt_tokens,
        reader_tokens=reply.tokens,
    )


def read_answer(text: str, question: Question, style: Style = "short") -> str:
    """The answer in a reader's text: without thinking; of an open question behind "Answer:", which begins a short
    answer and ends a reasoned one."""
    reply = without_end_of_turn(without_thinking(text))
    if question.options or style == "grounded":
        return reply
    if style == "short":  # small models go on after it, with questions and answers of their own
        while stated := _STATED.match(reply):
            reply = stated[1].strip(" *_\"'")
        return reply
    stated_answers = [statement.strip(" *_\"'") for statement in _STATED.findall(reply)]
    return next((statement for statement in reversed([*boxed(reply), *stated_answers]) if statement), reply)


def chosen(answer: str, options: Sequence[str]) -> int | None:
    """The index of the option that an answer names, by its letter or its words: in the last box, else behind the last
    "Answer:", else at the beginning. None where it names none, which counts as wrong."""
    answer = re.sub(r"[*`$]", "", answer)
    statement = (boxed(answer) or _STATED.findall(answer) or [answer])[-1]
    words = [normalise(option) for option in options]
    if words.count(normalise(statement)) == 1:
        return words.index(normalise(statement))
    letter = _LETTER.match(statement)
    index = string.ascii_uppercase.find(letter[1].upper()) if letter else -1
    return index if 0 <= index < len(options) else None


def reader_name(model: str) -> str:
    """The folder name of a reader: the last part of the model's name in letters, digits, dots, - and _."""
    last = re.split(r"[/:]", model.rstrip("/"))[-1]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip(".-") or "reader"


def refuse_silence(records: Sequence[EvalRecord], reader: Llm) -> None:
    """Raise EngineUnavailableError where every reply is missing."""
    if records and all(record.failure == MISSING for record in records):
        raise EngineUnavailableError(
            f"none of {len(records)} questions got a reply ({dict(reader.costs.missing)}); nothing was tabulated. "
            "Check the reader and run the same command again."
        )
