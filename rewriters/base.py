"""A rewriter is a prompt, and a parser that turns an answer into a search plan.

It sees questions and documents as text and never a token id, a model or a retriever, so the same object serves a
prompted model and the policy under training. It keeps nothing of the questions that it has seen.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Self

from pydantic import BaseModel

from ..configs.llm import LlmConfig
from ..data.types import Document, Question
from ..envs.plan import SearchPlan
from ..llms.base import LlmResponse, Message, SamplingParams
from ..llms.prose import without_thinking
from ..llms.structured import FormPrompt


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One parsed turn. Nothing is searched without a `plan`: the format failed, or the turn is `unsearched`."""

    plan: SearchPlan | None
    think: str = ""
    rewrites: tuple[str, ...] = ()
    failure: str = ""
    """Why the format failed, in a few words; "" if it did not."""
    stop: bool = False
    """Whether the policy stopped (delegating.py). As parsed, `plan` is then the unchanged question, or None with
    `rewriter.stop: answer`; a rollout replaces it by the plan of an earlier turn."""

    @property
    def unsearched(self) -> bool:
        """Whether the policy stopped before any search, so that the question is answered without documents."""
        return self.plan is None and self.stop


@dataclass(frozen=True, slots=True)
class FirstStage:
    """What a frozen model is asked about a question before the policy."""

    prompt: FormPrompt
    form: type[BaseModel]
    draw: SamplingParams
    llm: LlmConfig | None
    """The model; None is the policy's own base model."""
    placeholder: BaseModel
    """An answer whose values are names of its fields, for prompts that are only displayed."""


@dataclass(frozen=True, slots=True)
class StagedQuestion(Question):
    """A question with the answer of its first stage, which the rewriter's prompt shows."""

    first_stage: BaseModel = field(kw_only=True)
    replies: tuple[LlmResponse, ...] = field(default=(), kw_only=True, compare=False)
    """What the frozen model wrote, for the costs."""

    @classmethod
    def of(cls, question: Question, answer: BaseModel, replies: tuple[LlmResponse, ...] = ()) -> Self:
        """The question with this answer."""
        values = {entry.name: getattr(question, entry.name) for entry in fields(Question)}
        return cls(**values, first_stage=answer, replies=replies)


class RewritingStrategy(ABC):
    """One strategy of querying a retriever, over any number of turns."""

    name: str
    joins: bool = False
    """Whether several answers to one prompt make one plan (`join`)."""

    @property
    def opening(self) -> str:
        """The text that every answer begins with. It is prefilled in the model's turn, and `parse` puts it in front
        again: a small model then spends no token on constant text. "" leaves the whole answer to the model."""
        return ""

    def first_stage(self, question: Question) -> FirstStage | None:
        """What a frozen model is asked first; `first` then takes a StagedQuestion with its answer."""
        return None

    @abstractmethod
    def first(self, question: Question) -> list[Message]:
        """The chat that the first turn answers."""

    @abstractmethod
    def follow_up(self, question: Question, documents: Sequence[Document], turn: int) -> str:
        """The user message that opens turn `turn` (2, 3, …) and shows the ranking of the previous turn.

        `documents` is empty if the previous turn failed its format and nothing was searched.
        """

    @abstractmethod
    def parse(self, question: Question, text: str, turn: int) -> Rewrite:
        """Read the text that a policy sampled in turn `turn` (1, 2, …), strictly: what breaks the form fails."""

    @abstractmethod
    def read(self, question: Question, text: str, turn: int) -> Rewrite:
        """Read the answer of a prompted model to turn `turn`, without what it writes around the form."""

    def join(self, question: Question, rewrites: Sequence[Rewrite]) -> Rewrite:
        """One rewrite of several answers to the same prompt; those that failed are left out."""
        raise NotImplementedError(f"{self.name} makes a plan of one answer")


def read_reply(rewriter: RewritingStrategy, question: Question, reply: LlmResponse, turn: int = 1) -> Rewrite:
    """Read a prompted model's reply to that turn; several texts become one rewrite if the rewriter joins them."""
    rewrites = [rewriter.read(question, sample.text, turn) for sample in reply.texts]
    return rewriter.join(question, rewrites) if rewriter.joins else rewrites[0]


def repair(text: str, failure: str) -> tuple[Message, ...]:
    """The messages that send an answer back for the failure of its reading."""
    answer = without_thinking(text) or "(no answer)"
    request = f"Your answer could not be read: {failure}. Give it again, in exactly the form that was asked for."
    return Message(role="assistant", content=answer), Message(role="user", content=request)
