"""`querylect serve --rewriter --openai`: a tiny export on a real service, by httpx and OpenAI's client."""

import json
from contextlib import contextmanager

import httpx
import openai
import pytest
from querylect.envs.environment import Environment
from querylect.envs.server.app import create_app
from querylect.inference import served
from querylect.inference.load import open_trained
from querylect.inference.openai_protocol import CHAT_PATH, AskedMessage, question_of
from querylect.inference.server import open_rewriter

TOKEN = "s3cret"
ASKED = [{"role": "user", "content": "my head hurts"}]
CHAT = [
    {"role": "system", "content": "You are kind."},
    {"role": "user", "content": "I have a migraine"},
    {"role": "assistant", "content": "Since when?"},
    {"role": "user", "content": [{"type": "text", "text": "what "}, {"type": "text", "text": "helps"}]},
]
HISTORY = [{"role": "user", "content": "I have a migraine"}, {"role": "assistant", "content": "Since when?"}]


@pytest.fixture(scope="module")
def serving(export, lessons, run_app):
    """Starts the service of the export; gives its URL."""

    @contextmanager
    def start(turn=None, spoken=True):
        extend = open_rewriter(open_trained(export), None, turn, spoken)
        with run_app(create_app(Environment.open(lessons), TOKEN, extend)) as url:
            yield url

    return start


@pytest.fixture(scope="module")
def url(serving):
    with serving() as url:
        yield url


@pytest.fixture
def http(url):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as http:
        yield http


@pytest.fixture
def client(url):
    """OpenAI's own client, which does not try again."""
    with httpx.Client(trust_env=False) as http:
        yield openai.OpenAI(base_url=f"{url}/v1", api_key=TOKEN, max_retries=0, http_client=http)


def tokens(result):
    """Prompt and answer tokens of a first turn."""
    return len(result.continuation.node.prompt_ids), len(result.continuation.node.completion_ids)


def test_a_question_is_answered_by_its_rewrite_with_its_tokens(http, export, rewriter):
    expected = rewriter.rewrite("my head hurts")
    answer = http.post(CHAT_PATH, json={"model": export, "messages": ASKED, "temperature": 1, "user": "me"}).json()
    prompt, completion = tokens(expected)
    assert answer["usage"] == {
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
    }  # fmt: skip
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected.text, "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert answer["rewrite"] == expected.record()
    assert (answer["object"], answer["model"]) == ("chat.completion", export)


def test_messages_before_the_last_question_are_its_history(http, export, rewriter):
    expected = rewriter.rewrite("what helps", history=HISTORY)
    answer = http.post(CHAT_PATH, json={"model": export, "messages": CHAT}).json()
    assert answer["rewrite"] == expected.record()
    assert answer["rewrite"]["history"] == [
        {"role": "user", "text": "I have a migraine"}, {"role": "assistant", "text": "Since when?"},
    ]  # fmt: skip
    assert answer["usage"]["prompt_tokens"] == tokens(expected)[0] > tokens(rewriter.rewrite("what helps"))[0]
    later = [*CHAT, {"role": "system", "content": "Be brief."}]
    assert http.post(CHAT_PATH, json={"model": export, "messages": later}).json()["rewrite"] == expected.record()


def test_the_newest_messages_of_a_long_chat_are_its_history():
    earlier = [AskedMessage(role=("user", "assistant")[at % 2], content=f"text {at}") for at in range(100)]
    history = question_of([*earlier, AskedMessage(role="user", content="and now?")]).history
    assert [utterance.text for utterance in history] == [f"text {at}" for at in range(36, 100)]


