"""Prompt optimisation of a real policy on a real service, with a reflection endpoint whose proposals are scripted."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
from querylect.cli import main
from querylect.configs.load import dump_config
from querylect.configs.schema import RunConfig
from querylect.data.beir import load_beir, save_beir
from querylect.data.types import Utterance
from querylect.envs.client.connect import open_environment
from querylect.envs.environment import Environment
from querylect.envs.server.app import create_app
from querylect.errors import CheckpointError, ConfigError, EngineUnavailableError, MissingPackageError
from querylect.optimize import scoring
from querylect.optimize.run import optimize, relevant_titles, searches_of_training
from querylect.train.run import train

from ..chat_server import ChatServer, last_user, serving
from ..lessons import change, records
from ..raising import refused
from ..suggestible import BETTER, WORSE, prompting

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


def test_the_reflection_model_reads_training_questions_alone(undisturbed):
    _, reflection = undisturbed
    assert "my head hurts" in reflection.prompts[0]
    assert "Retrieved first: About citrus" in reflection.prompts[0]
    sent = json.dumps(reflection.server.bodies)
    assert "tell me" not in sent, "no validation question"
    assert "please" not in sent, "no test question"


def test_the_reflection_model_reads_the_conversation_before_a_question(prompting, run_app, tmp_path):
    dataset, history = (
        load_beir(prompting.env.dataset.path),
        (Utterance("user", "old words"), Utterance("user", "new ones")),
    )
    splits = {
        name: replace(split, questions=tuple(replace(question, history=history) for question in split.questions))
        for name, split in dataset.splits.items()
    }
    save_beir(replace(dataset, splits=splits), tmp_path / "data")
    env = change(prompting, **{"env.dataset.path": str(tmp_path / "data")}).env
    with (
        run_app(create_app(Environment.open(env))) as url,
        reflecting(run_app, change(prompting, **{"client.urls": [url], "rollout.history_tokens": 3}), BETTER) as (
            config,
            reflection,
        ),
    ):
        optimize(config)
    assert "User: old\nUser: new ones" in reflection.prompts[0]
    assert "my head hurts" in reflection.prompts[0]


def test_relevant_titles_are_those_of_training_questions(prompting):
    from querylect.data.load import load_dataset

    local = change(prompting, **{"client.urls": "local"})
    dataset = load_dataset(local.env.dataset)
    questions = dataset.splits["train"].questions
    titles = relevant_titles(local.env, local.client, questions[:1])
    assert titles == {"train-head": ["About triptan", "About aspirin"]}
    remote_titles = relevant_titles(prompting.env, prompting.client, questions)
    assert remote_titles == {}, "a service shows no judgements"


def test_a_budget_is_never_exceeded_and_the_command_prints_the_folder(prompting, run_app, tmp_path, capsys):
    with reflecting(run_app, prompting, BETTER) as (config, reflection):
        (tmp_path / "config.yaml").write_text(dump_config(config))
        with pytest.raises(SystemExit) as ended:
            main(["optimize", str(tmp_path / "config.yaml"), "optimize.searches=16"])
    assert not ended.value.code
    folder = config.run_folder
    assert capsys.readouterr().out == f"{folder}\n"
    assert len(reflection.prompts) == 1
    assert sum(row["searches"] for row in records(folder / "evaluations.jsonl")) == 15, "five more would be too many"
    with refused(ConfigError, 4, 5):
        optimize(change(prompting, name="small", **{"optimize.searches": 4}))
    assert not (folder.parent / "small" / "config.yaml").exists()


def test_the_default_budget_is_that_of_training(prompting):
    rollout = change(prompting, **{"rollout.branching": [4, 2], "reward.turn_weights": [1.0, 1.0]}).rollout
    assert searches_of_training(prompting.train, rollout) == 2 * 2 * (4 + 8)


def test_several_turns_are_weighted_as_in_training_and_each_takes_a_search(prompting, run_app):
    two = {"rollout.branching": [2, 2], "reward.turn_weights": [0.5, 1.0], "optimize.proposals": 1}
    with reflecting(run_app, change(prompting, **two), BETTER) as (config, _):
        folder = optimize(config)
    answers = [row for row in records(folder / "evaluations.jsonl") if row["candidate"] != "raw"]
    assert answers
    for row in answers:
        first, second = row["means"]["reward/turn1"], row["means"]["reward/turn2"]
        assert row["reward"] == pytest.approx((0.5 * first + second) / 1.5)
        assert row["searches"] == len(row["rewrites"]) == 2
    best = json.loads((folder / "best" / "best.json").read_text())
    assert best["turn"] == 1 + (best["ndcg/turn2"] > best["ndcg/turn1"])


def test_a_prompt_has_to_leave_room_for_earlier_turns(prompting):
    """What just fits one turn does not fit two: the second prompt also holds an answer and what it retrieved."""
    two = {"rollout.branching": [2, 2], "reward.turn_weights": [1.0, 1.0]}
    with open_environment(prompting.env, prompting.client) as client, ExitStack() as models:
        questions = client.questions("train")

        def refusal(**values):
            scorer = scoring.Scorer(change(prompting, **values), client, models)
            return scorer.refusal(scorer.start, questions)

        needed = int(re.search(r"takes (\d+) tokens", refusal(**{"rollout.max_prompt_tokens": 16}))[1])
        assert refusal(**{"rollout.max_prompt_tokens": needed}) == refusal(**two) == ""
        assert "tokens" in refusal(**two, **{"rollout.max_prompt_tokens": needed})


@pytest.fixture(scope="module")
def undisturbed(world, world_url, suggestible, tmp_path_factory, run_app):
    """The folder of an uninterrupted run, and its reflection model."""
    config = prompting.__wrapped__(world, world_url, suggestible, tmp_path_factory.mktemp("undisturbed"))
    with reflecting(run_app, config, *PROPOSED) as (config, reflection):
        return optimize(config), reflection


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


def test_runs_of_other_commands_and_prompts_in_code_are_refused(prompting, run_app, monkeypatch):
    with reflecting(run_app, prompting, BETTER) as (config, _):
        optimize(change(config, **{"optimize.proposals": 1}))
        with refused(ConfigError):
            optimize(config)
        with refused(CheckpointError, "querylect optimize"):
            train(config, resume=True)
    with refused(ConfigError, "'general'"):
        optimize(change(prompting, name="general", **{"rewriter.name": "general"}))
    monkeypatch.setitem(sys.modules, "gepa", None)
    with refused(MissingPackageError, "[optimize]"):
        optimize(prompting)


def check(folder):
    """What holds of every finished run, however often it was interrupted."""
    evaluations = records(folder / "evaluations.jsonl")
    assert sum(row["searches"] for row in evaluations) <= 60
    assert len({row["key"] for row in evaluations}) == len(evaluations), "no question is asked twice with one prompt"
    assert BETTER in (folder / "best" / "prompt.yaml").read_text()
    assert any(BETTER in candidate["system"] for candidate in json.loads((folder / "gepa/candidates.json").read_text()))


def test_a_better_prompt_is_kept_and_worse_ones_are_not_validated(undisturbed):
    folder, reflection = undisturbed
    check(folder)
    evaluations = records(folder / "evaluations.jsonl")
    validated = {row["candidate"] for row in evaluations if row["split"] == "validation"}
    trained = {row["candidate"] for row in evaluations if row["split"] == "train"} - {"raw"}
    assert (len(validated), len(trained)) == (2, 3), "the first prompt and the better one; the worse one beside them"
    best = json.loads((folder / "best" / "best.json").read_text())
    assert (best["step"], best["questions"], best["turn"]) == (2, 5, 1)
    assert best["reward/turn1"] == pytest.approx(best["reward"], abs=1e-5)
    assert all(row["tokens"] > 0 for row in evaluations if row["candidate"] != "raw")
    assert len(reflection.prompts) == len(records(folder / "proposals.jsonl")) == 4
    assert sorted(path.name for path in folder.iterdir()) == [
        "base.json", "best", "checkpoints", "config.yaml", "environment.json", "evaluations.jsonl", "gepa",
        "proposals.jsonl", "provenance.json", "run.json",
    ]  # fmt: skip


@pytest.mark.parametrize("batch", [1, 3])
def test_a_run_that_was_interrupted_goes_on_without_repeating_an_answer(prompting, run_app, monkeypatch, batch):
    calls, answer = [], scoring.model_answers

    def interrupted(parts, *arguments):
        calls.append(parts)
        if len(calls) == batch:
            raise KeyboardInterrupt
        return answer(parts, *arguments)

    monkeypatch.setattr(scoring, "model_answers", interrupted)
    with reflecting(run_app, prompting, WORSE, BETTER) as (config, _):
        with pytest.raises(KeyboardInterrupt):
            optimize(config)
        assert optimize(config, resume=True) == config.run_folder
    check(config.run_folder)


def test_a_finished_run_asks_nothing_when_resumed_and_more_with_a_larger_budget(prompting, run_app, monkeypatch):
    small = change(prompting, **{"optimize.proposals": 1})
    with reflecting(run_app, small, *PROPOSED) as (config, reflection):
        folder = optimize(config)
        evaluations = records(folder / "evaluations.jsonl")
        optimize(config, resume=True)
        assert (records(folder / "evaluations.jsonl"), len(reflection.prompts)) == (evaluations, 1)
        optimize(change(config, **{"optimize.proposals": 2}), resume=True)
    check(folder)
    monkeypatch.setattr("querylect.optimize.run.is_own", lambda folder: False)
    with refused(CheckpointError, folder, "pickle"):
        optimize(config, resume=True)


@pytest.mark.parametrize("unusable", ["Think.<|im_end|>", "blood " * 3000])
def test_an_unusable_proposal_costs_no_search(prompting, run_app, unusable):
    with reflecting(run_app, change(prompting, **{"optimize.proposals": 2}), unusable) as (config, _):
        folder = optimize(config)
    assert len(records(folder / "proposals.jsonl")) == 2
    assert sum(row["searches"] for row in records(folder / "evaluations.jsonl")) == 15, "validation, minibatch, raw"


def test_an_unreachable_reflection_model_ends_the_run_which_goes_on_later(prompting, run_app, impatient):
    with reflecting(run_app, prompting, *PROPOSED) as (config, reflection):
        reflection.server.always = lambda body: (503, {}) if len(reflection.server.bodies) in (2, 3) else None
        with pytest.raises(EngineUnavailableError):
            optimize(config)
        assert len(records(config.run_folder / "proposals.jsonl")) == 1
        reflection.server.always = None
        check(optimize(config, resume=True))
