"""Documents with the id of the question: left out where the dataset says so, as BEIR's own evaluation does."""

import pytest
from querylect.configs.schema import DatasetConfig, EnvironmentConfig
from querylect.data.beir import save_beir
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.build import build_index
from querylect.envs.environment import Environment
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.envs.schemas import Step

TEXTS = {
    "a": "taxes should rise because taxes pay for schools",
    "b": "taxes should not rise because taxes hurt growth",
    "c": "schools need money from taxes",
    "d": "growth needs trade",
    "e": "taxes",
}
QUESTIONS = {"a": {"b": 1}, "x": {"c": 1}}


def dataset(without=(), **options):
    corpus = [Document(name, "", text) for name, text in TEXTS.items() if name not in without]
    test = Split([Question("a", TEXTS["a"]), Question("x", TEXTS["a"])], QUESTIONS)
    return Dataset("arguments", corpus, {"test": test}, **options)


def ranked(environment, question, plan):
    (ranking,) = environment.rank([environment.plan_of(Step(question_id=question, plan=plan))])
    return [hit.id for hit in ranking]


@pytest.fixture(scope="module")
def ignoring(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ignoring")
    save_beir(dataset(ignore_identical_ids=True), folder / "data")
    config = EnvironmentConfig(dataset=DatasetConfig(path=str(folder / "data")), index=str(folder / "index"))
    build_index(config)
    return Environment.open(config)


def test_the_own_document_is_left_out_and_its_place_is_filled(ignoring):
    plan = SearchPlan.of(TEXTS["a"], k=2)
    assert ranked(ignoring, "x", plan) == ["a", "b"]
    assert ranked(ignoring, "a", plan) == ["b", "c"]
    assert ranked(ignoring, "a", SearchPlan.of(TEXTS["a"], k=5)) == ["b", "c", "e"]


@pytest.mark.parametrize("fuse", ["max", "sum", "rrf", "interleave"])
def test_a_ranking_is_that_of_a_corpus_without_the_document(tmp_path, ignoring, fuse):
    """Ranks and fusion are as without it; only BM25's statistics include it, so scores are equal."""
    probes = [Probe(terms=(Term(text=text),), k=k) for text, k in [(TEXTS["a"], 1), ("taxes hurt growth", None)]]
    plan = SearchPlan(probes=tuple(probes), fuse=fuse, k=3)
    ranking = ranked(ignoring, "a", plan)
    singly = [
        [name for name in ranked(ignoring, "x", SearchPlan(probes=(probe,), k=5)) if name != "a"][: probe.k or 3]
        for probe in [original.model_copy(update={"k": None}) for original in probes]
    ]
    assert singly[0][:1] == ["b"]
    assert "a" not in ranking
    assert set(ranking) <= {*singly[0][:1], *singly[1]}
    if fuse == "interleave":
        assert ranking == list(dict.fromkeys(["b", singly[1][0], *singly[1]]))[:3]


def test_a_step_of_the_service_leaves_it_out_and_a_search_does_not(ignoring, tmp_path):
    from fastapi.testclient import TestClient
    from querylect.envs.server.app import create_app

    plan = {"probes": [{"terms": [{"text": TEXTS["a"]}]}], "k": 2}
    with TestClient(create_app(ignoring), "http://localhost") as client:
        for question, expected in {"a": ["b", "c"], "x": ["a", "b"]}.items():
            # twice: the second answer comes from the cache, which keeps the two apart
            for _ in range(2):
                step = {"steps": [{"question_id": question, "plan": plan}]}
                (result,) = client.post("/v1/step", json=step).json()["results"]
                assert [hit["id"] for hit in result["ranking"]] == expected
        (result,) = client.post("/v1/search", json={"plans": [plan]}).json()["results"]
        assert [hit["id"] for hit in result["ranking"]] == ["a", "b"]
        refused = client.post("/v1/search", json={"plans": [{**plan, "without": "a"}]})
        assert refused.status_code == 422
