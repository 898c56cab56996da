"""What a rewriter gives: one answer per turn, and what was found with it.

A failure is data: where an answer does not keep to the format, the question itself takes its place as text and plan,
and `failure` says why.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from ..data.types import Question
from ..envs.plan import Probe, SearchPlan
from ..envs.wire import HitBody
from ..errors import ConfigError
from ..rollouts.speaking import Place
from ..rollouts.tree import Node


@dataclass(frozen=True, slots=True)
class Said:
    """Where an answer stands in its conversation, for the turn after it."""

    place: Place
    node: Node


@dataclass(frozen=True, slots=True, repr=False)
class RewriteResult:
    """What the policy answered about one question in one turn."""

    question: Question
    turn: int
    """1 for a first turn."""
    plan: SearchPlan
    """What is searched; the plain question where the answer failed."""
    rewrites: tuple[str, ...] = ()
    """All texts that the policy wrote to search with; empty where the answer failed."""
    think: str = ""
    failure: str | None = None
    """Why the answer could not be used, in a few words; None where it could."""
    answer: str = ""
    """As the model wrote it, without its end-of-turn token."""
    said: Said | None = field(default=None, repr=False, compare=False)

    @property
    def fallback(self) -> bool:
        """Whether the question itself stands in place of a rewrite."""
        return self.failure is not None

    @property
    def text(self) -> str:
        """What is searched, as one text: of a plan that keeps the question both, no word of them twice over.

        Of several probes the first one; of a plan that subtracts, which no text can say, the first rewrite.
        """
        if any(term.weight < 0 for probe in self.plan.probes for term in probe.terms):
            return self.rewrites[0] if self.rewrites else self.question.text
        return joined(self.plan.probes[0])

    def __repr__(self) -> str:
        said = f"the question, for it failed: {self.failure}" if self.fallback else repr(shortened(self.text))
        return f"RewriteResult({shortened(self.question.text)!r} → {said}, turn={self.turn})"

    def record(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {
            "question": self.question.text,
            "text": self.text,
            "rewrites": list(self.rewrites),
            "think": self.think,
            "plan": self.plan.model_dump(mode="json"),
            "turn": self.turn,
            "failure": self.failure,
            "fallback": self.fallback,
        }


@dataclass(frozen=True, slots=True)
class FoundTurn:
    """One turn and what came back for it."""

    rewrite: RewriteResult
    ranking: tuple[HitBody, ...] | None
    """Best first; None where nothing was searched: after a failed answer that is not the last."""


@dataclass(frozen=True, slots=True, repr=False)
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
        """The last turn's; where that turn failed, what the question itself finds."""
        return self.turns[-1].ranking

    @property
    def failure(self) -> str | None:
        """Why the ranking is that of the question itself; None where it is not."""
        return self.rewrite.failure

    def __repr__(self) -> str:
        count = "no" if self.ranking is None else len(self.ranking)
        return f"SearchResult({self.rewrite!r}, {count} documents)"


def plain_queries(plan: SearchPlan) -> list[str]:
    """A plan in the words of a retriever that takes texts only: one query per probe (`joined`).

    What weights say beyond order is lost. Raises ConfigError for a plan that subtracts: no text can say that.
    """
    for probe in plan.probes:
        if any(term.weight < 0 for term in probe.terms):
            raise ConfigError(
                "the plan has a term of negative weight, which a retriever that takes texts cannot subtract. Search "
                "this rewriter's plans with querylect's own retrievers (`querylect serve`)."
            )
    return list(dict.fromkeys(map(joined, plan.probes)))


def joined(probe: Probe) -> str:
    """The terms of a probe one after the other, without those whose words all stand in another one.

    So a rewrite that repeats the question, or only some of its words, does not say them twice.
    """
    texts = [term.text for term in probe.terms if term.weight > 0 and term.text.strip()]
    words = [frozenset(re.findall(r"\w+", text.casefold())) for text in texts]
    kept = [
        text
        for place, text in enumerate(texts)
        if not any(words[place] < other or (words[place] == other and at < place) for at, other in enumerate(words))
    ]
    return " ".join(kept)


def shortened(text: str, most: int = 60) -> str:
    """The beginning of a text, for one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
