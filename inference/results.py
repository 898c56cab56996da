"""Results of a rewriter: one answer per turn, and its ranking.

A format failure does not raise: text and plan of the result are then the question itself, and `failure` is the reason.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from ..data.history import records_of
from ..data.types import Question
from ..envs.plan import Probe, SearchPlan
from ..envs.schemas import HitBody
from ..errors import ConfigError


@dataclass(frozen=True, slots=True)
class RewriteResult:
    """The answer of the policy to one question in one turn."""

    question: Question
    turn: int
    """1 for a first turn."""
    plan: SearchPlan
    """The search plan; the raw question if the answer failed, or if nothing is to be searched (`unsearched`)."""
    rewrites: tuple[str, ...] = ()
    """All query texts of the answer; empty if it failed."""
    think: str = field(default="", repr=False)
    failure: str | None = None
    """Why the answer failed, in a few words; None if it did not."""
    answer: str = field(default="", repr=False)
    """The raw text of the model, without its end-of-turn token."""
    continuation: Any = field(default=None, repr=False, compare=False)
    """The state of the conversation, from which the next turn continues; None if there is none."""
    stopped: bool = False
    """Whether the policy stopped: the plan is that of the last turn that was searched, or else the raw question."""
    unsearched: bool = False
    """Whether the policy stopped before any search (`rewriter.stop: answer`): the question is to be answered without
    documents."""

    @property
    def fallback(self) -> bool:
        """Whether the question replaces a failed rewrite."""
        return self.failure is not None

    @property
    def text(self) -> str:
        """The first probe of the plan as one text (`joined`).

        For a plan with negative weights, which no text can express, the first rewrite.
        """
        if _subtracts(self.plan):
            return self.rewrites[0] if self.rewrites else self.question.text
        return joined(self.plan.probes[0])

    def record(self) -> dict[str, object]:
        """The result as plain data, for JSON."""
        return {
            "question": self.question.text,
            **({"history": records_of(self.question.history)} if self.question.history else {}),
            "text": self.text,
            "rewrites": list(self.rewrites),
            "think": self.think,
            "plan": self.plan.model_dump(mode="json"),
            "turn": self.turn,
            "failure": self.failure,
            "fallback": self.fallback,
            "stopped": self.stopped,
            "unsearched": self.unsearched,
        }


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """One turn and its ranking."""

    rewrite: RewriteResult
    ranking: tuple[HitBody, ...] | None
    """Best first; of a turn that stopped, those that it keeps. None if nothing was searched, which is the case after
    a failed answer before the last turn and for one that is `unsearched`."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """All turns of one question with one retriever."""

    question: Question
    turns: tuple[TurnOutcome, ...]

    @property
    def rewrite(self) -> RewriteResult:
        """The rewrite of the last turn."""
        return self.turns[-1].rewrite

    @property
    def ranking(self) -> tuple[HitBody, ...] | None:
        """The ranking of the last turn; if that turn failed, the ranking for the question; None if the policy stopped
        before any search (`rewrite.unsearched`)."""
        return self.turns[-1].ranking

    @property
    def failure(self) -> str | None:
        """Why the last turn failed, so that the ranking is that of the question; None if it did not."""
        return self.rewrite.failure


def plain_queries(plan: SearchPlan) -> list[str]:
    """A plan as texts for a retriever without weighted queries: one query per probe (`joined`); weights are dropped.

    Raises ConfigError for a plan with negative weights, which no text can express.
    """
    if _subtracts(plan):
        raise ConfigError(
            "the plan has a term of negative weight, which a retriever that takes texts cannot subtract. Search "
            "this rewriter's plans with querylect's own retrievers (`querylect serve`)."
        )
    return list(dict.fromkeys(map(joined, plan.probes)))


def joined(probe: Probe) -> str:
    """The terms of a probe joined by spaces, without terms whose words are all contained in another term.

    So a rewrite that repeats the question, or is repeated by it, does not duplicate words.
    """
    texts = [term.text for term in probe.terms if term.weight > 0 and term.text.strip()]
    words = [frozenset(re.findall(r"\w+", text.casefold())) for text in texts]
    return " ".join(
        text
        for i, text in enumerate(texts)
        if not any(words[i] < other or (words[i] == other and k < i) for k, other in enumerate(words))
    )


def _subtracts(plan: SearchPlan) -> bool:
    return any(term.weight < 0 for probe in plan.probes for term in probe.terms)
