"""How a reader is asked, and how its answers are read.

`reader_prompt` is that of `querylect answers`, `generator_prompt` that of all methods of a paper's task. Its multiple
choice: step by step and then a letter, as one JSON object (the MIRAGE template of the HCQR paper, figures 3 and 12; the
CHR paper, section 3.3). Open questions: a short answer, or one after some thinking (the Misknow-RAG paper, section
3.2). Content questions: a few sentences from the documents alone, or a refusal (the QB-RAG paper, appendix H.3). The
wording is this project's own.
Without documents the prompts do not mention any.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ...configs.paper import Style
from ...data.types import Document, Question
from ...llms.base import Message, Prompt
from ...llms.prose import behind_marks, marked_answers, without_end_of_turn, without_thinking
from ...rewriters.case import case_text, one_line
from .choice import choice_fields, chosen

ANSWERS_VERSION, GENERATOR_VERSION = "answers-1", "generator-1"
"""Of the two prompts. Increase with every change of the wording: every result records it."""

_SHORT = (
    "Answer with the shortest text that is complete, such as a name, a date, a number or a few words, and write "
    "nothing else."
)
_CHOICE = "Answer with the letter of the right option and write nothing else."
_DOCUMENTS = (
    "Answer the question. These documents were found for it, the best match first; they may or may not hold the answer."
)
_ALONE = "Answer the question from what you know."

_EXPERT = "You are a careful {field} expert. "
_TASK = "Answer the question below."
_TASK_WITH_DOCUMENTS = (
    "Answer the question below with the help of the documents before it, which a search found for it."
)
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


@dataclass(frozen=True, slots=True)
class ReaderAnswer:
    """The parsed answer of the reader."""

    answer: str
    """The answer alone, or the full text where no marker is found."""
    choice: int | None = None
    """Multiple choice: the index of the named option; None where none is named, which counts as wrong."""


def reader_prompt(question: Question, documents: Sequence[Document], words: int) -> Prompt:
    """One user message, for chat templates without a system role; each document is cut to `words` words."""
    passages = numbered(documents, words)
    parts = [_DOCUMENTS if documents else _ALONE]
    parts += [*passages, case_text(question), _CHOICE if question.options else _SHORT]
    return Prompt((Message(role="user", content="\n\n".join(parts)),), ANSWERS_VERSION)


def generator_prompt(
    question: Question, documents: Sequence[Document], style: Style, words: int, field: str = ""
) -> Prompt:
    """One user message; each document is cut to `words` words, `field` is the expert's field."""
    passages = numbered(documents, words)
    if style == "grounded" and not passages:
        passages = [_NONE_FOUND]
    parts = [
        (_EXPERT.format(field=field) if field else "") + (_TASK_WITH_DOCUMENTS if passages else _TASK),
        *(["Documents:\n" + "\n\n".join(passages)] if passages else []),
        case_text(question),
        _instruction(bool(question.options), style),
    ]
    return Prompt((Message(role="user", content="\n\n".join(parts)),), f"{GENERATOR_VERSION}/{style}")


def read_answer(text: str, question: Question, style: Style) -> ReaderAnswer:
    """Parse the reader's text for a question, after removing thinking in <think> tags."""
    reply = without_end_of_turn(without_thinking(text))
    if question.options:
        return ReaderAnswer((choice_fields(reply) or [reply])[-1], chosen(reply, question.options))
    if style == "short":  # small models go on after it, with questions and answers of their own
        return ReaderAnswer(behind_marks(reply))
    return ReaderAnswer([reply, *(marked_answers(reply) if style == "reasoned" else [])][-1])


def numbered(documents: Sequence[Document], words: int) -> list[str]:
    """Each document on a line with its number."""
    return [f"[{number}] {shortened(document, words)}" for number, document in enumerate(documents, start=1)]


def shortened(document: Document, words: int) -> str:
    """Title and text on one line, in at most `words` words."""
    tokens = one_line(document).split()
    return " ".join(tokens[:words]) + ("…" if len(tokens) > words else "")


def _instruction(choice: bool, style: Style) -> str:
    if style == "grounded":
        return _GROUNDED
    if style == "reasoned":
        return _THINK_CHOICE if choice else _THINK_SHORT
    return _CHOICE if choice else _SHORT
