"""`querylect mcp`: a real child process and MCP's own client, over standard input and output."""

import asyncio
import json
import os
import sys

import pytest
from querylect.configs.schema import ClientConfig
from querylect.envs.client.client import EnvironmentClient
from querylect.envs.environment import Environment
from querylect.envs.server.app import create_app
from querylect.errors import ConfigError
from querylect.inference.rewriter import Rewriter

from ..chat_server import ChatServer, serving
from ..raising import refused

mcp = pytest.importorskip("mcp", reason="no mcp: pip install -e '.[mcp]'")
from mcp.client import Client  # noqa: E402
from mcp.client.stdio import StdioServerParameters, stdio_client  # noqa: E402
from querylect.inference import mcp_server  # noqa: E402

pytestmark = pytest.mark.model

QUESTION = "my head hurts"
ANSWER = "<think></think><rewrite>headache</rewrite>"


def started(*arguments):
    """A client of the command as a child process."""
    command = ["-m", "querylect", "mcp", *arguments]
    return Client(stdio_client(StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))))


def test_a_client_starts_the_server_and_searches_with_its_tool(settings, lesson_url, run_app, tmp_path):
    """With a model behind an endpoint: the process loads none."""
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(settings.model_dump(mode="json")))  # JSON is YAML

    history, server = [{"role": "user", "text": "my migraine"}], ChatServer(lambda body: ANSWER)

    async def talk():
        async with started(str(config), "--env", lesson_url, "--endpoint", url, "--model", "m") as client:
            (tool,) = (await client.list_tools()).tools
            answer = await client.call_tool("search", {"question": QUESTION, "k": 2})
            wrong = await client.call_tool("search", {"question": QUESTION, "k": 0})
            blank = await client.call_tool("search", {"question": "  "})
            await client.call_tool("search", {"question": "since monday", "history": history})
            return tool, answer, wrong, blank

    with (
        serving(run_app, server) as url,
        Rewriter.from_pretrained(config, endpoint=url, model="m") as rewriter,
    ):
        tool, answer, wrong, blank = asyncio.run(talk())
        assert "my migraine" in json.dumps(server.bodies[-1]), "what was said before the question"
        with EnvironmentClient(ClientConfig(), [lesson_url]) as client:
            result = rewriter.search(QUESTION, client, k=2)
    documents = [{"id": hit.id, "title": hit.title, "text": hit.text} for hit in result.ranking]
    assert answer.structured_content == {
        "query": result.rewrite.text, "mode": "text", "hits": None, "error": None, "failure": None, "searched": True,
        "documents": documents,
    }  # fmt: skip
    assert tool.name == "search"
    assert tool.input_schema["required"] == ["question"]
    assert set(tool.input_schema["properties"]) == {"question", "k", "history"}
    assert not answer.is_error
    assert (wrong.is_error, blank.is_error) == (True, True)
    assert "not blank" in blank.content[0].text


def test_a_failed_answer_and_a_failed_search_are_told_to_the_agent(export, lesson_url):
    async def ask(url, **settings):
        rewriter = Rewriter.from_pretrained(export, settings=settings.get("settings", ()))
        with EnvironmentClient(ClientConfig(deadline=0.3), [url]) as client:  # own clock
            async with Client(mcp_server.search_server(client, rewriter)) as agent:
                return await agent.call_tool("search", {"question": QUESTION})

    unfinished = asyncio.run(ask(lesson_url, settings=["rollout.max_new_tokens=1"])).structured_content
    assert (unfinished["query"], unfinished["failure"]) == (QUESTION, "unclosed rewrite")
    unreachable = asyncio.run(ask("http://127.0.0.1:9"))
    assert unreachable.is_error
    assert "no environment service answers at http://127.0.0.1:9" in unreachable.content[0].text


def test_an_agent_writes_queries_itself_and_is_told_why_one_is_refused(fts5_lessons, lesson_url, run_app):
    async def talk(url):
        async with started("--env", url) as client:
            (tool,) = (await client.list_tools()).tools
            queries = ("headache NOT migraine", "head ache", "head, ache")
            return tool, [await client.call_tool("query", {"query": query, "k": 3}) for query in queries]

    environment = Environment.open(fts5_lessons)
    with run_app(create_app(environment)) as url:
        tool, (hit, nothing, wrong) = asyncio.run(talk(url))
    assert tool.name == "query"
    assert tool.description.endswith(environment.info().retriever["query_language"])
    aspirin = {"id": "aspirin", "title": "About aspirin", "text": "aspirin relieves headache"}
    assert hit.structured_content == {"hits": 1, "documents": [aspirin]}
    assert nothing.structured_content == {"hits": 0, "documents": []}
    assert [answer.is_error for answer in (hit, nothing, wrong)] == [False, False, True]
    assert 'fts5: syntax error near ","' in wrong.content[0].text
    with refused(ConfigError, "'bm25'", lesson_url, "rewriter"):
        mcp_server.serve_search(None, lesson_url)
