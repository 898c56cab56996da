"""Prompt optimisation of a real policy on a real service, with a reflection endpoint whose proposals are scripted."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from querylect.cli import main
from querylect.configs.load import dump_config
from querylect.configs.schema import RunConfig
from querylect.data.beir import load_beir
from querylect.envs.build import build_index
from querylect.errors import CheckpointError, ConfigError, EngineUnavailableError
from querylect.optimize.run import optimize, relevant_titles
from querylect.train.run import train

from ..chat_server import ChatServer, last_user, serving
from ..command import mistake
from ..lessons import change, records
from ..raising import refused
from .suggestible import BETTER, WORSE, prompting

pytestmark = pytest.mark.model

PROPOSED = (WORSE, BETTER, WORSE)


class Reflection:
    """A server that proposes these texts one after another, then the last one again."""

    def __init__(self, *texts: str) -> None:
        self.texts = [f"I would write:\n```\n{text}\n```" for text in texts]
        self.server = ChatServer(lambda body: self.texts.pop(0) if len(self.texts) > 1 else self.texts[0])

    @property
    def prompts(self) -> list[str]:
        return [last_user(body) for body in self.server.bodies]


@contextmanager
def reflecting(run_app, config: RunConfig, *texts: str) -> Iterator[tuple[RunConfig, Reflection]]:
    """The config with such a server as its reflection model."""
    reflection = Reflection(*texts)
    with serving(run_app, reflection.server) as url:
        yield change(config, **{"optimize.reflection.base_url": url}), reflection


@pytest.fixture(scope="module")
def undisturbed(world, world_url, suggestible, tmp_path_factory, run_app):
    """The folder of an uninterrupted run, and its reflection model."""
    config = prompting.__wrapped__(world, world_url, suggestible, tmp_path_factory.mktemp("undisturbed"))
    with reflecting(run_app, config, *PROPOSED) as (config, reflection):
        return optimize(config), reflection


def answers_in(folder):
    return records(folder / "gepa" / "store.jsonl")


def check(folder):
    """What holds of every finished run, however often it was interrupted."""
    answers = answers_in(folder)
    assert len({(row["key"], row["turn"]) for row in answers}) == len(answers) <= 60, "nothing is answered twice"
    assert BETTER in (folder / "best" / "prompt.yaml").read_text()
    assert any(BETTER in candidate["system"] for candidate in json.loads((folder / "gepa/candidates.json").read_text()))


def test_a_better_prompt_is_kept_and_worse_ones_are_not_validated(undisturbed):
    folder, _ = undisturbed
    check(folder)
    by_question = Counter(row["question_id"].partition("-")[0] for row in answers_in(folder))
    assert by_question == {"validation": 10, "train": 15}, "the first prompt and the better one; the worse one beside"
    best = json.loads((folder / "best" / "best.json").read_text())
    assert (best["step"], best["questions"], best["turn"]) == (1, 5, 1)
    assert best["reward/turn1"] == pytest.approx(best["reward"])
    assert all(row["tokens"] > 0 for row in answers_in(folder))
    assert sorted(path.name for path in folder.iterdir()) == [
        "base.json", "best", "checkpoints", "config.yaml", "environment.json", "gepa", "provenance.json", "run.json",
    ]  # fmt: skip


def test_the_reflection_model_reads_training_questions_alone(undisturbed):
    _, reflection = undisturbed
    for fact in ("my head hurts", "About citrus", "the question itself as the query has"):
        assert fact in reflection.prompts[0]
    sent = json.dumps(reflection.server.bodies)
    assert "tell me" not in sent, "no validation question"
    assert "please" not in sent, "no test question"


def test_relevant_titles_are_those_of_training_questions(prompting):
    local = change(prompting, **{"client.urls": "local"})
    questions = load_beir(local.env.dataset.path).splits["train"].questions
    titles = relevant_titles(local.env, local.client, questions[:1])
    assert titles == {"train-head": ["About triptan", "About aspirin"]}


def test_a_budget_ends_the_run_and_the_command_prints_the_folder(prompting, run_app, tmp_path, capsys):
    with reflecting(run_app, prompting, "Think.<|im_end|>", "blood " * 3000) as (config, reflection):
        (tmp_path / "config.yaml").write_text(dump_config(config))
        with pytest.raises(SystemExit) as ended:
            main(["optimize", str(tmp_path / "config.yaml"), "optimize.searches=15"])
    assert not ended.value.code
    assert capsys.readouterr().out == f"{config.run_folder}\n"
    assert len(reflection.prompts) == 2
    assert len(answers_in(config.run_folder)) == 10, "unusable proposals are not searched"
    assert (config.run_folder / "best" / "prompt.yaml").is_file(), "the first prompt"
    with refused(ConfigError, 4, 5):
        optimize(change(prompting, name="small", **{"optimize.searches": 4}))
    assert not (config.run_folder.parent / "small" / "config.yaml").exists()


def test_several_turns_are_weighted_as_in_training_and_each_takes_a_search(prompting, run_app):
    two = {"rollout.branching": [2, 2], "reward.turn_weights": [0.5, 1.0], "optimize.searches": 30}
    with reflecting(run_app, change(prompting, **two), BETTER) as (config, reflection):
        folder = optimize(config)
    assert len(reflection.prompts) == 1, "30 searches are 15 answers of two turns"
    best = json.loads((folder / "best" / "best.json").read_text())
    assert best["reward"] == pytest.approx((0.5 * best["reward/turn1"] + best["reward/turn2"]) / 1.5)
    assert best["turn"] == 1 + (best["ndcg/turn2"] > best["ndcg/turn1"])


def test_a_frozen_model_at_an_endpoint_can_have_its_prompt_optimised_and_evaluated(prompting, run_app):
    from querylect.inference.rewriter import Rewriter

    from ..evaluated import evaluate

    task = ChatServer(lambda body: f"<think></think><rewrite>{'blood' if 'blood' in str(body) else 'x'}</rewrite>")
    with serving(run_app, task) as url, reflecting(run_app, prompting, BETTER) as (config, _):
        config = change(config, **{"optimize.task": {"model": "t", "base_url": url, "cache": None}})
        folder = optimize(config)
        assert BETTER in (folder / "best" / "prompt.yaml").read_text()
        assert not (folder / "base.json").exists()
        evaluate(config, folder, None)
    scores = {row["system"]: row["metrics"]["ndcg@10"] for row in records(folder / "eval.jsonl") if row["turn"]}
    assert set(scores) == {"trained", "untrained"}
    with refused(ConfigError, "prompt.yaml"):
        Rewriter.from_pretrained(folder)


def test_the_reflection_model_reads_what_the_search_engine_says_of_native_queries(prompting, run_app, tmp_path):
    changes = {"env.retriever": "fts5", "env.index": str(tmp_path / "fts5"), "client.urls": "local"}
    native = change(prompting, **changes, **{"rewriter.query": "native", "optimize.searches": 15})
    build_index(native.env)
    task = ChatServer(lambda body: f"<rewrite>{'blood, sugar' if 'sugar' in last_user(body) else 'blood'}</rewrite>")
    with serving(run_app, task) as url, reflecting(run_app, native, BETTER) as (config, reflection):
        optimize(change(config, **{"optimize.task": {"model": "t", "base_url": url, "cache": None}}))
    for fact in ('refused the query: fts5: syntax error near ","', "2 documents match"):
        assert fact in reflection.prompts[0]
    assert "the answer was not searched" not in reflection.prompts[0]


def test_answers_beside_one_that_fails_are_kept(prompting, run_app, impatient):
    task = ChatServer(lambda body: "<rewrite>blood</rewrite>")
    with serving(run_app, task) as url, reflecting(run_app, prompting, BETTER) as (config, _):
        config = change(config, **{"optimize.task": {"model": "t", "base_url": url, "cache": None}})
        task.always = lambda body: (500, {}) if "sugar" in last_user(body) else None
        with refused(EngineUnavailableError, "1 questions", "--resume"):
            optimize(config)
        task.always = None
        optimize(config, resume=True)
    asked = Counter(json.dumps(body["messages"]) for body in task.bodies)
    (again,) = [messages for messages, count in asked.items() if count > 1]
    assert "sugar" in again, "the failed one alone is asked again"


def test_a_finished_run_answers_nothing_more_until_its_budget_is_raised(prompting, run_app, monkeypatch):
    with reflecting(run_app, change(prompting, **{"optimize.searches": 10}), *PROPOSED) as (config, reflection):
        folder = optimize(config)
        answers, requests = answers_in(folder), len(reflection.prompts)
        optimize(config, resume=True)
        assert (answers_in(folder), len(reflection.prompts)) == (answers, requests)
        optimize(change(config, **{"optimize.searches": 60}), resume=True)
        check(folder)
        with refused(ConfigError):
            optimize(config)
        with refused(CheckpointError, "querylect optimize"):
            train(config, resume=True)
    monkeypatch.setattr("querylect.optimize.run.is_own", lambda folder: False)
    with refused(CheckpointError, folder, "pickle"):
        optimize(config, resume=True)


def test_an_unreachable_reflection_model_ends_the_run_which_goes_on_later(prompting, run_app, impatient):
    with reflecting(run_app, prompting, *PROPOSED) as (config, reflection):
        reflection.server.always = lambda body: (503, {}) if len(reflection.server.bodies) in (2, 3) else None
        with pytest.raises(EngineUnavailableError):
            optimize(config)
        assert not (config.run_folder / "best").exists()
        reflection.server.always = None
        check(optimize(config, resume=True))


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [(["paper_bm25"], "rewriter.prompt"), (["demo", "rewriter.stop=true"], "stop"), (["answers"], "reward")],
)
def test_a_dry_run_refuses_what_the_run_would_refuse(arguments, fact, capsys):
    assert mistake("optimize", *arguments, "--dry-run") is ConfigError
    printed = capsys.readouterr()
    assert not printed.out
    assert fact in printed.err
