"""Sampling ahead (train.staleness): which weights sample which trees, corrections, refusals and resumption."""

import threading
from collections import Counter
from itertools import groupby

import pytest
from querylect.data.types import Question
from querylect.envs.client.connect import open_environment
from querylect.envs.environment import Environment
from querylect.envs.server.app import create_app
from querylect.errors import ModelError
from querylect.rewriters.base import Rewrite
from querylect.rollouts.engines.base import Completion
from querylect.rollouts.tree import Node, Tree
from querylect.train.run import train
from querylect.train.step_trees import RolloutPrefetcher, question_streams
from querylect.train.turns import describe

from ..lessons import change, lesson_settings, records, stopped_copy, without_seconds
from ..raising import logged
from ..tree_samplers import engine_of, tree_sampler_of
from .test_validation import ASKED as VALIDATION
from .test_validation import environment

pytestmark = pytest.mark.model

SOON = {"train.steps": 5, "train.save_steps": 1, "train.keep_checkpoints": 9}


@pytest.fixture(scope="module")
def ahead(tmp_path_factory, lessons, lesson_url, speaking):
    """Five steps, each sampled while the one before is trained on: settings and folder."""
    config = lesson_settings(lessons, lesson_url, speaking, tmp_path_factory.mktemp("ahead"))
    config = change(config, **SOON, **{"train.staleness": 1})
    return config, train(config)


def test_every_tree_is_sampled_with_the_weights_of_one_update_before(ahead):
    """Checked by sampling again from the checkpoints, question by question."""
    config, folder = ahead
    synchronous = train(change(config, name="sync", **{"train.staleness": 0}))
    metrics = records(folder / "metrics.jsonl")
    assert [line["sampling/staleness"] for line in metrics] == [0, 1, 1, 1, 1]
    logged, in_order = by_step(folder), by_step(synchronous)
    assert logged[1] == in_order[1]
    assert any(logged[step] != in_order[step] for step in (2, 3, 4, 5)), "older weights sample something else"
    with open_environment(config.env, config.client) as client:
        for step, trees in logged.items():
            assert [tree["question_id"] for tree in trees] == [tree["question_id"] for tree in in_order[step]]
            checkpoint = folder / "checkpoints" / f"checkpoint-{step - 2}" if step > 2 else None
            assert sampled_again(config, client, engine_of(config, checkpoint), step, trees) == trees
    assert max(abs(line["sampling/importance_sampling_ratio/mean"] - 1) for line in metrics[1:]) > 1e-4
    assert metrics[0]["sampling/importance_sampling_ratio/mean"] == pytest.approx(1, abs=1e-5)
    assert all(line["seconds/wait"] >= 0 and line["seconds/update"] > 0 for line in metrics)


def by_step(folder):
    """The logged trees of each step."""
    return {step: list(trees) for step, trees in groupby(records(folder / "rollouts.jsonl"), lambda tree: tree["step"])}


def sampled_again(config, client, engine, step, trees):
    """The questions of logged trees, sampled with an engine as in their step, as they are logged."""
    return [{"step": step, **describe(tree)} for tree in grow_again(config, client, engine, step, trees)]


def grow_again(config, client, engine, step, trees):
    """Trees of the questions of logged trees, sampled with an engine as in their step."""
    questions = [Question(tree["question_id"], tree["question"]) for tree in trees]
    streams = question_streams(config.seed, step - 1, questions, Counter())
    return tree_sampler_of(config, client, engine).grow(questions, config.rollout.branching, streams=streams)


def test_a_run_is_repeated_exactly_and_validation_does_not_change_it(ahead, lessons, tmp_path, run_app):
    config, plain = ahead
    env = environment(lessons, tmp_path / "validated", VALIDATION)
    with run_app(create_app(Environment.open(env))) as url:
        validated = {"client.urls": [url], "train.validate_steps": 1, "train.validation_questions": 3}
        again = train(change(config, name="validated", **validated))
    assert without_seconds(again / "metrics.jsonl") == without_seconds(plain / "metrics.jsonl")
    assert records(again / "rollouts.jsonl") == records(plain / "rollouts.jsonl")
    assert [row["step"] for row in records(again / "validation.jsonl")] == [0, 1, 2, 3, 4, 5]


def test_a_resumed_run_samples_the_first_step_again_and_says_so(ahead, tmp_path, caplog):
    config, folder = stopped_copy(*ahead, tmp_path / "copy", 2)
    train(config, resume=True)
    assert logged(caplog, "train.step_trees") == [(3,)]
    assert [line["step"] for line in records(folder / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    assert [line["sampling/staleness"] for line in records(folder / "metrics.jsonl")] == [0, 1, 0, 1, 1]


class Scripted:
    """An engine and its weights, and trees of two turns that it samples."""

    def __init__(self, failing=None):
        self.refreshed, self.calls, self.failing = 0, [], failing
        self.tokenizer, self.stop_ids, self.clock = None, {0}, None
        self.generating = threading.Event()
        self.engine = self
        """That of the tree_sampler, which this is too."""

    def refresh(self):
        assert not self.generating.is_set(), "the weights change while they are sampled from"
        self.refreshed += 1

    def sleep(self):
        pass

    def generate(self, prompts, n, sampling):
        self.generating.set()
        self.calls.append(self.refreshed)
        self.generating.clear()
        return [[Completion([0], [0.0], True)] for _ in prompts]

    def grow(self, tree_sampler, step):
        if step == self.failing:
            raise ModelError("not finite")
        trees = [Tree(Question(f"q{step}-{position}", ""), []) for position in range(2)]
        for turn in (1, 2):
            for tree, (sample,) in zip(
                trees, tree_sampler.engine.generate([[turn]] * len(trees), 1, None), strict=True
            ):
                node = Node(turn, [turn], sample.ids, [], True, "", Rewrite(None))
                (tree.roots[0].children if turn == 2 else tree.roots).append(node)
        return trees


def test_weights_never_change_while_they_are_sampled_from():
    engine = Scripted()
    ahead = RolloutPrefetcher(12, engine, engine, engine.grow)
    for step in range(12):
        sampled = ahead.take(step)
        assert [tree.question.id for tree in sampled.trees] == [f"q{step}-0", f"q{step}-1"]
        assert step - 1 <= sampled.version <= step
        if step % 3 == 2:  # a validation
            ahead.refresh()
            assert not engine.generating.is_set()
            assert ahead._version == step + 1, "what is sampled before the next step is taken has these weights"
            ahead.sleep()
    ahead.close()
    assert len(engine.calls) == 24, "nothing is sampled twice, or beyond the last step"
    assert engine.refreshed <= 13, "no weights are sent twice"
