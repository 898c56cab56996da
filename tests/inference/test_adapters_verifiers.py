"""The environment in the real library *verifiers*: its loader, its harness, its episodes, with a scripted model server.

Skipped where verifiers (the extra `verifiers`) or `uv`, which its harness runs with, is missing. `uv` comes with the
extra and is found beside the interpreter, also where the environment that holds both is not activated.
"""

import asyncio
import json
import os
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from fastapi import FastAPI, Request, Response
from querylect.envs.environment import Environment
from querylect.envs.server.app import create_app

from ..pauses import PausesOnly

PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("uv", path=PATH) is None, reason="no uv, which verifiers runs its harness with"),
]
vf = None
"""verifiers.v1, once a test begins: importing it takes seconds, which every process that collects tests would pay."""

TASKSET = "querylect"


@pytest.fixture(autouse=True)
def _verifiers(monkeypatch):
    global vf
    vf = pytest.importorskip("verifiers.v1", reason="no verifiers: pip install -e '.[verifiers]'")
    monkeypatch.setenv("PATH", PATH)


@pytest.fixture
def model(run_app):
    """`with model(replies) as (url, requests)`: an OpenAI-compatible server that sends these replies in turn."""

    @contextmanager
    def start(replies):
        app, requests = FastAPI(), []

        @app.post("/v1/chat/completions")
        async def complete(request: Request):
            requests.append(json.loads(await request.body()))
            message = {"role": "assistant", "content": replies[len(requests) - 1]}
            answer = {"id": "x", "created": 0, "model": "scripted"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            if not requests[-1].get("stream"):
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                return {**answer, "object": "chat.completion", "choices": [choice], "usage": usage}
            choice = {"index": 0, "delta": message, "finish_reason": "stop"}
            chunk = {**answer, "object": "chat.completion.chunk", "choices": [choice], "usage": usage}
            return Response(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", media_type="text/event-stream")

        with run_app(app) as address:
            yield f"{address}/v1", requests

    return start


def play(service, model_url, tasks=None, turns=2, **settings):
    """One episode of the first test question."""
    from verifiers.v1.clients import ModelContext
    from verifiers.v1.configs.client import EvalClientConfig

    taskset = {"id": TASKSET, "urls": [service], "split": "test", **settings}
    env = vf.load_environment(vf.resolve_env_config({"taskset": taskset, "turns": turns}))
    assert type(env).__name__ == "RetrievalEnv"
    client = EvalClientConfig(base_url=model_url, api_key_var="NO_SUCH_VARIABLE")
    task = next(iter(tasks or env.taskset))

    async def episode():
        async with env.serving():
            return await env.run_episode(task, ModelContext("scripted", client))

    return asyncio.run(episode())


def test_the_last_search_is_the_reward_and_a_reply_without_a_query_is_worth_nothing(url, model):
    with model(["<think>hm</think>aspirin", "<think>nothing</think>", "triptan headache"]) as (address, requests):
        episode = play(url, address, turns=3)
    assert episode.ok, episode.errors
    (trace,) = episode.traces
    assert trace.rewards["ndcg@10"].score == 1.0
    assert 0 < trace.metrics["turn_1_ndcg@10"] < 1
    assert (trace.metrics["turn_2_ndcg@10"], trace.metrics["turn_3_ndcg@10"]) == (0.0, 1.0)
    messages = [(message["role"], message["content"]) for message in requests[1]["messages"]]
    assert [role for role, _ in messages] == ["system", "user", "assistant", "user"]
    assert "1. About aspirin: aspirin relieves headache" in str(messages[-1][1])
    assert "held no query" in str(requests[2]["messages"][-1]), "the episode goes on"


def test_an_outage_is_an_error_and_never_a_reward(small_environment, run_app, model, monkeypatch):
    from verifiers.v1.utils.loaders import load_taskset

    with run_app(create_app(Environment.open(small_environment))) as stopped_url:
        config = vf.taskset_config_type(TASKSET)(id=TASKSET, urls=[stopped_url], split="test")
        tasks = list(load_taskset(config))
    monkeypatch.setattr("querylect.envs.client.client.RetryClock", lambda: PausesOnly().clock)
    with model(["triptan"]) as (address, _):
        episode = play(stopped_url, address, tasks=tasks)
    assert not episode.ok
    assert "failed" in str(episode.errors)
    assert all("ndcg@10" not in trace.rewards for trace in episode.traces)
