"""The reader's prompt: the documents, the question, and the form of the answer."""

from collections.abc import Sequence

from ...data.types import Document, Question
from ...llms.base import Message, Prompt
from .metrics import letter

VERSION = "answers-1"
"""Increase with every change of the wording: every result records it."""

SHORT = (
    "Answer with the shortest text that is complete, such as a name, a date, a number or a few words, and write "
    "nothing else."
)
CHOICE = "Answer with the letter of the right option and write nothing else."
DOCUMENTS = (
    "Answer the question. These documents were found for it, the best match first; they may or may not hold the answer."
)
ALONE = "Answer the question from what you know."


def reader_prompt(question: Question, documents: Sequence[Document], words: int) -> Prompt:
    """One user message, for chat templates without a system role; each document is cut to `words` words."""
    parts = [DOCUMENTS if documents else ALONE]
    parts += [f"[{i}] {shortened(document, words)}" for i, document in enumerate(documents, start=1)]
    options = [f"{letter(i)}. {option}" for i, option in enumerate(question.options)]
    parts += ["\n".join([f"Question: {question.text}", *options]), CHOICE if options else SHORT]
    return Prompt((Message(role="user", content="\n\n".join(parts)),), VERSION)


def shortened(document: Document, words: int) -> str:
    """Title and text on one line, in at most `words` words."""
    tokens = ": ".join(part for part in (document.title, document.text) if part).split()
    return " ".join(tokens[:words]) + ("…" if len(tokens) > words else "")
