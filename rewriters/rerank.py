"""Rerank: a cross-encoder reads the question beside each of many candidates and keeps the best (seed 000, B.6).

The question as it stands finds 150 candidates, 15 of which are kept. Candidates of equal score stay in the retriever's
order. `env.rerank` does the same inside an environment, for every method that searches there.
"""

from dataclasses import dataclass, field

from ..data.types import Question
from ..envs.plan import SearchPlan
from ..errors import ConfigError
from .method import NO_RANKING, Outcome, Score, Search, Steps


@dataclass(frozen=True)
class Rerank:
    """One search, one cross-encoder."""

    candidates: int = 150
    k: int = 15
    """Documents that are kept."""
    source: str = ""
    name: str = field(default="rerank", init=False)
    versions: tuple[str, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        if not 1 <= self.k <= self.candidates:
            raise ConfigError(f"rerank keeps k={self.k} of {self.candidates} candidates; k is 1 up to their number.")

    def steps(self, question: Question) -> Steps:
        """The notes hold the ids and scores of what is kept."""
        found = yield Search(SearchPlan.of(question.text, k=self.candidates), self.source)
        if found is None:
            return Outcome(failure=NO_RANKING)
        if not found.documents:
            return Outcome(plan=found.plan)
        scores = yield Score(question.text, found.documents)
        order = sorted(range(len(scores)), key=lambda place: -scores[place])[: self.k]
        kept = tuple(found.documents[place] for place in order)
        notes = {"candidates": len(found.documents), "scores": [float(scores[place]) for place in order]}
        return Outcome(kept, notes=notes)
