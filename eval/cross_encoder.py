"""The cross-encoder of `env.rerank`, for methods (methods/runner.py) that score single pairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ..configs.schema import RerankConfig
from ..envs.retrievers.rerank import Reranker


@dataclass(frozen=True)
class PairScorer:
    """A cross-encoder, loaded at its first use; `config.depth` is ignored."""

    config: RerankConfig

    @cached_property
    def _model(self) -> Reranker:
        return Reranker.open(self.config)

    def scores(self, question: str, texts: Sequence[str]) -> list[float]:
        """One score per text; higher is better. Raises ModelError for an unusable model or score."""
        return self._model.scores([(question, text) for text in texts]) if texts else []
