"""LangChain: a rewriter as a runnable, in front of any retriever, and a retriever over a querylect service.

    retriever = RewritingRetriever(rewriter=rewriter, retriever=store.as_retriever())
    retriever.invoke("pinky finger bent inwards")

Needs the extra `langchain`. Between the turns of a rewriter, `RewritingRetriever` searches its own `retriever`; the
other classes search as `Rewriter.rewrite` does. A question of a conversation is {"input": …, "chat_history": messages}
for the runnable; the retrievers take the messages beside it: `retriever.invoke(question, chat_history=messages)`. On a
format failure the raw question is searched and a warning is logged. `env` selects
the environment or retriever of a policy trained for several.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig, RunnableSerializable
from pydantic import ConfigDict

from ...data.types import Question, Utterance
from ...envs.client.client import EnvironmentClient
from ...envs.plan import SearchPlan
from ...envs.schemas import HitBody, PlanResult
from ..results import plain_queries
from ..rewriter import Rewriter
from .common import merged, queries_of, utterances

Messages = Sequence[BaseMessage]
RewriterInput = str | dict[str, Any]
"""A question, or a dict with `input` and `chat_history` as LangChain's history-aware retrievers take it."""


class QueryRewriter(RunnableSerializable[RewriterInput, list[str]]):
    """From a question to the queries to search with; the questions of a `batch` are rewritten together."""

    rewriter: Rewriter
    env: str | None = None

    model_config = ConfigDict(arbitrary_types_allowed=True)

    def invoke(self, input: RewriterInput, config: RunnableConfig | None = None, **kwargs: object) -> list[str]:
        """The queries for one question."""
        queries: list[str] = self._call_with_config(self._one, input, config)
        return queries

    def _one(self, rewriter_input: RewriterInput) -> list[str]:
        return queries_of(self.rewriter.rewrite(_question(rewriter_input), retriever=self.env))


class _ChatRetriever(BaseRetriever):
    """A retriever that takes `chat_history` in an event loop too, where LangChain's own default drops it."""

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        return await asyncio.to_thread(
            self._get_relevant_documents, query, run_manager=run_manager.get_sync(), **options
        )


class RewritingRetriever(_ChatRetriever):
    """Searches `retriever` with the rewrites of a question; several rankings are merged by reciprocal rank fusion.
    Returns no documents where the rewriter stopped before any search."""

    rewriter: Rewriter
    retriever: BaseRetriever
    env: str | None = None

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, chat_history: Messages = ()
    ) -> list[Document]:
        config: RunnableConfig = {"callbacks": run_manager.get_child()}
        client = _TurnSearcher(self.retriever, config)
        result = self.rewriter.rewrite(query, retriever=self.env, client=client, history=_history(chat_history))
        if result.unsearched:
            return []
        return merged(self.retriever.batch(queries_of(result), config), _key)


@dataclass(frozen=True, slots=True)
class _TurnSearcher:
    """Adapts a LangChain retriever to `Searcher`, for the searches between turns."""

    retriever: BaseRetriever
    config: RunnableConfig

    def search(self, plans: Sequence[SearchPlan]) -> list[PlanResult]:
        """One result for each plan. Raises ConfigError for a plan that no text can say."""
        return [
            PlanResult(ranking=_hits(self.retriever.batch(plain_queries(plan), self.config), plan.k)) for plan in plans
        ]


def _hits(rankings: Sequence[Sequence[Document]], k: int) -> list[HitBody]:
    documents = merged(rankings, _key)[:k]
    return [
        HitBody(
            id=str(document.id or rank),
            score=-rank,
            title=str(document.metadata.get("title", "")),
            text=document.page_content,
        )
        for rank, document in enumerate(documents)
    ]


class EnvironmentRetriever(_ChatRetriever):
    """Searches a querylect service (`querylect serve`) with the question, or with the full plans of a rewriter."""

    client: EnvironmentClient
    rewriter: Rewriter | None = None
    turns: int | None = None
    """The last turn of the rewriter; None is the turn selected on validation."""
    k: int = 10
    """Number of documents; overrides that of the rewriter's plan."""
    env: str | None = None
    """None selects the retriever of the service."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, chat_history: Messages = ()
    ) -> list[Document]:
        ranking: Sequence[HitBody] | None = None
        if self.rewriter is not None:
            history = _history(chat_history)
            result = self.rewriter.search(
                query, self.client, turns=self.turns, retriever=self.env, k=self.k, history=history
            )
            if result.failure is not None:
                queries_of(result.rewrite)
            ranking = () if result.rewrite.unsearched else result.ranking
        if ranking is None:
            ranking = self.client.search([SearchPlan.of(query, self.k)])[0].ranking
        return [
            Document(
                page_content=hit.text or "", id=hit.id, metadata={"id": hit.id, "title": hit.title, "score": hit.score}
            )
            for hit in ranking[: self.k]
        ]


def _question(rewriter_input: RewriterInput) -> Question:
    """A question, with the messages before it. Text that is no question is refused by the rewriter."""
    if isinstance(rewriter_input, dict):
        history = _history(rewriter_input.get("chat_history") or ())
        return Question("", rewriter_input.get("input", ""), history=tuple(history))
    return Question("", rewriter_input)


def _history(messages: Messages) -> list[Utterance]:
    return utterances((message.type, message.text) for message in messages)


def _key(document: Document) -> str:
    """The identity of a document: its id, else its text."""
    return str(document.id or document.page_content)
