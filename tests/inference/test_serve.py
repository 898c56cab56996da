"""`querylect serve --rewriter`: a real tiny policy on a real service, over real connections."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from unittest.mock import AsyncMock

import httpx
import pytest
import schemathesis
from querylect.configs.schema import ClientConfig
from querylect.data.types import Question
from querylect.envs.client.client import EnvironmentClient
from querylect.envs.environment import Environment
from querylect.envs.plan import SearchPlan
from querylect.envs.server.app import create_app
from querylect.envs.server.batching import OverloadedError
from querylect.errors import EnvironmentUnavailableError, RequestError
from querylect.inference import server as serving
from querylect.inference.rewriter import Rewriter
from querylect.inference.server import mount
from querylect.rollouts.engines.transformers import TransformersEngine

pytestmark = pytest.mark.model

QUESTIONS = ["my head hurts", {"text": "too much sugar", "options": ["yes", "no"]}, "bleeding gums"]
PLANS = {"plans": [SearchPlan.of("glucose").model_dump()]}


@pytest.fixture
def service(trained_run, lessons, run_app):
    """Starts the service; gives an HTTP client of it and its rewriter."""

    @contextmanager
    def start(token=None):
        rewriter = Rewriter.from_pretrained(trained_run[1])
        app = create_app(Environment.open(lessons), token, partial(mount, rewriter=rewriter))
        with run_app(app) as url, httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
            yield http, rewriter

    return start


def test_questions_are_rewritten_and_searched_as_the_library_does(service, trained_run):
    with service() as (http, rewriter):
        questions = [
            Question("", QUESTIONS[0]),
            Question("", "too much sugar", ("yes", "no")),
            Question("", QUESTIONS[2]),
        ]
        with EnvironmentClient(ClientConfig(urls=[str(http.base_url)])) as client:
            expected = {turns: rewriter.search(questions, client, turns=turns) for turns in (1, 2)}
        history = [{"role": "user", "text": "my head hurts"}, {"role": "assistant", "text": "since when?"}]
        body = {"questions": [{"text": "since monday", "history": history}]}
        (after,) = http.post("/v1/ask", json=body).json()["answers"]
        rewrite = rewriter.rewrite("since monday", history=history)
        assert after["turns"] == [rewrite.record() | {"hits": None, "error": None}]
        assert http.post("/v1/ask", json={"questions": QUESTIONS}).json()["rewriter"] == str(trained_run[1])
        for body, turns in (({}, 1), ({"turns": 2, "k": 1}, 2)):
            answer = http.post("/v1/ask", json={"questions": QUESTIONS, **body}).json()
            for entry, result in zip(answer["answers"], expected[turns], strict=True):
                assert [turn["text"] for turn in entry["turns"]] == [turn.rewrite.text for turn in result.turns]
                hits = [(hit.id, hit.text) for hit in result.ranking[: body.get("k")]]
                assert [(hit["id"], hit["text"]) for hit in entry["ranking"]] == hits
        blank = http.post("/v1/ask", json={"questions": ["x", "  "]})
        assert 400 <= blank.status_code < 500
        assert "question 2 of 2 is '  '" in blank.text


def test_token_limits_and_errors_are_the_services_own(service, monkeypatch):
    with service(token="s3cret") as (http, _):
        assert http.post("/v1/ask", json={"questions": ["x"]}).status_code == 401
        http.headers["Authorization"] = "Bearer s3cret"
        for body in (
            {"questions": []},
            {"questions": ["x"], "n": 1},
            {"questions": ["x"], "turns": 5},
            {"questions": ["x" * (serving.MAX_QUESTION + 1)]},
            {"questions": ["x"] * (serving.MAX_QUESTIONS + 1)},
        ):
            answer = http.post("/v1/ask", json=body)
            assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
        document = http.get("/v1/openapi.json").json()
        schemathesis.openapi.from_dict(document).validate()
        operation = document["paths"]["/v1/ask"]["post"]
        assert {"200", "401", "422", "503"} <= set(operation["responses"])
        for error, status in (
            (EnvironmentUnavailableError("the retriever is down"), 503),
            (OverloadedError("too much"), 503),
            (RequestError("no such probe"), 422),
        ):
            monkeypatch.setattr("querylect.envs.server.batching.Batcher.rank", AsyncMock(side_effect=error))
            for path, body in (("search", PLANS), ("ask", {"questions": ["one"]})):
                answer = http.post(f"/v1/{path}", json=body)
                assert (answer.status_code, answer.json()["detail"]) == (status, str(error))
                assert ("retry-after" in answer.headers) == (status == 503)


def test_searches_go_on_while_the_model_answers_and_more_is_turned_away(service, monkeypatch):
    started, go_on, generate = threading.Event(), threading.Event(), TransformersEngine.generate

    def wait(*arguments):
        started.set()
        assert go_on.wait(60)
        return generate(*arguments)

    monkeypatch.setattr(serving, "MAX_WAITING", 2)
    with service() as (http, _), ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(TransformersEngine, "generate", wait)
        try:
            waiting = pool.submit(http.post, "/v1/ask", json={"questions": ["one", "two"]})
            assert started.wait(60)
            refused = http.post("/v1/ask", json={"questions": ["too many"]})
            assert (refused.status_code, int(refused.headers["retry-after"]) >= 1) == (503, True)
            assert http.post("/v1/search", json=PLANS).status_code == 200
        finally:
            go_on.set()
        assert waiting.result(60).status_code == 200
        assert http.post("/v1/ask", json={"questions": ["again"]}).status_code == 200
