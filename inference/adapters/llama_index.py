"""LlamaIndex: a rewriter as a query transform.

    retriever = TransformRetriever(index.as_retriever(), QuerylectTransform(rewriter))
    engine = RetrieverQueryEngine.from_args(retriever)

The retriever searches with the rewrite, while the query engine answers the original question. Needs the extra
`llama-index`. Text retrievers get the first query, embedding retrievers the mean of all queries. On a format failure
the raw question is searched and a warning is logged. `history` gives the messages before the question, such as the
`get` of a chat memory.
"""

from collections.abc import Callable, Sequence

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.indices.query.query_transform.base import BaseQueryTransform
from llama_index.core.schema import QueryBundle

from ..rewriter import Rewriter
from . import queries_of, utterances


class QuerylectTransform(BaseQueryTransform):
    """Replaces the query by its rewrites."""

    def __init__(
        self,
        rewriter: Rewriter,
        env: str | None = None,
        history: Callable[[], Sequence[ChatMessage]] = list,
    ) -> None:
        """`env` selects the environment or retriever of a policy trained for several."""
        super().__init__()
        self._rewriter, self._env, self._history = rewriter, env, history

    def _get_prompts(self) -> dict[str, object]:
        """Empty: the prompts of the policy are fixed by its training."""
        return {}

    def _update_prompts(self, prompts: dict[str, object]) -> None:
        """No prompts to update."""

    def _run(self, query_bundle: QueryBundle, metadata: dict[str, object]) -> QueryBundle:
        history = utterances((message.role.value, message.content) for message in self._history())
        result = self._rewriter.rewrite(query_bundle.query_str, retriever=self._env, history=history)
        queries = queries_of(result)
        return QueryBundle(query_str=queries[0], custom_embedding_strs=queries)
