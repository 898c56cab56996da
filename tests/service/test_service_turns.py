"""One request cannot delay all others: costly requests are searched in turns with cheap ones, by real retrievers."""

import asyncio
import threading
from functools import partial

import httpx
import pytest
from querylect.configs.environment import DatasetConfig, EnvironmentConfig, RerankConfig
from querylect.data.beir import save_beir
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.builder.build import build_index
from querylect.envs.environment import Environment
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.envs.retrievers.encoder import Encoder
from querylect.envs.retrievers.rerank import Reranker
from querylect.envs.server.app import create_app
from querylect.envs.server.batching import BATCH_WORK, TURN_WORK

from ..encoders import save_bert, save_cross_encoder

DEPTH = 15


def plan(*texts):
    return SearchPlan(probes=(Probe(terms=tuple(Term(text=text) for text in texts)),))


@pytest.fixture(scope="module")
def configs(tmp_path_factory):
    """Settings of three kinds of retriever over twenty documents that hold the word wing."""
    folder = tmp_path_factory.mktemp("kinds")
    corpus = [Document(f"d{n}", "", "a wing in air " * (n % 5 + 1) + f"layer {n}") for n in range(20)]
    save_beir(Dataset("wings", corpus, {"test": Split([Question("q", "heat")], {"q": {"d0": 1}})}), folder / "data")
    settings = partial(EnvironmentConfig, dataset=DatasetConfig(kind="beir", path=str(folder / "data")))
    bm25 = settings(index=str(folder / "bm25"))
    dense = settings(retriever="contriever", model=save_bert(folder / "encoder"), index=str(folder / "dense"))
    cross = RerankConfig(model=save_cross_encoder(folder / "cross"), depth=DEPTH)
    for config in (bm25, dense):
        build_index(config)
    return {"bm25": bm25, "dense": dense, "reranked": bm25.model_copy(update={"rerank": cross})}


COSTLY = {
    "dense": [plan(*(f"wing {n} {i}" for i in range(64))) for n in range(60)],
    "reranked": [plan(*(f"wing {i}" for i in range(64)))],
}


@pytest.mark.parametrize("kind", COSTLY)
def test_a_cheap_request_is_answered_before_a_costly_one_is_done(kind, configs, run_app, monkeypatch):
    """What the model does first for the costly one waits until the cheap one is in the queue, and whatever it does next
    until the cheap one is answered."""
    started, queued, cheap_done, sizes = (*(threading.Event() for _ in range(3)), [])
    owner, name = {"dense": (Encoder, "queries"), "reranked": (Reranker, "scores")}[kind]
    compute = getattr(owner, name)

    def watched(self, inputs):
        texts = {item if kind == "dense" else item[0] for item in inputs}
        sizes.append(len(inputs))
        if "air" not in texts:
            gate = cheap_done if started.is_set() else queued
            started.set()
            assert gate.wait(60)
        return compute(self, inputs)

    async def ask(url):
        async with httpx.AsyncClient(base_url=url, timeout=120) as http:
            body = {"plans": [costly_plan.model_dump() for costly_plan in COSTLY[kind]]}
            costly = asyncio.create_task(http.post("/v1/search", json=body))
            assert await asyncio.to_thread(started.wait, 60)
            cheap = asyncio.create_task(http.post("/v1/search", json={"plans": [plan("air").model_dump()]}))
            while f"querylect_queue_plans {len(body['plans']) + 1}.0" not in (await http.get("/metrics")).text:
                pass
            queued.set()
            cheap_answer = await cheap
            assert not costly.done()
            cheap_done.set()
            answers = [(await costly).json(), cheap_answer.json()]
        return [[hit["score"] for hit in ranking] for answer in answers for ranking in answer["rankings"]]

    with run_app(create_app(Environment.open(configs[kind]), configs[kind])) as url:
        monkeypatch.setattr(owner, name, watched)
        scores = asyncio.run(ask(url))
    monkeypatch.undo()
    expected = Environment.open(configs[kind]).search([*COSTLY[kind], plan("air")])
    for actual, ranking in zip(scores, expected, strict=True):
        assert actual == pytest.approx([hit.score for hit in ranking], rel=1e-4, abs=1e-4)
    assert len(sizes) > 2


def test_every_kind_states_what_costs_it_time(configs):
    """BM25: characters; an encoder: texts, cut at its maximum length; a reranker: pairs."""
    works = {kind: Environment.open(config).work for kind, config in configs.items()}
    long_text, one_text, many_texts = plan("wing " * 4000), plan("wing"), plan(*(f"wing {n}" for n in range(64)))
    blank = plan("wing", " ")
    assert works["bm25"](long_text) > 4000
    for kind in ("dense", "reranked"):
        assert works[kind](many_texts) > 60 * works[kind](one_text)
        assert works[kind](blank) <= works[kind](one_text) + 100
    assert works["dense"](long_text) == works["dense"](plan("wing " * 8000)) < TURN_WORK
    assert works["reranked"](plan("a", "b")) - works["reranked"](plan("a")) > 15 * 200
    assert works["reranked"](many_texts) > BATCH_WORK
