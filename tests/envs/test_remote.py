"""Documents in an OpenSearch-compatible service: requests, rankings from its answers, and outages.

`tests/recordings/opensearch*.json` are exchanges in the form that OpenSearch's API reference describes, and its reports
of parse errors show; `StandIn` has vectors, and faults.
"""

import json
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from querylect.configs.environment import EnvironmentConfig, RecipeConfig, RemoteConfig
from querylect.envs.build import build_index
from querylect.envs.environment import Environment
from querylect.envs.server.app import create_app
from querylect.errors import (
    ConfigError,
    EnvironmentUnavailableError,
    IndexFolderError,
    RequestError,
)
from starlette.responses import JSONResponse, PlainTextResponse

from ..encoders import hidden_states, save_bert
from ..raising import refused
from .wings import PROBES, documents, plan, save

pytestmark = pytest.mark.server

RECORDINGS = Path(__file__).parents[1] / "recordings"
CORPUS = documents(80)
PLAIN = [("heat of a wing", 1.0)]


class StandIn:
    """A service with one index. `trouble` holds faults: each replaces the answer to one request."""

    def __init__(self, vectors=None):
        self.vectors = vectors
        self.trouble, self.asked = [], []
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
        self.asked += messages[1::2]
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
        found = {"total": {"value": len(CORPUS), "relation": "eq"}, "hits": hits}
        return {"timed_out": False, "_shards": {"failed": 0}, "hits": found, "status": 200}


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


@pytest.fixture
def recorded(small_environment, run_app, tmp_path):
    """Opens the environment of an exchange, whose every request has to be made."""

    @contextmanager
    def replayed(recording, remote, **changes):
        exchange = json.loads((RECORDINGS / recording).read_text(encoding="utf-8"))
        used = []

        def objects(lines):
            return [json.loads(line) for line in lines.splitlines()]

        async def replay(scope, receive, send):
            if scope["type"] == "http":
                request = (scope["method"], scope["path"], objects((await receive()).get("body", b"").decode()))
                (answered,) = (
                    answered
                    for answered in exchange
                    if (answered["method"], answered["path"], objects(answered["lines"])) == request
                )
                used.append(answered)
                await JSONResponse(answered["answer"], answered["status"])(scope, receive, send)

        with run_app(replay) as url:
            changes |= {"remote": RemoteConfig(url=url, index="wards", **remote), "index": str(tmp_path / "index")}
            yield opened(small_environment.model_copy(update=changes))
        assert all(answered in used for answered in exchange)

    return replayed


def test_the_recorded_exchange_is_asked_and_read(recorded):
    with recorded("opensearch.json", {}) as environment:
        rankings = environment.rank([plan([("headache", 1.0)], 3), plan([("blood", 2.0)], 3)])
        with refused(RequestError, "'wing'", "-0.5", "negative"):
            environment.rank([plan([("heat", 1.0), ("wing", -0.5)])])
        with refused(RequestError, "native"):
            environment.rank([native("headache")])
    rounded = [[(hit.id, round(hit.score, 6)) for hit in ranking] for ranking in rankings]
    assert rounded == [
        [("aspirin", 1.386294), ("triptan", 1.150728)],
        [("insulin", 2.407946), ("statin", 2.407946)],
    ]


def native(query, k=3):
    return plan([(query, 1.0)], k).model_copy(update={"mode": "native"})


def test_a_recorded_exchange_in_the_query_language_by_date(recorded):
    with recorded("opensearch_query_string.json", {"language": "query_string"}, order="date") as environment:
        assert "AND" in environment.info().retriever["query_language"]
        plans = [native("headache OR blo*"), native("heart("), native("xylophone"), plan([("blood", 2.0)], 3)]
        found, error, nothing, text = environment.rank(plans)
    assert ([hit.id for hit in found], found.hits, found.error) == (["aspirin", "statin", "triptan"], 4, None)
    assert (error, error.hits, error.error) == ([], 0, 'Encountered "<EOF>" at line 1, column 6.')
    assert (nothing, nothing.hits, nothing.error) == ([], 0, None)
    assert [hit.id for hit in text] == ["statin", "insulin"]


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


FOREIGN = ["_exists_:title", r"\_id:d1", r"te\xt:x", "title:>a", r"title:(\>a)", "[a TO z]", "/wing/", "*:*", "wi?g"]


@pytest.mark.parametrize("query", FOREIGN)
def test_a_native_query_reads_no_other_field_and_no_list_of_words(config, stand_in, query):
    environment = opened(in_language(config))
    assert environment.rank([native(query)])[0].error
    assert stand_in.asked == []
    allowed = r'"wing/drag: [7]" OR -title:(heat text:"a:b") e\:f'
    assert environment.rank([native(allowed)])[0].error is None
    assert stand_in.asked[0]["query"]["query_string"]["query"] == allowed


def in_language(config, **changes):
    remote = config.remote.model_copy(update={"language": "query_string"})
    return config.model_copy(update={"remote": remote, **changes})


def failure(*types):
    """The failure of a shard with these types of exceptions, each the cause of the one before."""
    causes = None
    for name in reversed(types):
        causes = {"type": name, "reason": f"{name} says\nmore", **({"caused_by": causes} if causes else {})}
    return {"shard": 0, "reason": causes}


def item(*failures, status=400):
    return {"error": {"type": "search_phase_execution_exception", "failed_shards": [*failures]}, "status": status}


def partial(*failures):
    shards = {"total": 2, "failed": len(failures), "failures": [*failures]}
    return {"timed_out": False, "_shards": shards, "hits": {"total": {"value": 1}, "hits": []}, "status": 200}


PARSE = failure("query_shard_exception", "parse_exception")
TOO_LARGE = failure("query_phase_execution_exception", "too_many_nested_clauses")
REJECTED = failure("rejected_execution_exception")


def test_a_query_is_refused_alone_and_any_other_failure_is_an_outage(config, stand_in):
    environment = opened(in_language(config))
    refusals = [(item(PARSE), "parse"), (partial(PARSE, PARSE), "parse"), (item(TOO_LARGE, status=500), "too_many")]
    for refusal, reason in refusals:
        stand_in.trouble = [lambda all, refusal=refusal: JSONResponse({"responses": [all[0], refusal, all[2]]})]
        first, second, third = environment.rank([native("heat"), native("wing"), native("drag")])
        assert [ranking.error for ranking in (first, third)] == [None, None]
        assert len(first) == len(third) == 3
        assert (second, second.error.startswith(reason), "more" in second.error) == ([], True, False)
    outages = [item(REJECTED), item(PARSE, REJECTED), partial(REJECTED), {**partial(), "timed_out": True}]
    for outage in [*outages, {"error": {"type": "index_not_found_exception"}, "status": 404}]:
        stand_in.trouble = [lambda all, outage=outage: JSONResponse({"responses": [outage]})]
        with refused(EnvironmentUnavailableError, stand_in.url):
            environment.rank([native("heat")])


def test_order_by_date_needs_dates_and_a_language_needs_words(config, stand_in):
    with refused(IndexFolderError, "env.order", "date", stand_in.url):
        opened(in_language(config, order="date"))
    with refused(ConfigError, "env.remote.language"):
        opened(in_language(config, retriever="all-minilm-l6-v2"))


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
