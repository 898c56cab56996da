"""The environments of a plan on its datasets: index folders by name, and what the identity of a system depends on."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from querylect.configs.environment import DatasetConfig, EnvironmentConfig
from querylect.configs.evaluation import SpecConfig, SystemConfig
from querylect.configs.schema import RunConfig
from querylect.errors import ConfigError, ModelError
from querylect.eval import environments
from querylect.eval.cells import Cell
from querylect.eval.environments import SpecEnvironments, folder_identity, model_identity, searched_here
from querylect.eval.records import RecordStore
from querylect.eval.summary import environments_of_training
from querylect.eval.systems import RawSystem, RewritingSystem
from querylect.rewriters.retriever_info import RetrieverInfo

from ..lessons import PROMPT
from ..raising import refused

pytestmark = pytest.mark.model

ONE, TWO = DatasetConfig(path="/data/one"), DatasetConfig(path="/data/two")


def index(env=None, datasets=None, dataset="one"):
    settings = {"env": env or {}, "datasets": datasets}
    plan = SpecConfig.model_validate({"datasets": {"one": ONE, "two": TWO}, "environments": {"x": settings}})
    return searched_here(plan, plan.environments["x"], dataset, plan.datasets[dataset])


def test_settings_that_make_another_index_make_another_name():
    names = {
        index(env).index
        for env in ({}, {"engine": "rank_bm25"}, {"model": "a"}, {"recipe": {"pooling": "cls"}}, {"model": "b"})
    }
    assert len(names) == 5
    assert index({"port": 8000, "name": "other"}).index == "indexes/one-bm25"


def test_a_named_index_holds_the_name_of_the_dataset_where_there_are_several():
    assert index({"index": "there/{dataset}-x"}).index == "there/one-x"
    assert index({"index": "there/x"}, datasets=["one"]).index == "there/x"
    with refused(ConfigError, "env.index", "'there/x'", 2, "{dataset}"):
        index({"index": "there/x"})


@pytest.fixture
def opened(small_environment, tmp_path):
    """Opens the environment x on a copy of the small dataset, whose folder is `opened.data`."""
    data = Path(shutil.copytree(small_environment.dataset.path, tmp_path / "data"))

    def opened(env=None, **changes):
        settings = {"index": small_environment.index, **(env or {})}
        plan = {"datasets": {"one": {"path": str(data)}}, "environments": {"x": {"env": settings}}, **changes}
        return SpecEnvironments(SpecConfig.model_validate(plan)).open("one", "x")

    opened.data = data
    return opened


def keys_of(environment, tmp_path):
    system = RawSystem(["ndcg@10"], 10)
    return Cell(environment, system, RecordStore(tmp_path / "results"), "test").keys


def test_the_key_of_an_answer_is_of_all_that_it_depends_on(opened, tmp_path):
    """Judgements and answer options of its question alone; identical ids of all. Other settings change none."""

    def keys(**changes):
        return keys_of(opened(**changes), tmp_path)

    same = keys()
    assert keys(env={"port": 1, "host": "::1"}) == same
    assert keys(limit=1).items() < same.items()
    qrels, queries, meta = (opened.data / name for name in ("qrels/test.tsv", "queries.jsonl", "meta.json"))
    for path, old, new, changed in (
        (qrels, "triptan\t2", "triptan\t1", 1),
        (queries, '"text": "too much', '"options": ["a", "b"], "text": "too much', 1),
        (meta, '"ignore_identical_ids": false', '"ignore_identical_ids": true', 3),
    ):
        original = path.read_text()
        assert old in original
        path.write_text(original.replace(old, new, 1))
        assert sum(key != same[question] for question, key in keys().items()) == changed, path.name
        path.write_text(original)
    environment = opened(limit=1)
    assert [len(environment.questions), len(environment.everything)] == [1, 3]
    assert environment.published_as == ("small", "bm25")


def test_the_questions_of_a_dataset_are_read_once_and_its_corpus_never(small_environment, opened, monkeypatch):
    calls = []
    load = environments.load_dataset
    monkeypatch.setattr(environments, "load_dataset", lambda *args: calls.append(args) or load(*args))
    monkeypatch.setattr("querylect.data.corpus.Corpus.read", None)
    places = {name: {"env": {"index": small_environment.index, "port": 1}} for name in ("x", "y")}
    spec = SpecConfig.model_validate({"datasets": {"one": {"path": str(opened.data)}}, "environments": places})
    both = SpecEnvironments(spec)
    first, second = both.open("one", "x"), both.open("one", "y")
    with first.connect(served=False) as client:
        assert client.questions("test") == second.questions
    assert len(calls) == 1


def test_a_model_is_known_by_what_is_in_its_files(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 1000)
    (tmp_path / "notes.md").write_text("a")
    first = folder_identity(tmp_path)
    (tmp_path / "notes.md").write_text("b")
    assert folder_identity(tmp_path) == first == model_identity(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 999 + b"\1")
    assert folder_identity(tmp_path) != first
    assert model_identity("someone/model") == "someone/model"
    with refused(ModelError, tmp_path / "gone"):
        model_identity(str(tmp_path / "gone"))


BASE = {"rewriter": {"name": "general"}, "rollout": {"max_new_tokens": 8, "documents": 2}}


def identity_of(config=None, system=None, retriever="bm25", model="org/a", seed=0):
    settings = RunConfig.model_validate({"policy": {"model": model}, **BASE, **(config or {})})
    system_config = SystemConfig.model_validate(system or {"turns": 2})
    policy = RewritingSystem("mine", system_config, settings, None, ["ndcg@10"], 10, seed)
    environment = SimpleNamespace(name="bm25", retriever=RetrieverInfo(retriever, "bm25"), everything=[])
    return json.dumps(policy.identity(environment), sort_keys=True)


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"rewriter": {"name": "explore"}}},
        {"config": {"rewriter": {"name": "general", "keep_question_weight": 1.0}}},
        {"config": {"rollout": {"max_new_tokens": 9, "documents": 2}}},
        {"config": {"rollout": {**BASE["rollout"], "max_prompt_tokens": 99}}},
        {"config": {"rollout": {**BASE["rollout"], "engine": "vllm"}}},
        {"system": {"turns": 2, "samples": 1}},
        {"model": "org/b"},
    ],
)
def test_what_changes_an_answer_changes_the_identity(change):
    assert identity_of(**change) != identity_of()


def test_another_prompt_file_is_another_system(tmp_path):
    prompt = tmp_path / "prompt.yaml"
    prompt.write_text(PROMPT)
    small = {"rewriter": {"name": "few_shot", "prompt": str(prompt)}}
    first = identity_of(small)
    assert identity_of(small) == first
    prompt.write_text(PROMPT.replace("Name the medicine", "Say the medicine"))
    assert identity_of(small) != first


def system_of(run, checkpoint="final"):
    config = RunConfig.model_validate(run)
    return RewritingSystem("x", SystemConfig(run="x"), config, checkpoint, ["ndcg@10"], 10)


def test_a_run_is_said_to_be_trained_in_the_environments_of_the_plan_that_it_knew():
    def place(name, env=None, urls="local", retriever="bm25"):
        config = EnvironmentConfig.model_validate(env or {})
        return SimpleNamespace(
            name=name, env=config, client_config=SimpleNamespace(urls=urls), retriever=RetrieverInfo(retriever, "bm25")
        )

    plan = SimpleNamespace(
        environments=[
            place("served", urls=["http://h"], retriever="contriever"),
            place("words"),
            place("slow", {"engine": "rank_bm25"}),
        ]
    )

    def home(run, **more):
        return environments_of_training(system_of(run, **more), plan)

    assert home({"env": {"retriever": "bm25", "index": "elsewhere"}}) == "words"
    assert home({"env": {"engine": "rank_bm25"}}) == "slow"
    assert home({"env": {"retriever": "contriever"}}) == "served"
    assert home({"env": {"retriever": "medcpt"}}) == "medcpt"
    assert home({}, checkpoint=None) == ""
    members = {"a": {"env": {"retriever": "bm25"}}, "b": {"env": {"retriever": "contriever", "index": "c"}}}
    assert home({"mix": {"environments": members}}) == "words+served"
