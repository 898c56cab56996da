"""LangChain: a retriever that rewrites questions and searches any other retriever, or a querylect service.

    retriever = RewritingRetriever(rewriter=rewriter, retriever=store.as_retriever())
    retriever.invoke("pinky finger bent inwards")

Needs the extra `langchain`. Several rankings are merged by reciprocal rank fusion. On a format failure the raw question
is searched and a warning is logged. The messages before a question are an option of the call:
`retriever.invoke(question, chat_history=messages)`.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig

from ...envs.client.client import EnvironmentClient
from ...envs.plan import SearchPlan
from ...envs.schemas import HitBody, PlanResult
from ..rewriter import Rewriter
from ..turns import plain_queries
from . import log, merged, utterances


class RewritingRetriever(BaseRetriever):
    """Searches `retriever` with the rewrites of a question, before each turn and last.

    A LangChain retriever gets texts, a client of a querylect service whole plans. Returns no documents if the rewriter
    stopped before any search.
    """

    rewriter: Rewriter
    retriever: BaseRetriever | EnvironmentClient
    env: str | None = None
    """The environment or retriever of a policy trained for several; None is the only one, or that of the service."""
    turns: int | None = None
    """The last turn; None is the turn selected on validation."""
    k: int | None = None
    """Number of documents of a service; overrides that of the rewriter's plan."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, chat_history: Sequence[BaseMessage] = ()
    ) -> list[Document]:
        client = self.retriever
        if isinstance(client, BaseRetriever):
            client = _Searcher(client, {"callbacks": run_manager.get_child()})
        history = utterances((message.type, message.text) for message in chat_history)
        result = self.rewriter.search(query, client, turns=self.turns, retriever=self.env, k=self.k, history=history)
        if result.failure is not None:
            log.warning("the rewrite failed (%s): the question is searched as it stands", result.failure)
        hits = result.ranking or ()
        if isinstance(client, _Searcher):
            return [client.documents[hit.id] for hit in hits]
        return [
            Document(
                page_content=hit.text or "", id=hit.id, metadata={"id": hit.id, "title": hit.title, "score": hit.score}
            )
            for hit in hits
        ]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        """As LangChain's default, which drops `chat_history`."""
        return await asyncio.to_thread(
            self._get_relevant_documents, query, run_manager=run_manager.get_sync(), **options
        )


class _Searcher:
    """A LangChain retriever as the search client of a rewriter."""

    def __init__(self, retriever: BaseRetriever, config: RunnableConfig) -> None:
        self._retriever, self._config = retriever, config
        self.documents: dict[str, Document] = {}
        """Those of all rankings, by id, else by text."""

    def search(self, plans: Sequence[SearchPlan]) -> list[PlanResult]:
        """One result for each plan. Raises ConfigError for a plan that no text can say."""
        return [self._result(self._retriever.batch(plain_queries(plan), self._config)) for plan in plans]

    def _result(self, rankings: Sequence[Sequence[Document]]) -> PlanResult:
        ranking = merged(rankings, _key)
        self.documents |= {_key(document): document for document in ranking}
        hits = [
            HitBody(id=_key(item), score=-rank, title=str(item.metadata.get("title", "")), text=item.page_content)
            for rank, item in enumerate(ranking)
        ]
        return PlanResult(ranking=hits)


def _key(document: Document) -> str:
    return str(document.id or document.page_content)
