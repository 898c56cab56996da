"""The contract of a rewriter: a prompt plus a parser that turns sampled text into a search plan.

A rewriter sees questions and documents as text and never a token id, a model or a retriever, so the same object serves
a frozen LLM and the policy under training. `parse` gets only the text sampled in its own turn: tags in the prompt can
never be rewarded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pydantic import BaseModel

from ..configs.llm import AnswerForm, LlmConfig
from ..data.types import Document, Question
from ..envs.plan import SearchPlan
from ..llms.base import Message as Message
from ..llms.structured import AskForm


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One parsed turn. Nothing is searched without a `plan`: the format failed, or the turn is `unsearched`."""

    plan: SearchPlan | None
    think: str = ""
    rewrites: tuple[str, ...] = ()
    failure: str = ""
    """Why the format failed, in a few words; "" if it did not."""
    stop: bool = False
    """Whether the policy stopped (`stop.py`). As parsed, `plan` is then the unchanged question, or None with
    `rewriter.stop: answer`; `keep` replaces it by the plan of an earlier turn."""

    @property
    def format_ok(self) -> bool:
        """Whether the sampled text kept to the output format."""
        return self.plan is not None or self.stop

    @property
    def unsearched(self) -> bool:
        """Whether the policy stopped before any search, so that the question is answered without documents."""
        return self.plan is None and self.stop


class RewritingStrategy(Protocol):
    """One strategy of querying a retriever, over any number of turns."""

    @property
    def name(self) -> str:
        """The name under which a configuration asks for it."""

    @property
    def opening(self) -> str:
        """The text that every answer begins with. It is prefilled in the model's turn, and `parse` puts it in front
        again: a small model then spends no token on constant text. "" leaves the whole answer to the model."""

    def first(self, question: Question) -> list[Message]:
        """The chat that the first turn answers."""

    def follow_up(self, question: Question, documents: Sequence[Document], turn: int) -> str:
        """The user message that opens turn `turn` (2, 3, …) and shows the ranking of the previous turn.

        `documents` is empty if the previous turn failed its format and nothing was searched.
        """

    def parse(self, question: Question, text: str, turn: int) -> Rewrite:
        """Read the text that a policy sampled in turn `turn` (1, 2, …), strictly: what breaks the form fails."""

    def read(self, question: Question, text: str, turn: int) -> Rewrite:
        """Read the whole answer of a prompted model to turn `turn`, whatever it writes around it (`prompted.py`)."""


@dataclass(frozen=True, slots=True)
class FirstStage:
    """The prompt for a frozen model, asked before the policy."""

    ask: AskForm
    llm: LlmConfig | None
    """The model; None is the policy's own base model."""
    form: AnswerForm = "json"
    """How the answer is written if the stage is asked by itself; in a method, the runner decides for all steps."""


@runtime_checkable
class Exemplified(Protocol):
    """A rewriter that can show an example, which a small model needs if it is not trained."""

    def first_with_example(self, question: Question) -> list[Message]:
        """`first`, after an example and its answer; `first` alone without an example."""


@runtime_checkable
class Staged(Protocol):
    """A rewriter of two stages; the policy is the second one, which writes the plan.

    rollouts/first_stage.py asks the first stage before the rollouts of a question begin: `first` and `follow_up` raise
    ConfigError for a question without a learned answer.
    """

    def stage(self, question: Question) -> FirstStage | None:
        """The first stage of a question; None if it has none."""

    def learn(self, question: Question, answer: BaseModel) -> None:
        """Store the value that the frozen model gave; a later one for the same question id replaces it."""

    def learn_example(self, question: Question) -> None:
        """Store an answer whose values are its field names, for prompts that are only displayed."""
