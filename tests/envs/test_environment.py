"""The environment as a whole: plans in, rankings and metric values out, in this process as over HTTP."""

from math import log2

import pytest
from querylect.configs.environment import HybridConfig, MemberConfig, RemoteConfig
from querylect.configs.schema import ClientConfig, DatasetConfig, EnvironmentConfig
from querylect.data.beir import save_beir
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.build import build_index
from querylect.envs.client.client import EnvironmentClient
from querylect.envs.client.connect import only_reads_index
from querylect.envs.environment import PLANS_AT_ONCE, Environment, RankedHit
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.envs.schemas import Step
from querylect.envs.server.app import create_app
from querylect.errors import ConfigError, RequestError

from ..raising import refused

CORPUS = [
    Document(id="a", title="Wing", text="lift of a slender wing"),
    Document(id="b", title="Heat", text="heat transfer in a slab"),
    Document(id="c", title="Both", text="heat on a wing"),
    Document(id="d", title="Nothing", text="an empty page"),
]
TEST = Split(
    questions=[Question(id="q1", text="hot wing"), Question(id="q2", text="heat"), Question(id="q3", text="page")],
    qrels={"q1": {"c": 2, "a": 1}, "q2": {"b": 1}, "q3": {"d": 1}},
)
TRAIN = Split(
    questions=[Question(id="t", text="slab"), Question(id="q2", text="heat")], qrels={"t": {"b": 1}, "q2": {"a": 1}}
)


def plan(*probes, **options):
    return SearchPlan(probes=tuple(Probe(terms=(Term(text=text),), k=k) for text, k in probes), **options)


def ids(ranking):
    return [hit.id for hit in ranking]


def built(folder, dataset):
    save_beir(dataset, folder / "data")
    config = EnvironmentConfig(dataset=DatasetConfig(path=str(folder / "data")), index=str(folder / "index"))
    build_index(config)
    return Environment.open(config)


@pytest.fixture(scope="module")
def wings(tmp_path_factory):
    return built(tmp_path_factory.mktemp("tiny"), Dataset("tiny", CORPUS, {"train": TRAIN, "test": TEST}))


def test_it_says_what_it_is(wings):
    info = wings.info()
    assert (info.corpus_size, info.name) == (4, "tiny/bm25")
    assert {"name": "bm25", "kind": "bm25", "engine": "bm25s", "language": "english"}.items() <= info.retriever.items()
    assert info.splits == {"train": 1, "test": 3}, "an id has one judgement, that of the test"
    assert [question.id for question in wings.questions("train")] == ["t"]


def test_probes_contribute_their_own_k_before_fusion_and_the_plan_k_cuts_after_it(wings):
    wing, heat, short, rrf, narrow = wings.rank(
        [
            plan(("wing", None)),
            plan(("heat", None)),
            plan(("wing", 1), ("heat", 1), ("page", None), fuse="interleave"),
            plan(("wing", 9), ("heat", 9), fuse="rrf", k=1),
            plan(("wing", None), ("heat", None), fuse="rrf", k=1),
        ]
    )
    assert [ids(wing), ids(heat), ids(short)] == [["a", "c"], ["b", "c"], ["a", "b", "d"]]
    assert rrf == [RankedHit("c", pytest.approx(2 / 62))]
    assert narrow == [RankedHit("a", pytest.approx(1 / 61))]


def test_a_batch_equals_one_by_one_and_ranks_equal_probes_once(wings, monkeypatch):
    plans = [
        plan(("wing", None), ("heat", 1), fuse="sum", k=2),
        plan(("wing", 1), k=3),
        plan(("heat", None), k=1),
        plan(("wing", None), ("heat", 1), fuse="sum", k=2),
    ]
    alone = [wings.rank([single])[0] for single in plans]
    ranked, rank = [], wings._retriever.rank

    def counted(probes, limits):
        ranked.extend(zip([probe.terms[0].text for probe in probes], limits, strict=True))
        return rank(probes, limits)

    monkeypatch.setattr(wings._retriever, "rank", counted)
    assert wings.rank(plans) == alone
    assert sorted(ranked) == [("heat", 1), ("wing", 2)]


def test_score_is_the_metric_of_the_ranking(wings):
    ranking = [RankedHit("a", 2.0), RankedHit("b", 1.5), RankedHit("c", 1.0)]
    expected = {"ndcg@10": (1 + 2 / log2(4)) / (2 + 1 / log2(3)), "ndcg@1": 1 / 2, "recall@1": 1 / 2, "mrr": 1.0}
    assert wings.score("q1", ranking, list(expected)) == pytest.approx(expected, abs=1e-12)
    assert wings.score("q1", [], ["ndcg@10"]) == {"ndcg@10": 0.0}
    with refused(ConfigError, "metric 'ncdg@10'"):
        wings.score("q1", ranking, ["ncdg@10"])


