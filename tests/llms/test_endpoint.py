"""An endpoint over real HTTP that answers, refuses, stalls or sends garbage: lost replies are missing, never empty."""

import asyncio
import json
import sys
from contextlib import ExitStack
from email.utils import formatdate
from types import SimpleNamespace

import openai
import pytest
from pydantic import BaseModel
from querylect.configs.llm import LlmConfig
from querylect.errors import ConfigError, EngineUnavailableError
from querylect.llms import endpoint
from querylect.llms.base import Prompt, SamplingParams, Text
from querylect.llms.structured import FormPrompt, ask_structured, strict_schema
from querylect.rollouts.llms import open_llm
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from ..chat_server import ChatServer, impatient, last_user, serving  # noqa: F401 (fixture)
from ..raising import refused

pytestmark = pytest.mark.server


ask = Prompt.of


@pytest.fixture
def waits(monkeypatch):
    """The pauses between attempts, each of which ends at once."""
    waits = []

    async def note(seconds):
        waits.append(seconds)

    monkeypatch.setattr(openai._base_client, "anyio", SimpleNamespace(sleep=note))
    return waits


@pytest.fixture
def opened(run_app, waits):
    """A function from a server and settings to a model behind it, without a cache."""
    with ExitStack() as stack:

        def open_(server, **settings):
            url = stack.enter_context(serving(run_app, server))
            return open_llm(LlmConfig(model="m", base_url=url, cache=None, **settings))

        yield open_


def test_replies_come_in_the_order_of_the_prompts_with_their_tokens(opened):
    server = ChatServer(lambda body: f"re: {last_user(body)}")
    llm = opened(server, extra={"top_k": 5, "seed": None})
    replies = llm.ask([ask(f"q{i}") for i in range(20)], SamplingParams(temperature=0.5, top_p=0.9, max_tokens=11))
    assert [reply.texts[0].text for reply in replies] == [f"re: q{i}" for i in range(20)]
    assert all((reply.prompt_tokens, reply.tokens, reply.texts[0].finished) == (7, 3, True) for reply in replies)
    assert (llm.costs.calls, llm.costs.prompt_tokens, llm.costs.tokens) == (20, 140, 60)
    assert llm.ask([ask("q0"), ask("q0")], SamplingParams())[0] is not None
    assert (llm.costs.calls, llm.costs.cached) == (21, 1), "equal prompts are asked once"
    sent = next(body for body in server.bodies if last_user(body) == "q0")
    assert sent == {
        "model": "m",
        "messages": [{"role": "user", "content": "q0"}],
        "n": 1,
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 11,
        "top_k": 5,
    }


def test_retry_after_is_waited_for_where_that_is_two_minutes_at_most(opened, waits):
    server = ChatServer()
    server.script.extend(
        [(429, {"retry-after": "7"}), None, (503, {"retry-after": formatdate(usegmt=True, timeval=4e9)})]
    )
    llm = opened(server, concurrency=1)
    first, second = llm.ask([ask("a"), ask("b")], SamplingParams())
    assert first.texts[0].text == "an answer"
    assert waits == [7]
    assert second is None
    assert llm.costs.missing == {"HTTP 503": 1}


def test_what_fails_in_passing_is_asked_again(opened, waits):
    server = ChatServer()
    server.script.extend([(429, {}), (502, {})] * 2)
    llm = opened(server)
    (reply,) = llm.ask([ask("a")], SamplingParams())
    assert reply.texts[0].text == "an answer"
    assert len(waits) == 4
    assert all(0.375 * 2**k <= seconds <= 0.5 * 2**k for k, seconds in enumerate(waits)), "pauses grow"


def test_first_prompts_have_all_retries_once_anything_answered(opened, waits):
    server = ChatServer()
    server.script.extend([(503, {})] * 3 * (endpoint.FIRST_RETRIES + 1))
    assert None not in opened(server).ask([ask("a"), ask("b")], SamplingParams())


@pytest.mark.parametrize(
    ("deed", "field"),
    [
        ("garbage", "not JSON"),
        ("null", "content"),
        ("empty", "choices"),
        ("form", "choices"),
        ({"content": 5}, "content"),
    ],
)
def test_what_is_no_completion_is_asked_once_and_its_field_is_named(opened, waits, deed, field):
    server = ChatServer()
    server.script.append(deed)
    llm = opened(server)
    assert llm.ask([ask("a")], SamplingParams()) == [None]
    (reason,) = llm.costs.missing
    assert ("no completion" in reason, field in reason) == (True, True), reason
    assert (len(server.bodies), waits) == (1, [])


PARTS = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "an "}]


