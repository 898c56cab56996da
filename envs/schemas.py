"""What an environment is asked and answers: one model per request and response, over HTTP and in this process.

A response never holds a qrel. Both sides validate: an answer that does not fit these models is a failure of the
service, not a reward.
"""

from collections.abc import Sequence
from typing import Annotated, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt

from ..data.types import Document, Question, Utterance
from .plan import SearchPlan

PRIMARY_METRIC = "ndcg@10"
"""The metric that `reward` holds."""
MAX_WORK = 2**21
"""Most work of the plans of one request (`SearchPlan.work`): 128 plans with 16,384 characters each."""
MAX_K = 1000
"""Longest ranking that a rewriter is asked for."""
MAX_PAGE = 1000
"""Most questions on one page."""
MAX_QUESTION = 4000
"""Most characters of a question, and of each of its options, that a rewrite is generated for."""
MAX_OPTIONS = 26
"""Most options of such a question."""
MAX_HISTORY = 64
"""Most utterances before such a question."""
MAX_UTTERANCE = 16_000
"""Most characters of each of them."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
WithText = StrictBool | Annotated[StrictInt, Field(ge=0)]
UnitInterval = Annotated[float, Field(ge=0.0, le=1.0 + 1e-9, allow_inf_nan=False)]


class Wire(BaseModel):
    """Base of what a service answers: immutable; keys that a newer service adds are ignored."""

    model_config = ConfigDict(frozen=True)


class RequestBody(BaseModel):
    """Base of what a client asks: immutable; an unknown key is refused, so that a typo cannot pass unseen."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Step(RequestBody):
    """One rewrite of one question, as a plan."""

    question_id: str
    plan: SearchPlan


class SearchRequest(RequestBody):
    """Body of `POST /v1/search`."""

    plans: list[SearchPlan] = Field(min_length=1, fail_fast=True)
    with_text: WithText = True
    """Which hits carry title and text besides id and score: all, none, or the first so many."""


class StepRequest(RequestBody):
    """Body of `POST /v1/step`."""

    steps: list[Step] = Field(min_length=1, fail_fast=True)
    with_text: WithText = False
    metrics: list[str] = Field(default=[], max_length=32)
    """Metrics wanted besides nDCG@10, by name: "recall@100", "mrr@10"."""


class HitBody(Wire):
    """One place of a ranking; a higher score is better."""

    id: str
    score: Finite
    title: str | None = None
    text: str | None = None

    @property
    def document(self) -> Document:
        """The document of this hit. ValueError where the ranking was asked for without text."""
        if self.title is None or self.text is None:
            raise ValueError(f"hit {self.id!r} carries no text; ask with with_text=True")
        return Document(id=self.id, title=self.title, text=self.text)


class PlanResult(Wire):
    """What one plan found."""

    ranking: list[HitBody]
    """Best first."""
    hits: int | None = Field(default=None, ge=0)
    """Of a native plan: documents of the corpus that match it, counted up to HITS_BOUND; else None."""
    error: str | None = None
    """Why the retriever refused the text of a native plan, in its own words."""
    truncated: int = 0
    """Texts of the plan that were longer than a query of the retriever may be, and were read only in part."""


class StepResult(PlanResult):
    """What a step's plan found, and its reward."""

    question_id: str
    reward: UnitInterval
    """nDCG@10 in [0, 1]."""
    metrics: dict[str, UnitInterval]
    """nDCG@10 and every metric asked for, by name."""

    @classmethod
    def without_search(cls, question_id: str, metrics: Sequence[str]) -> Self:
        """The result of a question for which nothing was searched: no ranking, and nDCG@10 and `metrics` are 0."""
        values = dict.fromkeys((PRIMARY_METRIC, *metrics), 0.0)
        return cls(question_id=question_id, ranking=[], reward=0.0, metrics=values)


class Identified(Wire):
    """Hashes of what rankings and rewards depend on; rewards are comparable where both are equal."""

    index_hash: str
    settings_hash: str = Field(min_length=1)
    """sha256 of what a score depends on besides the index: judgements, documents that are ignored, and where
    vectors are searched."""


Result = TypeVar("Result", bound=PlanResult)


class ResultsResponse(Identified, Generic[Result]):
    """One result for each plan or step, in their order."""

    results: list[Result]


class SearchResponse(ResultsResponse[PlanResult]):
    """Answer of `POST /v1/search`."""


class StepResponse(ResultsResponse[StepResult]):
    """Answer of `POST /v1/step`."""


class EnvironmentInfo(Identified):
    """Answer of `GET /v1/environment`."""

    name: str
    retriever: dict[str, object]
    """How the retriever works, for prompts and clients: name, kind, trained, language, …"""
    corpus_size: int = Field(ge=0)
    corpus_hash: str
    relevance_level: int = Field(ge=1, default=1)
    """Least grade that binary metrics count as relevant in a split that has it."""
    splits: dict[str, int]
    """Number of questions by split."""
    judged: bool = True
    """Whether questions have relevant documents; without, metrics of rankings are 0 and mean nothing."""


class AskedUtterance(RequestBody):
    """What one side said before a question that is to be rewritten."""

    role: Literal["user", "assistant"]
    text: str = Field(min_length=1, max_length=MAX_UTTERANCE)


AskedHistory = Annotated[list[AskedUtterance], Field(max_length=MAX_HISTORY)]
"""The conversation before a question, oldest utterance first."""


def utterances(history: Sequence[AskedUtterance]) -> tuple[Utterance, ...]:
    """The plain form of a history."""
    return tuple(Utterance(entry.role, entry.text) for entry in history)


class QuestionPage(Wire):
    """Answer of `GET /v1/questions`: questions `offset`, `offset + 1`, … of a split of `total`."""

    split: str
    total: int = Field(ge=0)
    offset: int = Field(ge=0)
    questions: list[Question]


class Problem(Wire):
    """An error as RFC 9457 problem details; `detail` says what to do."""

    title: str
    status: int
    detail: str
