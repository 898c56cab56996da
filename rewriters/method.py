"""A method of several stages: it asks a model, searches, asks again, and ends with the documents to read.

A method sees one question and is written as a generator: it yields what it wants next (`Ask`, `AskForm`, `Search`,
`Score`) and is given the outcome, in the order in which it reads on paper. What does not wait for another answer, as
the judgements of several documents, it yields as a list, and is given a list. Whoever runs it (eval/methods.py)
advances many questions side by side, so that their prompts and plans travel in batches. A method holds no model and no
retriever.

    def steps(self, question):
        draft = yield Ask(prompt(question), Draw(max_tokens=256))
        if draft is None:
            return Outcome(failure=MISSING)
        found = yield Search(SearchPlan.of(draft.texts[0].text, k=15))
        return Outcome(documents=found.documents, plan=found.plan)

What did not come is None and never an empty text or list; a method that cannot go on returns an Outcome with `failure`,
which is counted and never scored as 0.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import BaseModel

from ..data.types import Document, Question
from ..envs.plan import SearchPlan
from ..llms.base import Draw, Prompt
from ..llms.structured import FormPrompt

MISSING = "no reply"
"""The failure of a method whose model did not reply."""
NO_RANKING = "no ranking"
"""The failure of a method whose retriever did not answer."""
ANSWER = "answer"
"""The stage in which a method writes its answer."""

Role = Literal["writer", "reader"]
"""Which model is asked, where two are given: the reader writes answers and drafts of them, the writer all else."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One prompt; the answer is a `llms.base.Reply`, or None where it is missing."""

    prompt: Prompt
    draw: Draw
    role: Role = "writer"
    small: Prompt | None = None
    """The same with an example, for small models: what is asked where forms are written as lines."""


@dataclass(frozen=True, slots=True)
class AskForm:
    """One prompt for an answer of a fixed form; the answer is a `llms.structured.Structured`.

    How it is written, as JSON or as lines, is for whoever runs the method to say; a plain `Prompt` asks for JSON.
    """

    prompt: Prompt | FormPrompt
    form: type[BaseModel]
    draw: Draw
    role: Role = "writer"


@dataclass(frozen=True, slots=True)
class Search:
    """One plan; the answer is `Found`, or None where the retriever did not answer before its deadline."""

    plan: SearchPlan
    source: str = ""
    """The knowledge base to search; "" is the only one, or the first."""


@dataclass(frozen=True, slots=True)
class Score:
    """A question beside each of some documents, for a cross-encoder; the answer is a score for each, best highest."""

    question: str
    documents: Sequence[Document]


@dataclass(frozen=True, slots=True)
class Found:
    """What came back for a plan, best first."""

    plan: SearchPlan
    documents: tuple[Document, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a method ended."""

    documents: tuple[Document, ...] = ()
    """The context for the reader, in the order in which it is shown."""
    plan: SearchPlan | None = None
    """The plan whose ranking the documents are, where it is one plan: it can be scored by nDCG."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What was said on the way, as plain data: hypotheses, queries, judgements. `cut` holds the stages whose text was
    cut off at its limit."""
    failure: str = ""
    """Why there is nothing to read; "" where the method came to its end. No documents and no failure is an answer."""
    answer: str | None = None
    """The final answer, of methods that write it themselves."""


Step = Ask | AskForm | Search | Score
Steps = Generator[Step | Sequence[Step], Any, Outcome]


class Method(Protocol):
    """One published way from a question to a context."""

    @property
    def name(self) -> str:
        """The name under which a configuration asks for it."""
        ...

    @property
    def versions(self) -> Sequence[str]:
        """Of its prompts: raised with their wording. Known records of other versions are not taken."""
        ...

    def steps(self, question: Question) -> Steps:
        """The stages for one question."""
        ...
