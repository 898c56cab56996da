"""A search tool for agents, by the Model Context Protocol (MCP): a question is rewritten, then searched.

The server has one tool, `search`. A client starts it as a child process and speaks to it over standard input and
output. The documents are those of a running environment service.
"""

import asyncio
from typing import Annotated

from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel, Field

from ..configs.schema import ClientConfig
from ..data.types import Document
from ..envs.client.client import EnvironmentClient
from ..envs.schemas import MAX_QUESTION, AskedHistory, utterances
from ..version import __version__
from .rewriter import Rewriter

MAX_DOCUMENTS = 100
"""Most documents of one answer; an agent reads them all."""


class ToolAnswer(BaseModel):
    """What the tool `search` returns."""

    rewrite: str
    """The query that was searched; the question itself where no rewrite could be used."""
    failure: str | None = None
    """Why no rewrite could be used."""
    searched: bool = True
    """False where the rewriter stopped before any search: the question needs no documents, and there are none."""
    documents: list[Document]
    """Best first."""


def search_server(rewriter: Rewriter, client: EnvironmentClient) -> MCPServer:
    """The server whose tool searches the client's environment with the rewriter.

    An error of the rewriter or of the search is the tool's answer, marked as an error.
    """
    server = MCPServer("querylect", version=__version__, log_level="WARNING")

    @server.tool()  # type: ignore[untyped-decorator]
    async def search(
        question: Annotated[str, Field(min_length=1, max_length=MAX_QUESTION, description="The question in full.")],
        k: Annotated[int, Field(ge=1, le=MAX_DOCUMENTS, description="How many documents to return.")] = 10,
        history: Annotated[
            AskedHistory, Field(description="What was said before a question that refers to it, oldest first.")
        ] = [],  # noqa: B006 (a default of a schema, which is copied)
    ) -> ToolAnswer:
        """Find the documents that answer a question. Ask the whole question: it is rewritten for the search engine.
        Where `searched` is false, answer from what you know."""
        result = await rewriter.asearch(question, client, k=k, history=utterances(history))
        return ToolAnswer(
            rewrite=result.rewrite.text,
            failure=result.failure,
            searched=not result.rewrite.unsearched,
            documents=[hit.document for hit in result.ranking or ()],
        )

    return server


def serve_search(rewriter: Rewriter, url: str) -> None:
    """Serve the tool on standard input and output until the client closes them.

    `url` is that of the environment, whose token is in QUERYLECT_TOKEN. Raises ConfigError if the rewriter does not fit
    its retriever, and as `EnvironmentClient.info`.
    """
    with EnvironmentClient(ClientConfig(urls=[url])) as client:
        rewriter.select(client.info().retriever)
        asyncio.run(search_server(rewriter, client).run_stdio_async())
