"""One policy on two served environments, BM25 and dense vectors: whose questions are asked, where they are searched, in
which words, what is measured, and that a resumed run is the run that was not stopped.

Both environments have the same question ids, and corpora that share no document.
"""

import json

import pytest
from querylect.configs.schema import EnvironmentConfig, RunConfig
from querylect.data.sampling import draw
from querylect.data.types import Dataset, Document, Question, Split
from querylect.errors import EnvironmentUnavailableError
from querylect.rollouts.checkpoints import find_checkpoint, used_turn
from querylect.rollouts.tree_sampler import TreeSampler
from querylect.train.run import train
from querylect.train.run_folder import RunFolder

from ..encoders import save_bert
from ..lessons import ASKED, TEXTS, change, lesson_settings, records, without_seconds
from ..raising import refused
from .test_stops import breaking
from .test_validation import environment

pytestmark = [pytest.mark.model, pytest.mark.slow]

PROMPT = """
system: Name the medicine.
question: "{retriever} < {question}"
documents: "Found: {documents}"
no_documents: Found nothing.
examples:
  - question: itch
    retriever: bm25
    turns:
      - {rewrite: menthol}
      - {documents: [About menthol], rewrite: menthol}
"""
HERBS = {
    "willow": "willow bark for headache",
    "cinnamon": "cinnamon and blood sugar",
    "lemon": "lemon against scurvy",
    "garlic": "garlic and blood",
}
ANSWERS = {"head": "willow", "sugar": "cinnamon", "gums": "lemon", "fat": "garlic"}


def renamed(split):
    """The split under other question ids."""
    return Split(
        [Question(f"t-{question.id}", question.text) for question in split.questions],
        {f"t-{name}": grades for name, grades in split.qrels.items()},
    )


@pytest.fixture(scope="session")
def herbs(tmp_path_factory) -> EnvironmentConfig:
    """Four documents and four questions, under ids that BM25's questions have too; a random BERT with FAISS."""
    from querylect.data.beir import save_beir
    from querylect.envs.build import build_index

    folder = tmp_path_factory.mktemp("herbs")
    corpus = [Document(name, f"About {name}", text) for name, text in HERBS.items()]
    questions = [Question(name, f"herbs: {ASKED[name][0]}") for name in ANSWERS]
    split = Split(questions, {name: {herb: 1} for name, herb in ANSWERS.items()})
    held_out = Split([Question(name, f"which herb for {ASKED[name][0]}") for name in ANSWERS], split.qrels)
    save_beir(Dataset("herbs", corpus, {"train": split, "test": renamed(held_out)}), folder / "data")
    config = EnvironmentConfig.model_validate(
        {
            "dataset": {"path": str(folder / "data")},
            "retriever": save_bert(folder / "bert"),
            "recipe": {"name": "tiny-bert", "pooling": "mean", "similarity": "cos", "max_length": 64},
            "index": str(folder / "index"),
        }
    )
    build_index(config)
    return config


def app_of(config):
    from querylect.envs.environment import Environment
    from querylect.envs.server.app import create_app

    return create_app(Environment.open(config))


@pytest.fixture(scope="session")
def herbs_url(herbs, run_app):
    """The second environment as a running service."""
    with run_app(app_of(herbs)) as url:
        yield url


def mixed(settings, herbs, url, folder):
    """Five steps of four questions: three of BM25, one of the dense retriever."""
    (folder / "prompt.yaml").write_text(PROMPT)
    plain = change(settings, **{"train.questions_per_step": 4, "train.steps": 5, "train.save_steps": 1}).model_dump()
    plain["train"]["keep_checkpoints"] = 9
    plain["rewriter"]["prompt"] = str(folder / "prompt.yaml")
    plain["mix"] = {
        "environments": {
            "bm25": {"weight": 3.0},
            "dense": {"env": herbs.model_dump(), "client": {"urls": [url]}},
        },
    }
    return RunConfig.model_validate(plain)


@pytest.fixture
def mix(settings, herbs, herbs_url, tmp_path):
    return mixed(settings, herbs, herbs_url, tmp_path)


@pytest.fixture(scope="module")
def straight(tmp_path_factory, lessons, lesson_url, speaking, herbs, herbs_url):
    """Five steps that nothing interrupted, and their settings."""
    folder = tmp_path_factory.mktemp("straight")
    plain = lesson_settings(lessons, lesson_url, speaking, folder)
    config = mixed(plain, herbs, herbs_url, folder)
    return config, train(config)


def by_environment(folder, step):
    trees = {"bm25": [], "dense": []}
    for tree in records(folder / "rollouts.jsonl"):
        if tree["step"] == step:
            trees[tree["question_id"].partition("/")[0]].append(tree)
    return trees


