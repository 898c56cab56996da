"""From the parts of an answer to a search plan."""

from collections.abc import Callable, Sequence

from ..configs.schema import RewriterConfig
from ..data.types import Question
from ..envs.plan import Probe, SearchPlan, Term

Plan = Callable[[Question, Sequence[str]], SearchPlan]
"""The plan of a question and the parts of an answer."""

PER_QUERY, BUDGET = 5, 15
"""Documents of a query and of the union of all queries (the HCQR paper, B.3)."""


def query_plan(config: RewriterConfig, k: int) -> Plan:
    """Each rewrite is one probe, fused by their best score; with `keep_question_weight` above 0 every probe also holds
    the question with that weight. `k`: documents a plan asks for."""

    def plan(question: Question, rewrites: Sequence[str]) -> SearchPlan:
        kept = weighted(question.text, config.keep_question_weight or 0.0)
        terms = [(*kept, Term(text=rewrite, weight=config.rewrite_weight)) for rewrite in rewrites]
        return SearchPlan(probes=tuple(Probe(terms=probe) for probe in terms), fuse="max", k=k)

    return plan


def weighted(text: str, weight: float) -> tuple[Term, ...]:
    """A term of that weight; none at 0."""
    return (Term(text=text, weight=weight),) if weight > 0 else ()


def union(queries: Sequence[str]) -> SearchPlan:
    """The first `PER_QUERY` documents of every query, without duplicates, at most `BUDGET` of them: the first ranks of
    all queries, then the second ranks, …"""
    probes = tuple(Probe(terms=(Term(text=query),), k=PER_QUERY) for query in queries)
    return SearchPlan(probes=probes, fuse="interleave", k=BUDGET)
