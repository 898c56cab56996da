"""What a rewriter gives: one answer per turn, and what was found with it.

A failure is data: an answer that does not keep to the form has no text and no plan, and says why. Nothing takes its
place here; whoever uses it decides what to search instead.
"""

from dataclasses import dataclass, field
from typing import Any

from ..data.types import Question
from ..envs.plan import SearchPlan
from ..envs.wire import HitBody
from ..errors import ConfigError
from ..rollouts.speaking import Place
from ..rollouts.tree import Node


@dataclass(frozen=True, slots=True)
class Said:
    """Where an answer stands in its conversation, for the turn after it."""

    place: Place
    node: Node


@dataclass(frozen=True, slots=True)
class RewriteResult:
    """What the policy answered about one question in one turn."""

    question: Question
    turn: int
    """1 for a first turn."""
    rewrites: tuple[str, ...] = ()
    """All texts to search with; empty where the answer failed."""
    plan: SearchPlan | None = None
    """How they are searched; None exactly where the answer failed."""
    think: str = ""
    failure: str | None = None
    """Why there is no plan, in a few words; None where there is one."""
    answer: str = ""
    """As the model wrote it, without its end-of-turn token."""
    said: Said | None = field(default=None, repr=False, compare=False)

    @property
    def text(self) -> str | None:
        """The first rewrite; None where the answer failed."""
        return self.rewrites[0] if self.rewrites else None

    def record(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {
            "question": self.question.text,
            "text": self.text,
            "rewrites": list(self.rewrites),
            "think": self.think,
            "plan": self.plan.model_dump(mode="json") if self.plan is not None else None,
            "failure": self.failure,
        }


@dataclass(frozen=True, slots=True)
class FoundTurn:
    """One turn and what came back for it."""

    rewrite: RewriteResult
    ranking: tuple[HitBody, ...] | None
    """Best first; None where there was no plan to search."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """All turns of one question against one retriever."""

    question: Question
    turns: tuple[FoundTurn, ...]

    @property
    def rewrite(self) -> RewriteResult:
        """The last turn's."""
        return self.turns[-1].rewrite

    @property
    def ranking(self) -> tuple[HitBody, ...] | None:
        """The last turn's, as evaluation counts it; None where that turn failed, whatever an earlier one found."""
        return self.turns[-1].ranking

    @property
    def failure(self) -> str | None:
        """Why there is no ranking; None where there is one."""
        return self.rewrite.failure


def plain_queries(plan: SearchPlan) -> list[str]:
    """A plan in the words of a retriever that takes texts only: one query per probe, its terms one after the other.

    What weights say beyond order is lost. Raises ConfigError for a plan that subtracts: no text can say that.
    """
    for probe in plan.probes:
        if any(term.weight < 0 for term in probe.terms):
            raise ConfigError(
                "the plan has a term of negative weight, which a retriever that takes texts cannot subtract. Search "
                "this rewriter's plans with querylect's own retrievers (`querylect serve`)."
            )
    said = [" ".join(term.text for term in probe.terms if term.weight > 0) for probe in plan.probes]
    return list(dict.fromkeys(said))
