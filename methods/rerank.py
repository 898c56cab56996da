"""Rerank: a cross-encoder scores each of many candidates and selects the best (the HCQR paper, B.6).

The question as it is retrieves 150 candidates, 15 of which are selected. Candidates of equal score stay in the
retriever's order. `env.rerank` does the same inside an environment, for every method that searches there.
"""

from ..configs.methods import RerankMethodConfig
from ..data.types import Question
from ..envs.plan import SearchPlan
from .method import Ask, Result, Search


async def rerank(question: Question, ask: Ask, search: Search, settings: RerankMethodConfig) -> Result:
    """One search, one cross-encoder."""
    ranking = await search(SearchPlan.of(question.text, k=settings.candidates))
    scores = await search.scores(question.text, ranking.documents) if ranking.documents else ()
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: settings.k]
    notes = {"candidates": len(ranking.documents), "scores": [float(scores[index]) for index in order]}
    return Result(tuple(ranking.documents[index] for index in order), notes)
