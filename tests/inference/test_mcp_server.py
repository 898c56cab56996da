"""`querylect mcp`: a real child process and MCP's own client, over standard input and output."""

import asyncio
import json
import os
import sys

import pytest
from querylect.configs.schema import ClientConfig
from querylect.envs.client.client import EnvironmentClient
from querylect.inference.rewriter import Rewriter

from ..chat_server import ChatServer, serving

mcp = pytest.importorskip("mcp", reason="no mcp: pip install -e '.[mcp]'")
from mcp.client import Client  # noqa: E402
from mcp.client.stdio import StdioServerParameters, stdio_client  # noqa: E402
from querylect.inference import mcp_server  # noqa: E402

pytestmark = pytest.mark.model

QUESTION = "my head hurts"
ANSWER = "<think></think><rewrite>headache</rewrite>"


def test_a_client_starts_the_server_and_searches_with_its_tool(settings, lesson_url, run_app, tmp_path):
    """With a model behind an endpoint: the process loads none."""
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(settings.model_dump(mode="json")))  # JSON is YAML

    history, server = [{"role": "user", "text": "my migraine"}], ChatServer(lambda body: ANSWER)

    async def talk():
        arguments = ["mcp", str(config), "--env", lesson_url, "--endpoint", url, "--model", "m"]
        parameters = StdioServerParameters(
            command=sys.executable, args=["-m", "querylect", *arguments], env=dict(os.environ)
        )
        async with Client(stdio_client(parameters)) as client:
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
        "rewrite": result.rewrite.text, "failure": None, "searched": True, "documents": documents
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
            async with Client(mcp_server.search_server(rewriter, client)) as agent:
                return await agent.call_tool("search", {"question": QUESTION})

    unfinished = asyncio.run(ask(lesson_url, settings=["rollout.max_new_tokens=1"])).structured_content
    assert (unfinished["rewrite"], unfinished["failure"]) == (QUESTION, "unclosed rewrite")
    unreachable = asyncio.run(ask("http://127.0.0.1:9"))
    assert unreachable.is_error
    assert "no environment service answers at http://127.0.0.1:9" in unreachable.content[0].text
