"""What the reader is asked: the documents, the question, and the form of the answer."""

from collections.abc import Sequence

from ...data.types import Document, Question
from ...llms.base import Message, Prompt
from .metrics import letter

VERSION = "answers-1"
"""To be raised with every change of the wording: it stands in every result."""

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
    """One user message, for chat templates without a system role; `words` are kept of each document."""
    parts = [DOCUMENTS if documents else ALONE]
    parts += [f"[{place}] {shortened(document, words)}" for place, document in enumerate(documents, start=1)]
    options = [f"{letter(place)}. {option}" for place, option in enumerate(question.options)]
    parts += ["\n".join([f"Question: {question.text}", *options]), CHOICE if options else SHORT]
    return Prompt((Message(role="user", content="\n\n".join(parts)),), VERSION)


def shortened(document: Document, words: int) -> str:
    """Title and text on one line, in at most `words` words."""
    kept = ": ".join(part for part in (document.title, document.text) if part).split()
    return " ".join(kept[:words]) + ("…" if len(kept) > words else "")
