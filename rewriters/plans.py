"""From an answer to a search plan.

One rewrite is one probe of one term; several rewrites (query decomposition) are one probe each, fused by their best
score. With `keep_question_weight` w_q > 0 every probe also holds the question with that weight.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..configs.schema import RewriterConfig
from ..data.types import Question
from ..envs.plan import Probe, SearchPlan, Term
from .base import Rewrite
from .parse import Parsed, parse

PER_QUERY, BUDGET = 5, 15
"""Documents of a query and of the union of all queries (the HCQR paper, B.3)."""


@dataclass(frozen=True, slots=True)
class AnswerReader:
    """Parses the tagged answers that all prompts of this folder ask for."""

    config: RewriterConfig
    k: int = 10
    """Documents a plan asks for: at least as many as the metric scores and the next turn shows."""

    def read(self, question: Question, text: str) -> Rewrite:
        """Parse `text`, sampled in one turn, and plan its search; the plan is None if the format failed."""
        return planned(question, parse(text), self.plan)

    def plan(self, question: Question, rewrites: Sequence[str]) -> SearchPlan:
        """The plan of one or more rewrites: one probe each, fused by maximum."""
        return SearchPlan(probes=tuple(self._probe(question, rewrite) for rewrite in rewrites), fuse="max", k=self.k)

    def _probe(self, question: Question, rewrite: str) -> Probe:
        question_weight = self.config.keep_question_weight or 0.0
        question_terms = (Term(text=question.text, weight=question_weight),) if question_weight > 0 else ()
        return Probe(terms=(*question_terms, Term(text=rewrite, weight=self.config.rewrite_weight)))


def planned(question: Question, parsed: Parsed, plan: Callable[[Question, Sequence[str]], SearchPlan]) -> Rewrite:
    """A parsed answer with the plan of its rewrites."""
    search_plan = None if parsed.failure else plan(question, parsed.rewrites)
    return Rewrite(search_plan, parsed.think, parsed.rewrites, parsed.failure)


def union(queries: Sequence[str]) -> SearchPlan:
    """The first `PER_QUERY` documents of every query, without duplicates, at most `BUDGET` of them: the first ranks of
    all queries, then the second ranks, …"""
    probes = tuple(Probe(terms=(Term(text=query),), k=PER_QUERY) for query in queries)
    return SearchPlan(probes=probes, fuse="interleave", k=BUDGET)
