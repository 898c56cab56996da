"""The cache of replies: no process repeats a cached request, and a kill damages nothing."""

import os
import signal
import sqlite3
import subprocess
import sys

import pytest
from querylect.configs.llm import LlmConfig
from querylect.errors import StorageError
from querylect.llms.access import Llm, ReplyCache
from querylect.llms.base import LlmResponse, Prompt, SamplingParams, Text
from querylect.llms.endpoint import Endpoint
from querylect.rollouts.llms import open_llm

from ..chat_server import ChatServer, serving
from ..raising import refused

pytestmark = pytest.mark.server

WRITER = """
import sys
from pathlib import Path
from querylect.llms.base import LlmResponse, Text
from querylect.llms.access import Llm, ReplyCache

cache = ReplyCache(Path(sys.argv[1]))
for number in range(int(sys.argv[3])):
    cache.put(f"{sys.argv[2]}-{number}", LlmResponse((Text("x" * 2000, True),), 1, 1))
    cache.put(f"both-{number}", LlmResponse((Text(sys.argv[2], True),), 1, 1))
    print(number, flush=True)
"""


ask = Prompt.of
QUESTION, GREEDY = ask("q"), SamplingParams()


def writer(path, name, count):
    command = [sys.executable, "-c", WRITER, str(path), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_reply_is_asked_for_once_and_every_change_asks_anew(run_app, tmp_path):
    server = ChatServer()
    server.script.append((400, {}))
    with serving(run_app, server) as url:
        config = LlmConfig(model="m", base_url=url, cache=str(tmp_path / "c.sqlite"))
        with open_llm(config) as llm:
            assert llm.ask([QUESTION], GREEDY) == [None], "a missing reply is not kept"
        server.bodies.clear()

        def calls(prompt=QUESTION, draw=GREEDY, **settings):
            earlier = len(server.bodies)
            config = LlmConfig(**{"model": "m", "base_url": url, "cache": str(tmp_path / "c.sqlite"), **settings})
            with open_llm(config) as llm:
                (reply,) = llm.ask([prompt], draw)
                assert reply.texts[0].text == "an answer"
                assert llm.costs.calls + llm.costs.cached == 1
            return len(server.bodies) - earlier

        assert calls() == 1
        assert calls() == 0
        assert calls(concurrency=3, deadline=90.0) == 0
        changed = [SamplingParams(n=2), SamplingParams(temperature=0.1), SamplingParams(max_tokens=9)]
        assert [calls(draw=draw) for draw in [*changed, SamplingParams(seed=1)]] == [1] * 4
        assert [
            calls(ask("r")),
            calls(Prompt(QUESTION.messages, schema="{}")),
            calls(model="n"),
            calls(extra={"k": 1}),
        ] == [1] * 4
        assert calls(Prompt(({"role": "system", "content": "q"},))) == 1
        assert calls(base_url=url + "/") == 1
        assert calls() == 0


def test_a_killed_process_leaves_every_reply_that_it_said_was_kept(tmp_path):
    path = tmp_path / "c.sqlite"
    cache, process = ReplyCache(path), writer(path, "killed", 10**6)
    for number in range(20):
        cache.put(f"both-{number}", LlmResponse((Text("here", True),), 1, 1))
        last = int(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert all(cache.get(f"{name}-{number}") for name in ("killed", "both") for number in range(last + 1))


def test_a_damaged_file_is_named_and_a_reply_is_read_as_it_was_kept(tmp_path):
    (tmp_path / "bad").write_text("no database" * 100)
    with refused(StorageError, tmp_path / "bad", "cache=FILE"):
        ReplyCache(tmp_path / "bad")
    cache = ReplyCache(tmp_path / "good")
    reply = LlmResponse((Text("t", False, {"a": -1.0}),), None, 2)
    cache.put("a", reply)
    assert (cache.get("a"), cache.get("b")) == (reply, None)


def test_replies_before_a_lost_endpoint_are_kept(run_app, tmp_path):
    from querylect.errors import EngineUnavailableError

    server = ChatServer()
    server.always = lambda body: (500, {"retry-after": "1000"}) if len(server.bodies) > 5 else None
    cache = ReplyCache(tmp_path / "c")
    prompts = [ask(str(i)) for i in range(40)]
    with serving(run_app, server) as url:
        config = LlmConfig(model="m", base_url=url, concurrency=1)
        with refused(EngineUnavailableError, "8 prompts", "scripted failure"):
            Llm(Endpoint(config), cache).ask(prompts, SamplingParams())
        server.always = None
        llm = Llm(Endpoint(config), cache)
        assert all(llm.ask(prompts, SamplingParams()))
    assert (llm.costs.cached, llm.costs.calls) == (5, 35)
