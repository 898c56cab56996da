"""The environment as a whole: plans in, rankings and metric values out."""

from math import log2

import pytest
from querylect.configs.schema import DatasetConfig, EnvironmentConfig
from querylect.data.beir import save_beir
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.build import build_index
from querylect.envs.environment import Environment, RankedHit
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.errors import ConfigError

from ..raising import refused

pytestmark = pytest.mark.server

CORPUS = [
    Document(id="a", title="Wing", text="lift of a slender wing"),
    Document(id="b", title="Heat", text="heat transfer in a slab"),
    Document(id="c", title="Both", text="heat on a wing"),
    Document(id="d", title="Nothing", text="an empty page"),
]
TRAIN = Split(questions=[Question(id="t", text="slab")], qrels={"t": {"b": 1}})
TEST = Split(
    questions=[Question(id="q1", text="hot wing"), Question(id="q2", text="heat"), Question(id="q3", text="page")],
    qrels={"q1": {"c": 2, "a": 1}, "q2": {"b": 1}, "q3": {"d": 1}},
)


def plan(*probes, **options):
    return SearchPlan(probes=tuple(Probe(terms=(Term(text=text),), k=k) for text, k in probes), **options)


def ids(ranking):
    return [hit.id for hit in ranking]


def config_of(folder, dataset, **options):
    save_beir(dataset, folder / "data")
    return EnvironmentConfig(dataset=DatasetConfig(path=str(folder / "data")), index=str(folder / "index"), **options)


def built(config):
    build_index(config)
    return Environment.open(config)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    dataset = Dataset(name="tiny", corpus=CORPUS, splits={"train": TRAIN, "test": TEST}, licence="none")
    return built(config_of(tmp_path_factory.mktemp("tiny"), dataset))


def test_it_says_what_it_is_and_shows_no_judgement(environment):
    assert dict(environment.info().splits) == {"train": 1, "test": 3}
    assert environment.info().corpus_size == 4
    assert len(environment.info().corpus_hash) == len(environment.info().index_hash) == 64
    assert environment.info().name.endswith("/bm25")
    retriever = environment.info().retriever
    assert (retriever["name"], retriever["kind"], retriever["engine"], retriever["language"]) == (
        "bm25",
        "bm25",
        "bm25s",
        "english",
    )
    assert "exact word" in retriever["trained"]


def test_probes_contribute_their_own_k_before_fusion(environment):
    wing, heat, short = environment.rank(
        [
            plan(("wing", None)),
            plan(("heat", None)),
            plan(("wing", 1), ("heat", 1), ("page", None), fuse="interleave"),
        ]
    )
    assert ids(wing) == ["a", "c"]
    assert ids(heat) == ["b", "c"]
    assert ids(short) == ["a", "b", "d"]


def test_the_plan_k_cuts_the_fused_ranking_and_probe_k_may_exceed_it(environment):
    (rrf,) = environment.rank([plan(("wing", 9), ("heat", 9), fuse="rrf", k=1)])
    assert rrf == [RankedHit("c", pytest.approx(2 / 62))]
    (narrow,) = environment.rank([plan(("wing", None), ("heat", None), fuse="rrf", k=1)])
    assert narrow == [RankedHit("a", pytest.approx(1 / 61))]


def test_a_batch_equals_one_by_one_and_ranks_equal_probes_once(environment, monkeypatch):
    plans = [
        plan(("wing", None), ("heat", 1), fuse="sum", k=2),
        plan(("wing", 1), k=3),
        plan(("heat", None), k=1),
        plan(("wing", None), ("heat", 1), fuse="sum", k=2),
    ]
    alone = [environment.rank([single])[0] for single in plans]
    ranked = []
    rank = environment._retriever.rank

    def counted(probes, limits):
        ranked.extend(zip([probe.terms[0].text for probe in probes], limits, strict=True))
        return rank(probes, limits)

    monkeypatch.setattr(environment._retriever, "rank", counted)
    assert environment.rank(plans) == alone
    assert sorted(ranked) == [("heat", 1), ("wing", 2)]


def test_score_is_the_metric_of_the_ranking(environment):
    ranking = [RankedHit("a", 2.0), RankedHit("b", 1.5), RankedHit("c", 1.0)]
    ideal = 2 + 1 / log2(3)
    expected = {"ndcg@10": (1 + 2 / log2(4)) / ideal, "ndcg@1": 1 / 2, "recall@1": 1 / 2, "mrr": 1.0}
    assert environment.score("q1", ranking, list(expected)) == pytest.approx(expected, abs=1e-12)
    assert environment.score("q1", [], ["ndcg@10"]) == {"ndcg@10": 0.0}
    assert environment.score("t", ranking, ["mrr"]) == {"mrr": 0.5}
    with pytest.raises(KeyError):
        environment.score("nobody", ranking, ["ndcg@10"])
    with refused(ConfigError, "metric 'ncdg@10'"):
        environment.score("q1", ranking, ["ncdg@10"])


def test_a_question_id_of_the_test_is_no_training_question(tmp_path):
    """Rankings are scored by question id, so that an id has one judgement, the test's."""
    train = Split(
        questions=[Question(id="q2", text="heat"), Question(id="q9", text="fog")],
        qrels={"q2": {"a": 1}, "q9": {"a": 1}},
    )
    environment = built(config_of(tmp_path, Dataset(name="tiny", corpus=CORPUS, splits={"train": train, "test": TEST})))
    assert [question.id for question in environment.questions("train")] == ["q9"]
    assert "q2" in [question.id for question in environment.questions("test")]