@pytest.mark.parametrize(
    ("choice", "usage", "text", "tokens"),
    [
        ({"message": {"content": [*PARTS, {"type": "text", "text": "answer"}]}}, {}, "an answer", None),
        ({"message": {"content": ""}}, None, "", None),
        ({"message": {"content": "an answer"}}, {"prompt_tokens": 5, "completion_tokens": None}, "an answer", None),
        ({"message": {"content": "an answer"}}, {"prompt_tokens": 5.5, "completion_tokens": 3.2}, "an answer", 3),
        ({"message": {"content": "\ud83d\ude00 \ud800"}}, {}, "\U0001f600 \ufffd", None),
        ({"message": {"content": "an answer", "reasoning_content": "hm"}}, {}, "<think>hm</think>an answer", None),
        (
            {"message": {"content": "an answer", "reasoning": "so </think> is"}},
            {},
            "<think>so  is</think>an answer",
            None,
        ),
        (
            {"message": {"content": "<think>hm</think>an answer", "reasoning": "hm"}},
            {},
            "<think>hm</think>an answer",
            None,
        ),
        ({"message": {"content": None, "reasoning": "hm"}}, {}, "<think>hm</think>", None),
        ({"message": {"content": "", "reasoning": "hm"}, "finish_reason": "length"}, {}, "<think>hm", None),
        (
            {"message": {"content": "an answer"}, "logprobs": {"content": [{"token": "a", "top_logprobs": None}]}},
            {"prompt_tokens": 5},
            "an answer",
            None,
        ),
    ],
)
def test_other_forms_of_a_completion_are_read(run_app, choice, usage, text, tokens):
    async def complete(request):
        body = json.dumps({"choices": [{"finish_reason": "stop", **choice}], "usage": usage})
        return Response(body, media_type="application/json")

    with run_app(Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])) as url:
        llm = open_llm(LlmConfig(model="m", base_url=f"{url}/v1", cache=None))
        (reply,) = llm.ask([ask("a")], SamplingParams(first_logprobs=2))
    assert (reply.texts, reply.tokens) == ((Text(text, "finish_reason" not in choice),), tokens)


def test_an_endpoint_on_this_machine_is_asked_without_a_proxy(opened, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert opened(ChatServer()).ask([ask("a")], SamplingParams())[0].texts[0].text == "an answer"


def test_a_socks_proxy_without_its_package_is_named(monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "socksio", None)
    with refused(ConfigError, "http://host.invalid/v1", "socksio"):
        open_llm(LlmConfig(base_url="http://host.invalid/v1", cache=None)).ask([ask("a")], SamplingParams())


def test_a_prompt_without_an_answer_at_its_deadline_is_missing(opened, monkeypatch):
    server, timeout = ChatServer(), asyncio.timeout
    server.always = lambda body: "hang"
    llm = opened(server, deadline=77)
    monkeypatch.setattr(asyncio, "timeout", lambda seconds: timeout(0 if seconds == 77 else seconds))
    assert llm.ask([ask("a"), ask("b")], SamplingParams()) == [None, None]
    assert llm.costs.missing["timeout"] == llm.costs.missing.total() == 2


def test_a_refused_prompt_is_missing_and_is_not_asked_again(opened):
    server = ChatServer()
    server.always = lambda body: (400, {}) if last_user(body) == "long" else None
    llm = opened(server)
    replies = llm.ask([ask("a"), ask("long")], SamplingParams())
    assert [reply is None for reply in replies] == [False, True]
    assert llm.costs.missing == {"HTTP 400": 1}
    assert len(server.bodies) == 2


def test_a_wrong_key_url_or_model_ends_the_run(opened, monkeypatch):
    server = ChatServer()
    server.always = lambda body: (401, {})
    monkeypatch.setenv("QUERYLECT_LLM_KEY", "secret \n")
    with refused(ConfigError, "HTTP 401", "'m'", "QUERYLECT_LLM_KEY is set"):
        opened(server).ask([ask("a")], SamplingParams())
    assert server.keys[0] == "Bearer secret"


@pytest.mark.usefixtures("impatient")
def test_an_endpoint_that_is_not_there_ends_the_run():
    llm = open_llm(LlmConfig(base_url="http://127.0.0.1:9/v1", deadline=60, cache=None))
    with refused(EngineUnavailableError, "http://127.0.0.1:9/v1"):
        llm.ask([ask("a")], SamplingParams())
    with refused(ConfigError, "base_url", "'localhost:8000'"):
        open_llm(LlmConfig(base_url="localhost:8000"))


def test_an_endpoint_that_gives_one_text_at_a_time_is_asked_for_all_of_them(opened):
    server = ChatServer(lambda body: str(body["seed"]), choices=1)
    (reply,) = opened(server).ask([ask("a")], SamplingParams(n=3, seed=5))
    assert [text.text for text in reply.texts] == ["5", "6", "7"]
    assert (reply.prompt_tokens, reply.tokens) == (21, 9)


def test_cut_texts_first_tokens_and_unknown_counts_are_told(opened):
    server = ChatServer(usage=False)
    server.script.append("cut")
    llm = opened(server)
    (reply,) = llm.ask([ask("a")], SamplingParams(first_logprobs=2))
    assert reply.texts[0].first == {"Yes": -0.1, "No": -2.4}
    assert not reply.texts[0].finished
    assert (reply.prompt_tokens, reply.tokens, llm.costs.tokens) == (None, None, 0)


class Verdict(BaseModel):
    verdict: bool


def test_an_endpoint_gets_the_schema_and_one_that_refuses_it_is_asked_without(opened, caplog):
    judge = FormPrompt("Judge.", "case")
    server = ChatServer(lambda body: '{"verdict": true}')
    assert ask_structured(opened(server), [judge], Verdict, SamplingParams())[0].value == Verdict(verdict=True)
    assert server.bodies[0]["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "strict": True, "schema": json.loads(strict_schema(Verdict))},
    }
    plain = ChatServer(lambda body: '{"verdict": false}')
    plain.always = lambda body: (400, {}) if "response_format" in body else None
    llm = opened(plain)
    for number in (1, 2):
        (outcome,) = ask_structured(llm, [FormPrompt("Judge.", str(number))], Verdict, SamplingParams())
        assert outcome.value == Verdict(verdict=False)
    assert ["response_format" in body for body in plain.bodies] == [True, False, False]
    assert caplog.text.count("no structured outputs") == 1
    assert llm.costs.missing == {}
