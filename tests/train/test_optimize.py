"""Prompt optimisation of a real policy on a real service, with a reflection endpoint whose proposals are scripted."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

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


def untimed(path: Path) -> list[dict]:
    """The records of a journal without their seconds."""
    return [{name: value for name, value in record.items() if name != "seconds"} for record in records(path)]


def results(folder: Path) -> list[object]:
    """What a run wrote that does not depend on the clock."""
    journals = [untimed(folder / name) for name in ("evaluations.jsonl", "proposals.jsonl", "candidates.jsonl")]
    return [*journals, (folder / "best" / "prompt.yaml").read_text(), (folder / "best" / "best.json").read_text()]


def test_a_better_prompt_is_kept_and_worse_ones_are_not_validated(undisturbed):
    folder, reflection = undisturbed
    candidates = records(folder / "candidates.jsonl")
    assert [row["validation"] is not None for row in candidates[:3]] == [True, False, True]
    start, better = candidates[0]["validation"], candidates[2]["validation"]
    assert better > start
    assert candidates[2]["minibatch"] > candidates[2]["parent_minibatch"]
    assert BETTER in (folder / "best" / "prompt.yaml").read_text()
    best = json.loads((folder / "best" / "best.json").read_text())
    assert (best["step"], best["questions"], best["turn"]) == (2, 5, 1)
    assert best["reward/turn1"] == pytest.approx(better, abs=1e-5)
    evaluations = records(folder / "evaluations.jsonl")
    assert {row["split"] for row in evaluations} == {"train", "validation"}
    assert sum(row["searches"] for row in evaluations) <= 60
    assert all(row["tokens"] > 0 for row in evaluations if row["candidate"] != "raw")
    assert len({row["key"] for row in evaluations}) == len(evaluations), "no question is asked twice with one prompt"
    assert len(reflection.prompts) == len(records(folder / "proposals.jsonl")) == 4
    assert sorted(path.name for path in folder.iterdir()) == [
        ".lock", "base.json", "best", "candidates.jsonl", "checkpoints", "config.yaml",
        "environment.json", "evaluations.jsonl", "proposals.jsonl", "provenance.json", "run.json",
    ]  # fmt: skip


def test_the_reflection_model_reads_training_questions_alone(undisturbed):
    _, reflection = undisturbed
    assert "my head hurts" in reflection.prompts[0]
    assert "Retrieved first: About citrus" in reflection.prompts[0]
    sent = json.dumps(reflection.server.bodies)
    assert "tell me" not in sent, "no validation question"
    assert "please" not in sent, "no test question"


def test_without_feedback_the_reflection_model_reads_the_prompt_alone(prompting, run_app):
    with reflecting(run_app, change(prompting, **{"optimize.feedback": False}), *PROPOSED) as (config, reflection):
        folder = optimize(config)
    assert "Name the medicine, such as scurvy." in reflection.prompts[0]
    for phrase in ("my head hurts", "answered these questions", "<side_info>", "reward is", "About"):
        assert phrase not in json.dumps(reflection.server.bodies)
    assert {row["candidate"] for row in records(folder / "evaluations.jsonl")}.isdisjoint({"raw"}), "not searched"
    assert BETTER in (folder / "best" / "prompt.yaml").read_text(), "selection stays"


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
    titles = relevant_titles(local.env, local.client, 1, questions[:1])
    assert titles == {"train-head": ["About triptan"]}
    remote_titles = relevant_titles(prompting.env, prompting.client, 1, questions)
    assert remote_titles == {}, "a service shows no judgements"


def test_a_budget_is_never_exceeded_and_the_command_prints_the_folder(prompting, run_app, tmp_path, capsys):
    with reflecting(run_app, prompting, BETTER) as (config, reflection):
        (tmp_path / "config.yaml").write_text(dump_config(config))
        with pytest.raises(SystemExit) as ended:
            main(["optimize", str(tmp_path / "config.yaml"), "--searches", "16"])
    assert not ended.value.code
    folder = config.run_folder
    assert capsys.readouterr().out == f"{folder}\n"
    assert len(reflection.prompts) == 1
    assert sum(row["searches"] for row in records(folder / "evaluations.jsonl")) == 15, "five more would be too many"
    assert [row["validation"] is None for row in records(folder / "candidates.jsonl")] == [False, True]
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


@pytest.fixture
def straight(undisturbed):
    """Its results, and the number of requests to the reflection model."""
    return results(undisturbed[0]), len(undisturbed[1].prompts)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_run_that_was_interrupted_is_resumed_as_if_it_was_not(prompting, run_app, straight, monkeypatch, batch):
    """Ctrl-C before one of its batches of answers: no finished answer is generated again."""
    calls, answer = [], scoring.model_answers

    def interrupted(parts, *arguments):
        calls.append(parts)
        if len(calls) == batch:
            raise KeyboardInterrupt
        return answer(parts, *arguments)

    monkeypatch.setattr(scoring, "model_answers", interrupted)
    with reflecting(run_app, prompting, *PROPOSED) as (config, reflection):
        with pytest.raises(KeyboardInterrupt):
            optimize(config)
        folder = config.run_folder
        assert not [path for path in folder.rglob("*") if path.name.endswith((".writing", ".partial", ".tmp"))]
        evaluation_count = len(records(folder / "evaluations.jsonl")) if batch > 1 else 0
        assert optimize(config, resume=True) == folder
    assert (results(folder), len(reflection.prompts)) == straight
    assert len(records(folder / "evaluations.jsonl")) > evaluation_count
    starts = json.loads((folder / "provenance.json").read_text())["starts"]
    assert len(starts) == (2 if batch > 2 else 1), "nothing was done before the first"


def test_a_finished_run_asks_nothing_when_resumed_and_more_with_a_larger_budget(prompting, run_app):
    small = change(prompting, **{"optimize.proposals": 1})
    with reflecting(run_app, small, *PROPOSED) as (config, reflection):
        folder = optimize(config)
        first_results = results(folder)
        optimize(config, resume=True)
        assert (results(folder), len(reflection.prompts)) == (first_results, 1)
        optimize(change(config, **{"optimize.proposals": 2, "optimize.searches": 50}), resume=True)
    assert BETTER in (folder / "best" / "prompt.yaml").read_text()
    with refused(CheckpointError, "optimize.minibatch"):
        optimize(change(config, **{"optimize.minibatch": 3}), resume=True)


def test_half_a_line_of_a_killed_run_is_done_again(prompting, run_app, straight):
    with reflecting(run_app, change(prompting, **{"optimize.proposals": 1}), *PROPOSED) as (config, _):
        folder = optimize(config)
        with (folder / "evaluations.jsonl").open("a") as file:
            file.write('{"key": "raw trai')
        optimize(change(config, **{"optimize.proposals": 4}), resume=True)
    assert results(folder) == straight[0]


@pytest.mark.parametrize(
    ("component", "unusable", "reason", "usable"),
    [
        ("system", "Think.<|im_end|>", "control tokens", BETTER),
        ("system", "blood " * 3000, "tokens", BETTER),
        ("question", "Which medicine?", "{question}", "blood: {question}"),
        ("examples", "- question: itch", "examples.0.turns", "- question: x\n  turns: [{rewrite: blood}]"),
    ],
)
def test_an_unusable_prompt_is_refused_with_feedback(prompting, run_app, component, unusable, reason, usable):
    changed = change(prompting, **{"optimize.components": [component], "optimize.proposals": 1})
    with reflecting(run_app, changed, unusable, usable) as (config, reflection):
        folder = optimize(config)
    (proposal,) = records(folder / "proposals.jsonl")
    ((text, why),) = proposal["refused"]
    assert (text, proposal["text"], proposal["calls"]) == (unusable.strip(), usable, 2)
    assert reason in why
    assert why in reflection.prompts[1], "the next attempt is told"


def test_a_proposal_without_a_usable_attempt_costs_no_search(prompting, run_app):
    changed = change(prompting, **{"optimize.components": ["question"], "optimize.proposals": 2})
    with reflecting(run_app, changed, "Which medicine?") as (config, reflection):
        folder = optimize(config)
    assert len(reflection.prompts) == 2 * 3
    assert [row["calls"] for row in records(folder / "proposals.jsonl")] == [3, 3]
    assert sum(row["searches"] for row in records(folder / "evaluations.jsonl")) == 15, "validation, minibatch, raw"
    assert [row["prompt"] == "" for row in records(folder / "candidates.jsonl")] == [False, True, True]


def test_an_unreachable_reflection_model_ends_the_run_which_goes_on_later(prompting, run_app, straight, impatient):
    with reflecting(run_app, prompting, *PROPOSED) as (config, reflection):
        reflection.server.always = lambda body: (503, {}) if len(reflection.server.bodies) in (2, 3) else None
        with pytest.raises(EngineUnavailableError):
            optimize(config)
        assert len(records(config.run_folder / "proposals.jsonl")) == 1
        reflection.server.always = None
        folder = optimize(config, resume=True)
    assert results(folder) == straight[0]
    with refused(EngineUnavailableError, "127.0.0.1:9"):
        optimize(change(prompting, name="other", **{"optimize.reflection.base_url": "http://127.0.0.1:9/v1"}))


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