TEXTS = {
    "a": "taxes should rise because taxes pay for schools",
    "b": "taxes should not rise because taxes hurt growth",
    "c": "schools need money from taxes",
    "d": "growth needs trade",
    "e": "taxes",
}


@pytest.fixture(scope="module")
def ignoring(tmp_path_factory):
    """A dataset whose rankings leave out the document of the question's id, as BEIR's own evaluation does."""
    corpus = [Document(name, "", text) for name, text in TEXTS.items()]
    test = Split([Question("a", TEXTS["a"]), Question("x", TEXTS["a"])], {"a": {"b": 1}, "x": {"c": 1}})
    dataset = Dataset("arguments", corpus, {"test": test}, ignore_identical_ids=True)
    return built(tmp_path_factory.mktemp("ignoring"), dataset)


def searched(environment, question, plan):
    (result,) = environment.step([Step(question_id=question, plan=plan)])
    return ids(result.ranking)


@pytest.mark.parametrize("fuse", ["max", "sum", "rrf", "interleave"])
def test_a_document_that_is_left_out_is_as_if_the_corpus_did_not_hold_it(ignoring, fuse):
    """Ranks and fusion are as without it; only BM25's statistics include it."""
    probes = [Probe(terms=(Term(text=text),), k=k) for text, k in [(TEXTS["a"], 1), ("taxes hurt growth", None)]]
    ranking = searched(ignoring, "a", SearchPlan(probes=tuple(probes), fuse=fuse, k=3))
    singly = [
        [name for name in searched(ignoring, "x", SearchPlan(probes=(probe,), k=5)) if name != "a"][: k or 3]
        for probe, k in [(probe.model_copy(update={"k": None}), probe.k) for probe in probes]
    ]
    assert singly[0] == ["b"]
    assert "a" not in ranking
    assert set(ranking) <= {*singly[0], *singly[1]}
    if fuse == "interleave":
        assert ranking == list(dict.fromkeys(["b", singly[1][0], *singly[1]]))[:3]


def test_a_step_leaves_the_own_document_out_and_a_search_does_not(ignoring):
    plan = SearchPlan.of(TEXTS["a"], k=2)
    assert searched(ignoring, "x", plan) == ["a", "b"]
    assert searched(ignoring, "a", plan) == ["b", "c"]
    assert searched(ignoring, "a", SearchPlan.of(TEXTS["a"], k=5)) == ["b", "c", "e"]
    assert ids(ignoring.search([plan])[0].ranking) == ["a", "b"]


WEIGHTED = SearchPlan(probes=(Probe(terms=(Term(text="sugar"), Term(text="blood insulin", weight=0.3))),), k=3)
STEPS = [
    Step(question_id="q-head", plan=SearchPlan.of("head hurts aspirin", k=5)),
    Step(question_id="q-sugar", plan=WEIGHTED),
    Step(question_id="q-gums", plan=SearchPlan.of("xylophone", k=5)),
] * (PLANS_AT_ONCE // 2)


@pytest.mark.server
def test_every_call_answers_as_over_http(environment, run_app):
    with run_app(create_app(environment)) as url, EnvironmentClient(ClientConfig(urls=[url])) as client:
        assert environment.info() == client.info()
        assert environment.questions("test") == client.questions("test")
        for options in ({}, {"with_text": True, "metrics": ("recall@3", "mrr@10")}):
            assert environment.step(STEPS, **options) == client.step(STEPS, **options)
        plans = [step.plan for step in STEPS]
        assert environment.search(plans, with_text=False) == client.search(plans, with_text=False)


def test_what_cannot_be_answered_is_refused(environment):
    with refused(RequestError, "q-none"):
        environment.step([Step(question_id="q-none", plan=WEIGHTED)])
    with refused(RequestError, "validation"):
        environment.questions("validation")
    with refused(RequestError, "native"):
        environment.search([SearchPlan.of("title:x", k=1).model_copy(update={"mode": "native"})])


@pytest.mark.parametrize(
    ("change", "alone"),
    [
        ({"retriever": "all-minilm-l6-v2"}, True),
        ({"retriever": "python:mine.py"}, False),
        ({"engine": "milvus"}, False),
        ({"retriever": "postgres"}, False),
        ({"remote": RemoteConfig(url="http://127.0.0.1:1", index="mine")}, False),
        ({"hybrid": HybridConfig(members=[MemberConfig(retriever="bm25")] * 2)}, True),
    ],
)
def test_only_what_searches_files_of_this_machine_is_opened_in_this_process(change, alone):
    assert only_reads_index(EnvironmentConfig().model_copy(update=change)) is alone
