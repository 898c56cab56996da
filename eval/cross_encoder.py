"""The cross-encoder that methods are run with (eval/methods.py): the one of `env.rerank`, asked for single pairs."""

from collections.abc import Sequence

from ..configs.schema import RerankConfig
from ..envs.rerank import Reranker


class PairScorer:
    """A loaded cross-encoder."""

    def __init__(self, config: RerankConfig) -> None:
        """Raises ModelError for a model that does not exist or is no cross-encoder; `depth` plays no part here."""
        self._model = Reranker.open(config)

    @property
    def identity(self) -> dict[str, object]:
        """The model as plain data, for results that name it."""
        return {name: value for name, value in self._model.card.items() if name != "depth"}

    def scores(self, question: str, texts: Sequence[str]) -> list[float]:
        """One score for each text; higher is better. Raises ModelError where one is not finite."""
        return self._model.scores([(question, text) for text in texts]) if texts else []
