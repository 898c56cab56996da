"""The cross-encoder of `env.rerank`, for methods (methods/runner.py) that score single pairs."""

from collections.abc import Sequence

from ..configs.schema import RerankConfig
from ..envs.retrievers.rerank import Reranker


class PairScorer:
    """A loaded cross-encoder."""

    def __init__(self, config: RerankConfig) -> None:
        """`depth` is ignored. Raises ModelError for a model that does not exist or is no cross-encoder."""
        self._model = Reranker.open(config)

    @property
    def identity(self) -> dict[str, object]:
        """The model's identity as plain data, for result files."""
        return {name: value for name, value in self._model.card.items() if name != "depth"}

    def scores(self, question: str, texts: Sequence[str]) -> list[float]:
        """One score per text; higher is better. Raises ModelError where a score is not finite."""
        return self._model.scores([(question, text) for text in texts]) if texts else []
