"""Search tools for agents, by the Model Context Protocol (MCP).

`search` rewrites a question and searches; `query` searches with what the agent itself writes in the retriever's query
language, and needs no model. A client starts the server as a child process and speaks to it over standard input and
output. The documents are those of a running environment service.
"""

import asyncio
from typing import Annotated, Literal

from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel, Field

from ..configs.schema import ClientConfig
from ..envs.client.client import EnvironmentClient
from ..envs.plan import SearchPlan
from ..envs.schemas import MAX_QUESTION, AskedHistory, utterances
from ..errors import ConfigError, RequestError
from ..rewriters.retriever_info import RetrieverInfo
from ..version import __version__
from .rewriter import Rewriter

MAX_DOCUMENTS = 100
"""Most documents of one answer; an agent reads them all."""

Count = Annotated[int, Field(ge=1, le=MAX_DOCUMENTS, description="How many documents to return.")]


class FoundDocument(BaseModel, from_attributes=True):
    """A document as an agent reads it."""

    id: str
    title: str
    text: str


class QueryAnswer(BaseModel):
    """What the tool `query` returns."""

    hits: int | None = None
    """Documents that match, as counted; null where words were searched."""
    documents: list[FoundDocument]
    """Best first."""


class SearchAnswer(QueryAnswer):
    """What the tool `search` returns."""

    query: str
    """What was searched; the question itself where no rewrite could be used."""
    mode: Literal["text", "native"]
    """Whether it was searched as words or as a query in the retriever's language."""
    failure: str | None = None
    """Why no rewrite could be used."""
    error: str | None = None
    """Why the retriever refused the rewrite."""
    searched: bool = True
    """False where the rewriter stopped before any search: the question needs no documents, and there are none."""


def search_server(client: EnvironmentClient, rewriter: Rewriter | None = None, language: str = "") -> MCPServer:
    """The server whose tools search the client's environment: `search` with the rewriter, `query` in its `language`.

    An error of the rewriter or of the search, or a query that the retriever refuses, is the tool's answer, marked as an
    error.
    """
    server = MCPServer("querylect", version=__version__, log_level="WARNING")

    async def search(
        question: Annotated[str, Field(min_length=1, max_length=MAX_QUESTION, description="The question in full.")],
        k: Count = 10,
        history: Annotated[
            AskedHistory, Field(description="What was said before a question that refers to it, oldest first.")
        ] = [],  # noqa: B006 (a default of a schema, which is copied)
    ) -> SearchAnswer:
        """Find the documents that answer a question. Ask the whole question: it is rewritten for the search engine.
        Where `searched` is false, answer from what you know."""
        assert rewriter is not None
        result = await rewriter.asearch(question, client, k=k, history=utterances(history))
        last = result.turns[-1]
        return SearchAnswer(
            query=last.rewrite.text,
            mode=last.rewrite.plan.mode,
            failure=last.rewrite.failure,
            hits=last.hits,
            error=last.error,
            searched=not last.rewrite.unsearched,
            documents=list(map(FoundDocument.model_validate, last.ranking or ())),
        )

    async def query(
        query: Annotated[str, Field(description="The query, which is run exactly as it is written.")], k: Count = 10
    ) -> QueryAnswer:
        (result,) = await asyncio.to_thread(client.search, [SearchPlan.of(query, k, "native")])
        if result.error is not None:
            raise RequestError(f"The search engine refused the query: {result.error}")
        return QueryAnswer(hits=result.hits, documents=list(map(FoundDocument.model_validate, result.ranking)))

    if rewriter is not None:
        server.add_tool(search)
    if language:
        about = "Find documents by a query in the language of the search engine."
        server.add_tool(query, description=f"{about}\n{language}")
    return server


def serve_search(rewriter: Rewriter | None, url: str) -> None:
    """Serve the tools on standard input and output until the client closes them.

    `url` is that of the environment, whose token is in QUERYLECT_TOKEN. Raises ConfigError if the rewriter does not fit
    its retriever, or if there is neither a rewriter nor a query language, and as `EnvironmentClient.info`.
    """
    with EnvironmentClient(ClientConfig(urls=[url])) as client:
        retriever = RetrieverInfo.from_service(client.info().retriever)
        if rewriter is not None:
            rewriter.select(retriever)
        elif not retriever.query_language:
            raise ConfigError(
                f"the retriever {retriever.name!r} at {url} has no query language that an agent could write: name the "
                "rewriter that writes for it (querylect mcp RUN --env URL)."
            )
        asyncio.run(search_server(client, rewriter, retriever.query_language).run_stdio_async())