def test_a_stream_is_one_chunk_and_its_end(http, export, rewriter):
    body = {"model": export, "messages": ASKED, "stream": True, "stream_options": {"include_usage": True}}
    answer = http.post(CHAT_PATH, json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, end = [event.removeprefix("data: ") for event in answer.text.split("\n\n") if event]
    first, usage = map(json.loads, chunks)
    text = rewriter.rewrite("my head hurts").text
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": text}
    assert (first["choices"][0]["finish_reason"], first["object"], end) == ("stop", "chat.completion.chunk", "[DONE]")
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == tokens(rewriter.rewrite("my head hurts"))[1]


def test_the_client_of_openai_lists_asks_and_streams(client, export, rewriter):
    assert [model.id for model in client.models.list()] == [export]
    assert client.models.retrieve(export).owned_by == "querylect"
    expected = rewriter.rewrite("what helps", history=HISTORY)
    answer = client.chat.completions.create(model=export, messages=CHAT)
    assert answer.choices[0].message.content == expected.text
    assert answer.usage.total_tokens == sum(tokens(expected))
    chunks = list(client.chat.completions.create(model=export, messages=CHAT, stream=True))
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == expected.text


def test_the_client_of_openai_understands_the_errors(client, export, url):
    ask = client.chat.completions.create
    stranger = openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0, http_client=client._client)
    with pytest.raises(openai.AuthenticationError) as unknown:
        stranger.models.list()
    assert (unknown.value.code, unknown.value.type) == ("invalid_api_key", "invalid_request_error")
    with pytest.raises(openai.NotFoundError) as missing:
        ask(model="gpt-oss", messages=ASKED)
    assert missing.value.code == "model_not_found"
    assert repr(export) in missing.value.message
    picture = [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]
    for messages, fields in (
        ([], {}),
        (ASKED, {"n": 2}),
        ([{"role": "system", "content": "hello"}], {}),
        ([{"role": "user", "content": "  "}], {}),
        ([*ASKED, {"role": "assistant", "content": "aspirin"}], {}),
        ([{"role": "user", "content": picture}], {}),
        ([{"role": "user", "content": "x" * 4001}], {}),
    ):
        with pytest.raises(openai.BadRequestError) as wrong:
            ask(model=export, messages=messages, **fields)
        assert wrong.value.type == "invalid_request_error", wrong.value
        assert len(wrong.value.message) > 30
    with pytest.raises(openai.BadRequestError) as bad_role:
        ask(model=export, messages=[{"role": "poet", "content": "x"}])
    assert bad_role.value.param == "messages.0.role"


def test_only_the_calls_of_the_protocol_have_its_errors(http, export, monkeypatch):
    monkeypatch.setattr(served, "MAX_WAITING", 0)
    full = http.post(CHAT_PATH, json={"model": export, "messages": ASKED})
    assert (full.status_code, full.headers["content-type"]) == (503, "application/json")
    assert full.json()["error"]["type"] == "server_error"
    assert int(full.headers["retry-after"]) >= 1
    assert full.headers["x-request-id"]
    assert int(full.headers["content-length"]) == len(full.content)
    rewrite_response = http.post("/v1/rewrite", json={"questions": ["x"]})
    assert (rewrite_response.status_code, rewrite_response.headers["content-type"]) == (503, "application/problem+json")
    assert CHAT_PATH not in http.get("/v1/openapi.json").json()["paths"]


def test_tokens_of_both_turns_are_counted_and_the_index_is_searched_between(serving, export):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with serving(turn=2) as url, httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as http:
        answer = http.post(CHAT_PATH, json={"model": export, "messages": ASKED}).json()
        first = http.post("/v1/rewrite", json={"questions": ["my head hurts"], "turn": 1}).json()["rewrites"]
    assert (answer["rewrite"]["turn"], first[0]["turn"]) == (2, 1)
    assert answer["usage"]["completion_tokens"] == 8, "four of each turn"


def test_without_the_flag_there_is_no_such_call(serving, export):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with serving(spoken=False) as url, httpx.Client(base_url=url, headers=headers, trust_env=False) as http:
        assert http.post(CHAT_PATH, json={"model": export, "messages": ASKED}).status_code == 404
        assert http.get("/v1/models").headers["content-type"] == "application/problem+json"
