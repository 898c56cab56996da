"""The repr of public objects: one short line, without secrets."""

import asyncio
from base64 import b64encode
from http.server import BaseHTTPRequestHandler

import pytest
from querylect.configs.llm import LlmConfig
from querylect.configs.schema import ClientConfig
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.client.client import EnvironmentClient, SyncEnvironmentClient
from querylect.envs.client.in_process import InProcessClient
from querylect.envs.client.multi import MixedClient
from querylect.envs.plan import SearchPlan
from querylect.errors import EnvironmentUnavailableError
from querylect.inference.endpoint import endpoint_of
from querylect.inference.load import open_trained
from querylect.inference.results import RewriteResult
from querylect.inference.rewriter import Rewriter

from ..hub import answered_by

SECRET = "s3cret"


def test_an_environment_says_what_it_holds(small_environment):
    client = InProcessClient(small_environment)
    expected = "Environment('small/bm25', bm25, 6 documents, 1 train questions, 3 test questions)"
    assert repr(client._environment) == expected
    assert repr(client) == f"InProcessClient({client._environment!r})"


def test_a_client_says_where_it_asks_and_neither_its_token_nor_a_password(monkeypatch):
    monkeypatch.setenv("QUERYLECT_TOKEN", SECRET)
    config = ClientConfig(urls=[f"http://me:{SECRET}@127.0.0.1:9", "http://127.0.0.1:8"], deadline=0.2)
    with SyncEnvironmentClient(config) as client:
        assert repr(client) == "SyncEnvironmentClient(http://127.0.0.1:9, http://127.0.0.1:8)"
        assert repr(MixedClient({"a": client})) == f"MixedClient(a={client!r})"
        assert SECRET not in repr(client._client._transport.replicas)
        with pytest.raises(EnvironmentUnavailableError) as caught:
            client.environment()
    assert "127.0.0.1:9" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert repr(client._client).startswith("EnvironmentClient(")


def test_user_and_password_of_a_url_are_sent_as_before():
    sent = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            sent.append(self.headers["Authorization"])
            self.send_response(403)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            """Say nothing."""

    async def ask(url):
        async with EnvironmentClient(ClientConfig(urls=[url.replace("//", f"//me:{SECRET}%21@")])) as client:
            await client.environment()

    with answered_by(Handler) as url, pytest.raises(Exception, match="403"):
        asyncio.run(ask(url))
    assert sent == ["Basic " + b64encode(f"me:{SECRET}!".encode()).decode()]


def test_a_rewriter_says_its_retriever_turn_and_endpoint():
    trained = open_trained("tiny")
    assert repr(trained) == f"Trained('tiny', unknown, turn=1 of {trained.turns})"
    endpoint = endpoint_of(LlmConfig(model="m", base_url=f"http://me:{SECRET}@host:8000/v1"), None, trained=False)
    assert repr(endpoint) == "EndpointModel('m', 'http://host:8000/v1')"
    with Rewriter(trained, endpoint) as rewriter:
        expected = "Rewriter('tiny', retriever='unknown', turn=1, endpoint='http://host:8000/v1', model='m')"
        assert repr(rewriter) == expected


def test_a_result_says_question_and_rewrite_in_one_line():
    result = RewriteResult(Question("", "my head\nhurts"), 2, SearchPlan.of("triptan"), ("triptan",))
    assert repr(result) == "RewriteResult('my head hurts' → 'triptan', turn=2)"
    failed = RewriteResult(Question("", "x" * 99), 1, SearchPlan.of("x"), failure="missing think")
    assert repr(failed) == f"RewriteResult('{'x' * 59}…' → the question, for it failed: missing think, turn=1)"


def test_a_dataset_says_its_sizes():
    split = Split([Question("q", "text")], {"q": {"d": 2, "e": 0}})
    dataset = Dataset("set", [Document("d", "", "text")] * 5, {"test": split})
    assert repr(dataset) == "Dataset('set', 5 documents, test=Split(1 questions, 1 relevant judgements))"