def test_every_question_is_searched_in_its_own_environment(straight):
    """The ids are those of both; the documents found, and the text asked, are those of one."""
    _, folder = straight
    searched = {"bm25": 0, "dense": 0}
    for step in range(1, 6):
        for name, trees in by_environment(folder, step).items():
            for tree in trees:
                assert tree["question"].startswith("herbs: ") == (name == "dense")
                for turn in [turn for root in tree["turns"] for turn in (root, *root["children"])]:
                    assert set(turn["ranking"]) <= set(TEXTS if name == "bm25" else HERBS)
                    searched[name] += bool(turn["ranking"])
    assert min(searched.values()) > 10


def test_each_environment_is_measured_by_itself(straight):
    _, folder = straight
    lines = records(folder / "metrics.jsonl")
    for line in lines:
        trees = by_environment(folder, line["step"])
        for name, member_trees in trees.items():
            leaves = [leaf for tree in member_trees for turn in tree["turns"] for leaf in turn["children"]]
            if not leaves:
                assert f"reward/turn2/{name}" not in line
                continue
            for measured, values in (
                ("reward", [leaf["reward"] for leaf in leaves]),
                ("ndcg", [leaf["metrics"]["ndcg@10"] for leaf in leaves]),
            ):
                assert line[f"{measured}/turn2/{name}"] == pytest.approx(sum(values) / len(values), rel=1e-5)
        sums = [line.get(f"reward/turn1/{name}", 0) * len(member_trees) for name, member_trees in trees.items()]
        assert line["reward/turn1"] == pytest.approx(sum(sums) / 4, rel=1e-5)


@pytest.mark.usefixtures("own_clock")
def test_an_outage_of_one_environment_stops_the_run_and_it_goes_on_exactly(straight, herbs, run_app, tmp_path):
    """Every step asks the dense environment twice, once a turn: in the third it is gone, and BM25 answers on."""
    metrics = without_seconds(straight[1] / "metrics.jsonl")
    config = change(straight[0], name="run", output=str(tmp_path / "runs"), **{"train.save_steps": 100})
    values = config.model_dump()
    with run_app(breaking(app_of(herbs), after=4)) as url:
        values["mix"]["environments"]["dense"]["client"]["urls"] = [url]
        facts = ("step 3", "environment dense", "failure: dense: ")
        with refused(EnvironmentUnavailableError, *facts):
            train(RunConfig.model_validate(values))
    folder = tmp_path / "runs" / "run"
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["checkpoint-2"]
    assert without_seconds(folder / "metrics.jsonl") == metrics[:2], "the step was neither trained nor logged"
    train(config, resume=True)
    assert without_seconds(folder / "metrics.jsonl") == metrics


SORE, HERBAL = ["a sore head", "pain in the temples", "my skull aches"], ["herb one", "herb two", "herb three"]
"""Validation questions of either environment, under the same ids."""


def test_a_mix_is_validated_over_the_questions_of_all(mix, lessons, herbs, run_app, tmp_path, monkeypatch):
    """Each question in its own environment."""
    members = {
        "bm25": environment(lessons, tmp_path / "sore", SORE),
        "dense": environment(herbs, tmp_path / "herbal", HERBAL, "willow"),
    }
    answered, answer = [], TreeSampler.answer

    def record_answers(self, questions, turns, *arguments, **how):
        answered.append(answer(self, questions, turns, *arguments, **how))
        return answered[-1]

    monkeypatch.setattr(TreeSampler, "answer", record_answers)
    plain = mix.model_dump()
    plain["train"] |= {"steps": 2, "validate_steps": 1, "validation_questions": 5}
    with run_app(app_of(members["bm25"])) as bm25, run_app(app_of(members["dense"])) as dense:
        plain["mix"]["environments"] = {
            name: served(config, url) for (name, config), url in zip(members.items(), (bm25, dense), strict=True)
        }
        config = RunConfig.model_validate(plain)
        folder = RunFolder(train(config))
    ids = [f"{name}/v{number}" for name in members for number in range(3)]
    drawn = draw(ids, 5, 0, str)
    logged = records(folder.validation)
    assert [line["step"] for line in logged] == [0, 1, 2]
    for line, trees in zip(logged, answered, strict=True):
        assert [tree.question.id for tree in trees] == drawn
        nodes = [node for tree in trees for node in tree.walk()]
        for tree in trees:
            texts = TEXTS if tree.question.id.startswith("bm25/") else HERBS
            assert {hit.id for node in tree.walk() for hit in node.ranking or ()} <= set(texts)
        for turn in (1, 2):
            values = [node.metrics.get("ndcg@10", 0.0) for node in nodes if node.turn == turn]
            assert line[f"ndcg/turn{turn}"] == pytest.approx(sum(values) / 5, rel=1e-4)
    assert any(node.ranking for trees in answered for tree in trees for node in tree.walk())
    used = used_turn(config.rollout, config.reward, config.train, folder.path, find_checkpoint(folder.path, "best"))
    best = json.loads((folder.best / "best.json").read_text())
    assert (used.turn, used.reason[:31]) == (best["turn"], "best on 5 validation questions:")


def served(config, url):
    """A member of a mix that is served at `url`."""
    return {"env": config.model_dump(), "client": {"urls": [url]}}
