"""A method of several stages: it asks a model, searches, asks again, and ends with the documents to read.

A method handles one question and is written as a generator: it yields a step (`PromptStep`, `AskForm`, `SearchStep`,
`ScoreStep`) and receives its outcome, so the code has the order of the paper. Steps that do not depend on each other,
such as the judgements of several documents, are yielded as a list, and a list of outcomes comes back. The runner
(methods/runner.py) advances many questions side by side, so that their prompts and plans travel in batches. A method
holds no model and no retriever.

    def steps(self, question):
        draft = yield PromptStep(prompt(question), SamplingParams(max_tokens=256))
        if draft is None:
            return Outcome(failure=MISSING)
        ranking = yield SearchStep(SearchPlan.of(draft.texts[0].text, k=15))
        return Outcome(documents=ranking.documents, plan=ranking.plan)

A missing outcome is None, never an empty text or list. A method that cannot go on returns an Outcome with `failure`,
which is counted and never scored as 0.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..configs.methods import AskingConfig
from ..data.types import Document, Question
from ..envs.plan import SearchPlan
from ..llms.base import Message, Prompt, SamplingParams
from ..llms.structured import AskForm, Role

MISSING = "no reply"
"""The failure of a method whose model did not reply."""
GARBLED = "not of the form that was asked for"
"""The reason of a reply that was not of its form, even after one repair."""
NO_RANKING = "no ranking"
"""The failure of a method whose retriever did not answer."""
ANSWER = "answer"
"""The stage in which a method writes its answer."""


@dataclass(frozen=True, slots=True)
class PromptStep:
    """One prompt; the answer is a `llms.base.LlmResponse`, or None where it is missing."""

    prompt: Prompt
    draw: SamplingParams
    role: Role = "writer"
    small: Prompt | None = None
    """The same prompt with an example, for small models: asked instead where forms are written as lines."""
    more: tuple[Message, ...] = ()
    """Messages that follow the prompt: an answer to it, and the request for another one."""


@dataclass(frozen=True, slots=True)
class SearchStep:
    """One plan; the answer is `SearchResults`, or None where the retriever did not answer before its deadline."""

    plan: SearchPlan
    source: str = ""
    """The knowledge base to search; "" is the only one, or the first."""


@dataclass(frozen=True, slots=True)
class ScoreStep:
    """A question and documents to score with a cross-encoder; the answer is a score for each document, best highest."""

    question: str
    documents: Sequence[Document]


@dataclass(frozen=True, slots=True)
class SearchResults:
    """The ranking of a plan, best first."""

    plan: SearchPlan
    documents: tuple[Document, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a method ended."""

    documents: tuple[Document, ...] = ()
    """The context for the reader, in display order."""
    plan: SearchPlan | None = None
    """The plan whose ranking the documents are, if it is a single plan: only then can nDCG score it."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Intermediate results as plain data: hypotheses, queries, judgements. `cut` lists the stages whose text was cut
    off at its limit."""
    failure: str = ""
    """Why there is nothing to read; "" if the method finished. No documents without a failure is a valid outcome."""
    answer: str | None = None
    """The final answer, for methods that write it themselves."""


Step = PromptStep | AskForm | SearchStep | ScoreStep
Steps = Generator[Step | Sequence[Step], Any, Outcome]


def draw_of(settings: AskingConfig, n: int = 1) -> SamplingParams:
    """How `n` answers to a prompt of a method with these settings are sampled."""
    return SamplingParams(n, settings.temperature, max_tokens=settings.max_tokens)


class Method(Protocol):
    """One published method that finds the context of a question."""

    @property
    def name(self) -> str:
        """The name under which a configuration asks for it."""

    @property
    def versions(self) -> Sequence[str]:
        """The versions of its prompts, raised when their wording changes. Records of other versions are not reused."""

    def steps(self, question: Question) -> Steps:
        """The stages for one question."""
