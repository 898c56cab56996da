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

pytestmark = pytest.mark.model

QUESTIONS = ["my head hurts", {"text": "too much sugar", "options": ["yes", "no"]}, "bleeding gums"]


@pytest.fixture
def service(trained_run, lessons, run_app):
    """Starts the service; gives an HTTP client of it and its rewriter."""

    @contextmanager
    def start(token=None, turn=None):
        rewriter = Rewriter.from_pretrained(trained_run[1], turn=turn)
        extend = partial(mount, rewriter=rewriter)
        app = create_app(Environment.open(lessons), token, extend)
        with run_app(app) as url, httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
            yield http, rewriter

    return start


@pytest.fixture
def blocked_model(monkeypatch):
    """Blocks the model from when `hold` is called until `go_on` is set."""
    from querylect.rollouts.engines.transformers import TransformersEngine

    started, go_on = threading.Event(), threading.Event()
    generate = TransformersEngine.generate

    def wait(engine, prompts, n, sampling):
        started.set()
        assert go_on.wait(60)
        return generate(engine, prompts, n, sampling)

    def hold():
        monkeypatch.setattr(TransformersEngine, "generate", wait)

    yield hold, started, go_on
    go_on.set()


def answer_of(result):
    """The body in which the service returns a result."""
    return {"history": [], **result.record()}


def test_questions_are_rewritten_and_searched_as_the_library_does(service, trained_run):
    with service() as (http, rewriter):
        questions = [asked_as(entry) for entry in QUESTIONS]
        with EnvironmentClient(ClientConfig(urls=[str(http.base_url)])) as client:
            expected = {turns: rewriter.search(questions, client, turns=turns) for turns in (1, 2)}
        history = [{"role": "user", "text": "my head hurts"}, {"role": "assistant", "text": "since when?"}]
        body = {"questions": [{"text": "since monday", "history": history}]}
        (after,) = http.post("/v1/ask", json=body).json()["answers"]
        assert after["turns"] == [answer_of(rewriter.rewrite("since monday", history=history))]
        assert http.post("/v1/ask", json={"questions": QUESTIONS}).json()["rewriter"] == str(trained_run[1])
        for body, turns in (({}, 1), ({"turns": 2}, 2), ({"turns": 2, "k": 1}, 2)):
            answer = http.post("/v1/ask", json={"questions": QUESTIONS, **body}).json()
            for entry, result in zip(answer["answers"], expected[turns], strict=True):
                assert [turn["text"] for turn in entry["turns"]] == [turn.rewrite.text for turn in result.turns]
                hits = result.ranking[: body.get("k")]
                assert [hit["id"] for hit in entry["ranking"]] == [hit.id for hit in hits]
                assert [hit["text"] for hit in entry["ranking"]] == [hit.text for hit in hits]
        blank = http.post("/v1/ask", json={"questions": ["x", "  "]})
        assert 400 <= blank.status_code < 500
        assert "question 2 of 2 is '  '" in blank.text


def asked_as(body):
    """The question of a request's body."""
    return Question("", body) if isinstance(body, str) else Question("", body["text"], tuple(body["options"]))


def test_token_limits_and_errors_are_the_services_own(service):
    with service(token="s3cret") as (http, _):
        assert http.post("/v1/ask", json={"questions": ["x"]}).status_code == 401
        http.headers["Authorization"] = "Bearer s3cret"
        for body in (
            {"questions": []},
            {"questions": [""]},
            {"questions": ["x"], "n": 1},
            {"questions": ["x"], "turns": 5},
            {"questions": ["x" * (serving.MAX_QUESTION + 1)]},
            {"questions": ["x"] * (serving.MAX_QUESTIONS + 1)},
        ):
            answer = http.post("/v1/ask", json=body)
            assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
        half = http.post("/v1/ask", content=rb'{"questions": ["\ud800"]}', headers={"content-type": "application/json"})
        assert half.status_code == 422
        document = http.get("/v1/openapi.json").json()
    schemathesis.openapi.from_dict(document).validate()
    operation = document["paths"]["/v1/ask"]["post"]
    assert {"200", "400", "401", "408", "413", "422", "500", "503"} <= set(operation["responses"])
    assert operation["security"]


def test_searches_go_on_while_the_model_answers_and_more_is_turned_away(service, blocked_model, monkeypatch):
    hold, started, go_on = blocked_model
    monkeypatch.setattr(serving, "MAX_WAITING", 2)
    with service() as (http, _), ThreadPoolExecutor(2) as pool:
        hold()
        waiting = pool.submit(http.post, "/v1/ask", json={"questions": ["one", "two"]})
        assert started.wait(60)
        refused = http.post("/v1/ask", json={"questions": ["too many"]})
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        searched = http.post("/v1/search", json={"plans": [SearchPlan.of("glucose").model_dump()]})
        assert searched.status_code == 200
        go_on.set()
        assert waiting.result(60).status_code == 200
        assert http.post("/v1/ask", json={"questions": ["again"]}).status_code == 200


def test_a_search_that_fails_answers_as_the_services_own(service, monkeypatch):
    plans = {"plans": [SearchPlan.of("glucose").model_dump()]}
    with service() as (http, _):
        for error, status in (
            (EnvironmentUnavailableError("the retriever is down"), 503),
            (OverloadedError("too much"), 503),
            (RequestError("no such probe"), 422),
        ):
            rank = AsyncMock(side_effect=error)
            monkeypatch.setattr("querylect.envs.server.batching.Batcher.rank", rank)
            search_response = http.post("/v1/search", json=plans)
            ask_response = http.post("/v1/ask", json={"questions": ["one"]})
            assert (search_response.status_code, search_response.json()["detail"]) == (status, str(error))
            assert (ask_response.status_code, ask_response.json()["detail"]) == (status, str(error))
            assert ask_response.headers.get("retry-after") == search_response.headers.get("retry-after")
