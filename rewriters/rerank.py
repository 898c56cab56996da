"""Rerank: a cross-encoder reads the question beside each of many candidates and keeps the best (seed 000, B.6).

The question as it stands finds 150 candidates, 15 of which are kept. Candidates of equal score stay in the retriever's
order. `env.rerank` does the same inside an environment, for every method that searches there.
"""

from dataclasses import dataclass, field

from ..configs.methods import RerankMethodConfig
from ..data.types import Question
from ..envs.plan import SearchPlan
from .method import NO_RANKING, Outcome, Score, Search, Steps


@dataclass(frozen=True)
class Rerank:
    """One search, one cross-encoder."""

    settings: RerankMethodConfig
    name: str = field(default="rerank", init=False)
    versions: tuple[str, ...] = field(default=(), init=False)

    def steps(self, question: Question) -> Steps:
        """The notes hold the ids and scores of what is kept."""
        found = yield Search(SearchPlan.of(question.text, k=self.settings.candidates), self.settings.source)
        if found is None:
            return Outcome(failure=NO_RANKING)
        if not found.documents:
            return Outcome(plan=found.plan)
        scores = yield Score(question.text, found.documents)
        order = sorted(range(len(scores)), key=lambda place: -scores[place])[: self.settings.k]
        kept = tuple(found.documents[place] for place in order)
        notes = {"candidates": len(found.documents), "scores": [float(scores[place]) for place in order]}
        return Outcome(kept, notes=notes)
