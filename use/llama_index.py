"""LlamaIndex: a rewriter as a query transform.

    retriever = TransformRetriever(index.as_retriever(), QuerylectTransform(rewriter))
    engine = RetrieverQueryEngine.from_args(retriever)

So the rewrite is searched, and the answer is to the question. Needs the extra `llama-index`. Retrievers that read text
get the first query, those that embed get the mean of all. An answer that fails its form leaves the question as it
stands, and the log says so; `on_failure="raise"` raises instead.
"""

from typing import Any

from llama_index.core.indices.query.query_transform.base import BaseQueryTransform
from llama_index.core.schema import QueryBundle

from .adapting import OnFailure, queries_of
from .rewriter import Rewriter


class QuerylectTransform(BaseQueryTransform):
    """Replaces the question by what the rewriter makes of it."""

    def __init__(self, rewriter: Rewriter, on_failure: OnFailure = "question", env: str | None = None) -> None:
        """`env` says which one of a policy for several is meant, by environment or retriever."""
        super().__init__()
        self._rewriter, self._on_failure, self._env = rewriter, on_failure, env

    def _get_prompts(self) -> dict[str, Any]:
        """None: the policy was trained with its own."""
        return {}

    def _update_prompts(self, prompts: dict[str, Any]) -> None:
        """There is none to change."""

    def _run(self, query_bundle: QueryBundle, metadata: dict[str, Any]) -> QueryBundle:
        result = self._rewriter.rewrite(query_bundle.query_str, retriever=self._env)
        queries = queries_of(result, self._on_failure)
        return QueryBundle(query_str=queries[0], custom_embedding_strs=queries)
