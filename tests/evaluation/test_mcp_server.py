"""`querylect mcp`: a real child process and MCP's own client, over standard input and output and over HTTP."""

import asyncio
import os
import sys
import threading
from queue import Queue

import pytest
from querylect.cli import main
from querylect.configs.schema import ClientConfig
from querylect.envs.client.client import EnvironmentClient, SyncEnvironmentClient
from querylect.export.export import ExportOptions, export_to_folder
from querylect.inference.rewriter import Rewriter

from ..lessons import lesson_url, lessons, settings, speaking  # noqa: F401 (fixtures)
from ..used import save_run

mcp = pytest.importorskip("mcp", reason="no mcp: pip install -e '.[mcp]'")
from mcp.client import Client  # noqa: E402
from mcp.client.stdio import StdioServerParameters, stdio_client  # noqa: E402
from querylect.inference import mcp_server  # noqa: E402

QUESTION = "my head hurts"


@pytest.fixture(scope="module")
def export(lessons, lesson_url, speaking, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("mcp")
    run = save_run(settings.__wrapped__(lessons, lesson_url, speaking, folder), folder / "runs" / "run")
    (target,) = export_to_folder(run, folder / "export", ExportOptions(merge_lora=True, without_evaluation=True))
    return target


@pytest.fixture(scope="module")
def expected(export, lesson_url):  # noqa: F811
    """What the library finds, two documents deep."""
    with Rewriter.from_pretrained(export) as rewriter, SyncEnvironmentClient(ClientConfig(), [lesson_url]) as client:
        result = rewriter.search(QUESTION, client, k=2)
    documents = [{"id": hit.id, "title": hit.title, "text": hit.text} for hit in result.ranking]
    return {"rewrite": result.rewrite.text, "failure": None, "searched": True, "documents": documents}


def test_a_client_starts_the_server_and_searches_with_its_tool(export, expected, lesson_url):  # noqa: F811
    arguments = ["-m", "querylect", "mcp", export, "--env", lesson_url]

    async def talk():
        parameters = StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))
        async with Client(stdio_client(parameters)) as client:
            (tool,) = (await client.list_tools()).tools
            answer = await client.call_tool("search", {"question": QUESTION, "k": 2})
            wrong = await client.call_tool("search", {"question": QUESTION, "k": 0})
            blank = await client.call_tool("search", {"question": "  "})
            return tool, answer, wrong, blank

    tool, answer, wrong, blank = asyncio.run(talk())
    assert tool.name == "search"
    assert tool.input_schema["required"] == ["question"]
    assert set(tool.input_schema["properties"]) == {"question", "k", "history"}
    assert answer.structured_content == expected
    assert not answer.is_error
    assert expected["documents"]
    assert (wrong.is_error, blank.is_error) == (True, True)
    assert "which is blank" in blank.content[0].text


def test_the_tool_is_served_over_http_too(export, expected, lesson_url, monkeypatch):  # noqa: F811
    servers, urls, start = [], Queue(), mcp_server._HttpServer.startup

    async def note_and_start(server, sockets=None):
        servers.append(server)
        await start(server, sockets)

    monkeypatch.setattr(mcp_server._HttpServer, "startup", note_and_start)

    async def talk(url):
        async with Client(url) as client:
            return await client.call_tool("search", {"question": QUESTION, "k": 2})

    with Rewriter.from_pretrained(export) as rewriter:
        thread = threading.Thread(target=mcp_server.serve_search, args=(rewriter, lesson_url, 0, urls.put))
        thread.start()
        try:
            assert asyncio.run(talk(urls.get(timeout=60))).structured_content == expected
        finally:
            for server in servers:
                server.should_exit = True
            thread.join(60)


def test_a_failed_answer_and_a_failed_search_are_told_to_the_agent(export, lesson_url):  # noqa: F811
    async def ask(url, **settings):
        rewriter = Rewriter.from_pretrained(export, settings=settings.get("settings", ()))
        async with (
            EnvironmentClient(ClientConfig(deadline=0.3), [url]) as client,
            Client(mcp_server.search_server(rewriter, client)) as agent,
        ):
            return await agent.call_tool("search", {"question": QUESTION})

    unfinished = asyncio.run(ask(lesson_url, settings=["rollout.max_new_tokens=1"])).structured_content
    assert (unfinished["rewrite"], unfinished["failure"]) == (QUESTION, "unclosed rewrite")
    gone = asyncio.run(ask("http://127.0.0.1:9"))
    assert gone.is_error
    assert "no environment service answers at http://127.0.0.1:9" in gone.content[0].text


def test_a_question_is_rewritten_after_its_history(export, lesson_url):  # noqa: F811
    said = [{"role": "user", "text": "I have a migraine"}, {"role": "assistant", "text": "Since when?"}]
    results, depths = [], []

    class Noting(Rewriter):
        async def asearch(self, *questions, **options):
            depths.append(options["k"])
            results.append(await super().asearch(*questions, **options))
            return results[-1]

    async def ask(*histories):
        rewriter = Noting.from_pretrained(export)
        async with (
            EnvironmentClient(ClientConfig(), [lesson_url]) as client,
            Client(mcp_server.search_server(rewriter, client)) as agent,
        ):
            return [
                await agent.call_tool("search", {"question": QUESTION, "history": said, "k": 3}) for said in histories
            ]

    answer, wrong = asyncio.run(ask(said, [{"role": "tool", "text": "x"}]))
    assert (answer.is_error, wrong.is_error) == (False, True)
    (result,) = results
    assert depths == [3]
    assert [(entry.role, entry.text) for entry in result.question.history] == [tuple(entry.values()) for entry in said]
    assert "I have a migraine" in result.rewrite.continuation.branch.messages[-1]["content"]
    assert answer.structured_content["rewrite"] == result.rewrite.text


def test_what_cannot_be_served_ends_the_command(export, capsys):
    for arguments, exit_code, said in (
        ([export, "--env", "http://127.0.0.1:9", "--model", "x"], 2, "no --endpoint"),
        ([f"{export}-not", "--env", "http://127.0.0.1:9"], 2, f"{export}-not"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["mcp", *arguments])
        assert stopped.value.code == exit_code
        assert said in capsys.readouterr().err
