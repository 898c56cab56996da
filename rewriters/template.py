"""Most rewriters: a prompt for one form of answer, and the plan of its parts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..data.types import Document, Question
from ..llms.base import Message
from .base import Rewrite, RewritingStrategy
from .case import case_text, one_line
from .forms import Form, Parsed
from .plans import Plan

NOTHING_FOUND = (
    "Your last answer found no documents: it did not keep to the form, or nothing matched it. Write another one."
)


@dataclass(frozen=True)
class TemplateRewriter(RewritingStrategy):
    """One user message carries the task and the question, for chat templates without a system role."""

    name: str
    form: Form
    prompt: Callable[[Question, str], str]
    """The first message, from the question and the request for the form."""
    plan: Plan
    again: str = "Answer once more, and better, in the same form."
    """The instruction of later turns."""
    options: bool = True
    """Whether later turns show the question's answer options, if any."""
    joins: bool = False

    @property
    def opening(self) -> str:
        return self.form.opening

    def first(self, question: Question) -> list[Message]:
        return [Message(role="user", content=self.prompt(question, self.form.request))]

    def follow_up(self, question: Question, documents: Sequence[Document], turn: int) -> str:
        """The ranked documents, numbered from 1, and the request for a better answer."""
        feedback = [describe_results(documents), self.again] if documents else [NOTHING_FOUND]
        return "\n\n".join(filter(None, [*feedback, self.form.request, case_text(question, self.options)]))

    def parse(self, question: Question, text: str, turn: int) -> Rewrite:
        return planned(question, self.form.parse(text), self.plan)

    def read(self, question: Question, text: str, turn: int) -> Rewrite:
        return planned(question, self.form.read(text), self.plan)

    def join(self, question: Question, rewrites: Sequence[Rewrite]) -> Rewrite:
        texts = tuple(text for rewrite in rewrites for text in rewrite.rewrites)
        return Rewrite(self.plan(question, texts), rewrites=texts) if texts else rewrites[0]


def planned(question: Question, parsed: Parsed, plan: Plan) -> Rewrite:
    """A parsed answer with the plan of its parts."""
    search = None if parsed.failure else plan(question, parsed.parts)
    return Rewrite(search, parsed.think, parsed.parts, parsed.failure)


def describe_results(documents: Sequence[Document]) -> str:
    """The documents of the previous turn, best first, one per line, as feedback for the model."""
    lines = "\n".join(f"[{number}] {one_line(document)}" for number, document in enumerate(documents, start=1))
    return (
        f"Your last answer brought up these documents, the best match first:\n{lines}\n\n"
        "They may or may not hold what is asked for. Look at how documents in this collection are written, which names "
        "and terms they use, and which part of the question is still not met."
    )
