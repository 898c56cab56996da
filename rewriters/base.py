"""The contract of a rewriter: a prompt plus a parser that turns sampled text into a search plan.

A rewriter sees questions and documents as text and never a token id, a model or a retriever, so the same object
serves a frozen LLM and the policy under training. `parse` gets only the text that was sampled in its own turn:
tags that stand in the prompt can never be rewarded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pydantic import BaseModel

from ..configs.llm import AnswerForm, LlmConfig
from ..data.types import Document, Question
from ..envs.plan import SearchPlan
from ..llms.base import Message as Message
from .method import AskForm


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What one sampled turn says. `plan` is None exactly when the format failed: no search is made then."""

    plan: SearchPlan | None
    think: str = ""
    rewrites: tuple[str, ...] = ()
    failure: str = ""
    """Why the format failed, in one or two words; "" where it did not."""

    @property
    def format_ok(self) -> bool:
        """Whether the sampled text kept to the output format."""
        return self.plan is not None


class Rewriter(Protocol):
    """One strategy of speaking to a retriever, over any number of turns."""

    @property
    def name(self) -> str:
        """The name under which a configuration asks for it."""
        ...

    @property
    def opening(self) -> str:
        """What every answer begins with. It is written in the model's turn for it, and `parse` puts it in front again:
        a small model then spends no token on what never varies. "" leaves the whole answer to the model."""
        ...

    def first(self, question: Question) -> list[Message]:
        """The chat that the first turn answers."""
        ...

    def follow_up(self, question: Question, documents: Sequence[Document], turn: int) -> str:
        """The user message that opens turn `turn` (2, 3, …) and shows the ranking of the turn before it.

        `documents` is empty where the turn before it failed its format and nothing was searched.
        """
        ...

    def parse(self, question: Question, text: str, turn: int) -> Rewrite:
        """Read the text sampled in turn `turn` (1, 2, …)."""
        ...


@dataclass(frozen=True, slots=True)
class FirstStage:
    """What a frozen model is asked about a question before the policy is."""

    ask: AskForm
    llm: LlmConfig | None
    """The model; None is the policy's own base model."""
    form: AnswerForm = "json"
    """How it writes its answer, where the stage is asked by itself; a method's runner says it for all."""


@runtime_checkable
class Exemplified(Protocol):
    """A rewriter that can show an example, which a small model needs where it is not trained."""

    def first_with_example(self, question: Question) -> list[Message]:
        """`first`, after an example and its answer; `first` alone where it has none."""
        ...


@runtime_checkable
class Staged(Protocol):
    """A rewriter of two stages, of which the second one, which gives the plan, is the policy's.

    rewriters/stages.py asks the first stage, before the rollouts of a question begin: `first` and `follow_up` raise
    ConfigError for a question of which nothing was learned.
    """

    def stage(self, question: Question) -> FirstStage | None:
        """The first stage of a question; None where it has none."""
        ...

    def learn(self, question: Question, answer: BaseModel) -> None:
        """Take the value that the frozen model gave; another one for the same question id replaces it."""
        ...

    def learn_example(self, question: Question) -> None:
        """Take an answer that names its own fields, for prompts that are only looked at."""
        ...
