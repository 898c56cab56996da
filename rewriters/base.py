"""The contract of a rewriter: a prompt plus a parser that turns sampled text into a search plan.

A rewriter sees questions and documents as text and never a token id, a model or a retriever, so the same object
serves a frozen LLM and the policy under training. `parse` gets only the text that was sampled in its own turn:
tags that stand in the prompt can never be rewarded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..data.types import Document, Question
from ..envs.plan import SearchPlan
from ..llms.base import Message as Message


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
