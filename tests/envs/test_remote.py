"""Documents in an OpenSearch-compatible service: requests, rankings from its answers, and outages.

`tests/recordings/opensearch.json` is an exchange in the form that OpenSearch's API reference describes; `StandIn` has
vectors, and faults.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from querylect.configs.environment import EnvironmentConfig, RecipeConfig, RemoteConfig
from querylect.envs.build import build_index
from querylect.envs.environment import Environment
from querylect.envs.server.app import create_app
from querylect.errors import (
    EnvironmentUnavailableError,
    IndexFolderError,
    RequestError,
)
from starlette.responses import JSONResponse, PlainTextResponse

from ..encoders import hidden_states, save_bert
from ..raising import refused
from .wings import PROBES, documents, plan, save

pytestmark = pytest.mark.server

RECORDING = Path(__file__).parents[1] / "recordings" / "opensearch.json"
CORPUS = documents(80)
PLAIN = [("heat of a wing", 1.0)]


class StandIn:
    """A service with one index. `trouble` holds faults: each replaces the answer to one request."""

    def __init__(self, vectors=None):
        self.vectors = vectors
        self.trouble = []
        self.uuid, self.count = "first", len(CORPUS)

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        await self.answer(scope["path"], body.decode())(scope, receive, send)

    def answer(self, path, lines):
        if path == "/mine":
            return JSONResponse({"mine-1": {"mappings": {}, "settings": {"index": {"uuid": self.uuid}}}})
        if path == "/mine/_count":
            return JSONResponse({"count": self.count})
        if path != "/_msearch":
            return JSONResponse({"error": {"type": "index_not_found_exception"}, "status": 404}, 404)
        messages = [json.loads(line) for line in lines.splitlines()]
        assert all(header["index"] == "mine" for header in messages[::2])
        responses = [self.search(body) for body in messages[1::2]]
        if self.trouble:
            trouble = self.trouble.pop(0)
            return trouble(responses)
        return JSONResponse({"took": 1, "responses": responses})

    def search(self, body):
        scores = np.arange(len(CORPUS), 0.0, -1.0)
        if "knn" in body["query"]:
            products = self.vectors @ np.array(body["query"]["knn"]["vector"]["vector"])
            scores = np.where(products >= 0, products + 1, 1 / (1 - np.minimum(products, 0)))
        ranking = np.argsort(-scores, kind="stable")[: body["size"]]
        hits = [{"_id": f"d{position}", "_score": scores[position]} for position in ranking.tolist()]
        return {"timed_out": False, "_shards": {"failed": 0}, "hits": {"hits": hits}, "status": 200}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return save(tmp_path_factory.mktemp("data") / "mine", CORPUS)


@pytest.fixture
def stand_in(run_app):
    service = StandIn()
    with run_app(service) as url:
        service.url = url
        yield service


def settings(dataset, folder, url):
    remote = {"url": url, "index": "mine"}
    return EnvironmentConfig(dataset=dataset, remote=RemoteConfig(**remote), index=str(folder / "index"))


@pytest.fixture
def config(dataset, tmp_path, stand_in):
    return settings(dataset, tmp_path, stand_in.url)


def opened(config):
    build_index(config, overwrite=True)
    return Environment.open(config)


def test_the_recorded_exchange_is_asked_and_read(small_environment, run_app, tmp_path):
    exchange = json.loads(RECORDING.read_text(encoding="utf-8"))
    used = []

    def objects(lines):
        return [json.loads(line) for line in lines.splitlines()]

    async def replay(scope, receive, send):
        if scope["type"] == "http":
            request = (scope["method"], scope["path"], objects((await receive()).get("body", b"").decode()))
            (recorded,) = (
                recorded
                for recorded in exchange
                if (recorded["method"], recorded["path"], objects(recorded["lines"])) == request
            )
            used.append(recorded)
            await JSONResponse(recorded["answer"], recorded["status"])(scope, receive, send)

    with run_app(replay) as url:
        remote = RemoteConfig(url=url, index="wards")
        config = small_environment.model_copy(update={"remote": remote, "index": str(tmp_path / "index")})
        environment = opened(config)
        rankings = environment.rank([plan([("headache", 1.0)], 3), plan([("blood", 2.0)], 3)])
        with refused(RequestError, "'wing'", "-0.5", "negative"):
            environment.rank([plan([("heat", 1.0), ("wing", -0.5)])])
    rounded = [[(hit.id, round(hit.score, 6)) for hit in ranking] for ranking in rankings]
    assert rounded == [
        [("aspirin", 1.386294), ("triptan", 1.150728)],
        [("insulin", 2.407946), ("statin", 2.407946)],
    ]
    assert all(recorded in used for recorded in exchange)


@pytest.mark.model
def test_dense_probes_are_one_vector_and_scores_are_inner_products(dataset, run_app, tmp_path):
    model = save_bert(tmp_path / "model")
    documents = np.stack([hidden_states(model, document.contents)[0].numpy() for document in CORPUS]).astype(float)
    with run_app(StandIn(documents)) as url:
        recipe = RecipeConfig(pooling="cls", similarity="dot")
        changes = {"retriever": "contriever", "model": model, "recipe": recipe}
        config = settings(dataset, tmp_path, url).model_copy(update=changes)
        rankings = opened(config).rank([plan(terms, 80) for terms in PROBES])
    for ranking, terms in zip(rankings, PROBES, strict=True):
        query = np.zeros(32)
        for text, weight in terms:
            if text.strip() and weight:
                query += weight * hidden_states(model, text)[0].numpy().astype(float)
        expected = documents @ query if query.any() else np.array([])
        assert [hit.score for hit in ranking] == pytest.approx(sorted(expected, reverse=True), rel=1e-3, abs=1e-3)
        for hit in ranking:
            assert hit.score == pytest.approx(expected[int(hit.id[1:])], rel=1e-3, abs=1e-3)


def busy(responses):
    return PlainTextResponse("try later", 503)


def half(responses):
    return JSONResponse({"responses": [{**responses[0], "_shards": {"failed": 1}}, *responses[1:]]})


def rejected(responses):
    error = {"type": "rejected_execution_exception"}
    return JSONResponse({"responses": [{"error": error, "status": 429}, *responses[1:]]})


def garbled(responses):
    return PlainTextResponse("<html>", 200)


def test_an_incomplete_answer_is_an_outage_and_never_a_ranking(config, stand_in):
    environment = opened(config)
    for trouble in (busy, half, rejected, garbled):
        stand_in.trouble = [trouble] * 9
        with refused(EnvironmentUnavailableError, stand_in.url):
            environment.rank([plan(PLAIN)])
    hits = {"hits": {"hits": [{"_id": "foreign", "_score": 1.0}]}, "timed_out": False, "_shards": {"failed": 0}}
    stand_in.trouble = [lambda _: JSONResponse({"responses": [hits]})]
    with refused(IndexFolderError, "'foreign'"):
        environment.rank([plan(PLAIN)])


def test_a_service_that_is_gone_is_an_outage_at_every_step(dataset, tmp_path, run_app):
    service = StandIn()
    with run_app(service) as url:
        config = settings(dataset, tmp_path, url)
        environment = opened(config)
        app = TestClient(create_app(environment), "http://localhost")
    with refused(EnvironmentUnavailableError, url, "env.remote"):
        environment.rank([plan(PLAIN)])
    with pytest.raises(EnvironmentUnavailableError):
        Environment.open(config)
    with app:
        steps = [{"question_id": "q", "plan": plan(PLAIN).model_dump()}]
        answer = app.post("/v1/step", json={"steps": steps})
    assert answer.status_code == 503
    assert answer.headers["Retry-After"]
    assert url in answer.json()["detail"]


def test_an_index_that_is_missing_or_of_another_corpus_or_changed_is_refused(config, stand_in):
    with refused(EnvironmentUnavailableError, "'yours'", "index_not_found"):
        build_index(config.model_copy(update={"remote": config.remote.model_copy(update={"index": "yours"})}))
    first = opened(config).info().index_hash
    stand_in.uuid = "second"
    with refused(IndexFolderError, config.index, "weights"):
        Environment.open(config)
    assert opened(config).info().index_hash != first
    stand_in.count = 79
    build_index(config, overwrite=True)
    with refused(IndexFolderError, 79, 80):
        Environment.open(config)
