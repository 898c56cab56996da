"""Rerank: a cross-encoder scores each of many candidates and selects the best (the HCQR paper, B.6).

The question as it is retrieves 150 candidates, 15 of which are selected. Candidates of equal score stay in the
retriever's order. `env.rerank` does the same inside an environment, for every method that searches there.
"""

from dataclasses import dataclass

from ..configs.methods import RerankMethodConfig
from ..data.types import Question
from ..envs.plan import SearchPlan
from .method import NO_RANKING, Outcome, ScoreStep, SearchStep, Steps


@dataclass(frozen=True)
class Rerank:
    """One search, one cross-encoder."""

    settings: RerankMethodConfig
    name = "rerank"
    versions = ()

    def steps(self, question: Question) -> Steps:
        """Search and rerank. The notes hold the number of candidates and the scores of the context."""
        ranking = yield SearchStep(SearchPlan.of(question.text, k=self.settings.candidates))
        if ranking is None:
            return Outcome(failure=NO_RANKING)
        if not ranking.documents:
            return Outcome(plan=ranking.plan)
        scores = yield ScoreStep(question.text, ranking.documents)
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: self.settings.k]
        context = tuple(ranking.documents[index] for index in order)
        best_scores = [float(scores[index]) for index in order]
        return Outcome(context, notes={"candidates": len(ranking.documents), "scores": best_scores})
