"""Sampling ahead (train.staleness): which weights sample which trees, and what is corrected, refused and resumed."""

import signal
import threading
import time
from collections import Counter
from itertools import groupby

import pytest
from pydantic import ValidationError
from querylect.data.types import Question
from querylect.envs.client.in_process import InProcessClient
from querylect.errors import ConfigError, EnvironmentUnavailableError, ModelError
from querylect.rollouts.tree import Tree
from querylect.train.ahead import TreesAhead
from querylect.train.arguments import check_settings
from querylect.train.distributed.processes import Processes
from querylect.train.questions import prepare_data
from querylect.train.rows import question_streams
from querylect.train.run import train
from querylect.train.run_folder import RunFolder
from querylect.train.watch import describe

from ..growers import engine_of, grower_of
from ..lessons import ASKED, change, lesson_url, lessons, records, settings, speaking, without_seconds  # noqa: F401
from ..raising import logged, refused

SOON = {"train.steps": 5, "train.save_steps": 1, "train.keep_checkpoints": 9, "train.log_rollouts": 9}


@pytest.mark.parametrize("changes", [{}, {"policy.lora": None, "train.learning_rate": 1e-3}], ids=["lora", "full"])
def test_every_tree_is_sampled_with_the_weights_of_one_update_before(settings, changes):  # noqa: F811
    """Sampled again from the checkpoints, question by question."""
    from querylect.envs.client.connect import open_environment

    config = change(settings, **SOON, **changes)
    one, folder = (
        train(change(config, name=name, **{"train.staleness": k})) for name, k in (("sync", 0), ("ahead", 1))
    )
    metrics = records(folder / "metrics.jsonl")
    assert [line["sampling/staleness"] for line in metrics] == [0, 1, 1, 1, 1]
    logged = {
        step: list(trees) for step, trees in groupby(records(folder / "rollouts.jsonl"), lambda tree: tree["step"])
    }
    in_order = {
        step: list(trees) for step, trees in groupby(records(one / "rollouts.jsonl"), lambda tree: tree["step"])
    }
    assert logged[1] == in_order[1]
    assert any(logged[step] != in_order[step] for step in (2, 3, 4, 5)), "older weights sample something else"
    with open_environment(config.env, config.client) as client:
        for step, trees in logged.items():
            checkpoint = folder / "checkpoints" / f"checkpoint-{step - 2}" if step > 2 else None
            grower = grower_of(config, client, engine_of(config, checkpoint))
            questions = [Question(tree["question_id"], tree["question"]) for tree in trees]
            assert [question.id for question in questions] == [tree["question_id"] for tree in in_order[step]]
            streams = question_streams(config.seed, step - 1, questions, Counter())
            again = grower.grow(questions, config.rollout.branching, streams=streams)
            assert [{"step": step, **describe(tree)} for tree in again] == trees
    assert max(abs(line["sampling/importance_sampling_ratio/mean"] - 1) for line in metrics[1:]) > 1e-4
    assert metrics[0]["sampling/importance_sampling_ratio/mean"] == pytest.approx(1, abs=1e-5)
    assert all(line["seconds/wait"] >= 0 and line["seconds/update"] > 0 for line in metrics)


def test_a_run_is_repeated_exactly_and_validation_does_not_change_it(settings, lessons, tmp_path, run_app):  # noqa: F811
    from .test_train_validation import ASKED as VALIDATION
    from .test_train_validation import environment

    ahead = change(settings, **SOON, **{"train.staleness": 1})
    plain = train(change(ahead, name="plain"))
    again = train(change(ahead, name="again"))
    assert without_seconds(again / "metrics.jsonl") == without_seconds(plain / "metrics.jsonl")
    assert records(again / "rollouts.jsonl") == records(plain / "rollouts.jsonl")
    from querylect.envs.environment import Environment
    from querylect.envs.server.app import create_app

    config = environment(lessons, tmp_path / "validated", VALIDATION)
    with run_app(create_app(Environment.open(config), config)) as url:
        validated = {"client.urls": [url], "train.validate_steps": 1, "train.validation_questions": 3}
        folder = train(change(ahead, name="validated", **validated))
    assert without_seconds(folder / "metrics.jsonl") == without_seconds(plain / "metrics.jsonl")
    assert [row["step"] for row in records(folder / "validation.jsonl")] == [0, 1, 2, 3, 4, 5]


def test_a_resumed_run_samples_the_first_step_again_and_says_so(settings, caplog):  # noqa: F811
    config = change(settings, **SOON, **{"train.staleness": 1})
    train(change(config, **{"train.steps": 2}))
    caplog.clear()
    folder = train(config, resume=True)
    assert logged(caplog, "train.ahead") == [(3,)]
    assert [line["step"] for line in records(folder / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    assert [line["sampling/staleness"] for line in records(folder / "metrics.jsonl")] == [0, 1, 0, 1, 1]


def test_older_trees_than_allowed_are_never_trained_on(settings):  # noqa: F811
    folder = train(change(settings, **{**SOON, "train.staleness": 3, "train.steps": 8}))
    staleness = [line["sampling/staleness"] for line in records(folder / "metrics.jsonl")]
    assert staleness[0] == 0
    assert all(1 <= value <= 3 for value in staleness[1:])
    assert len(records(folder / "rollouts.jsonl")) == 16


def test_what_knows_later_questions_or_weights_is_refused(settings):  # noqa: F811
    for name, value in (("num_iterations", 2), ("resample_rounds", 1), ("importance_sampling_correction", False)):
        with pytest.raises(ValidationError, match=f"train.{name} {value}"):
            change(settings, **{"train.staleness": 1, f"train.{name}": value})
    with refused(ConfigError, "questions-not-known-ahead", "train.staleness"):
        check_settings(change(settings, **{"train.staleness": 1, "train.curriculum.prefer": "hard"}), 1)
    with refused(ConfigError, "shared-engine", "vllm_server", "train.staleness"):
        check_settings(change(settings, **{"train.staleness": 1, "rollout.engine": "vllm"}), 1)


def test_only_a_rewriter_with_a_first_stage_is_refused(settings, lessons):  # noqa: F811
    """An offer to stop wraps a rewriter, and has a first stage only where the rewriter has one."""
    ahead = change(settings, **{"train.staleness": 1, "rewriter.stop": True})
    client = InProcessClient(lessons)
    assert prepare_data(ahead, Processes(), client).questions == client.questions("train")
    for stop in (False, True):
        staged = change(ahead, **{"rewriter.name": "hcqr", "rewriter.stop": stop})
        with refused(ConfigError, "questions-not-known-ahead", "hcqr"):
            prepare_data(staged, Processes(), client)


def test_sampling_ahead_with_stops_and_prices(settings):  # noqa: F811
    """The first step has the trees of a run that samples nothing ahead, with as many searches."""
    config = change(settings, **{"rewriter.stop": True, "reward.search_price": 0.1, "train.steps": 2})
    one, ahead = (
        records(train(change(config, name=name, **{"train.staleness": k})) / "metrics.jsonl")
        for name, k in (("sync", 0), ("ahead", 1))
    )
    assert ahead[0]["searches_per_path"] == one[0]["searches_per_path"]
    assert ahead[0]["searches"] == one[0]["searches"] > 0
    assert [line["sampling/staleness"] for line in ahead] == [0, 1]


class Scripted:
    """Counts refreshes; `grow` notes how many there were, and takes as long as it is told."""

    def __init__(self, seconds=0.0, failing=None):
        self.refreshed, self.seen, self.seconds, self.failing = 0, {}, seconds, failing
        self.growing = threading.Event()

    def refresh(self):
        assert not self.growing.is_set(), "the weights change while they are sampled from"
        self.refreshed += 1

    def sleep(self):
        pass

    def grow(self, grower, step):
        self.growing.set()
        self.seen[step] = self.refreshed
        time.sleep(self.seconds)
        self.growing.clear()
        if step == self.failing:
            raise ModelError("not finite")
        return [Tree(Question(f"q{step}", ""), [])]


class Clocks:
    clock = searched = None


@pytest.mark.parametrize("staleness", [1, 2, 4])
@pytest.mark.parametrize("seconds", [0.0, 0.02])
def test_weights_never_change_while_they_are_sampled_from(staleness, seconds):
    engine = Scripted(seconds)
    ahead = TreesAhead(staleness, 12, Clocks(), engine, engine.grow, Processes())
    for step in range(12):
        sampled = ahead.take(step)
        assert [tree.question.id for tree in sampled.trees] == [f"q{step}"]
        assert 0 <= step - sampled.version <= staleness
        if step % 3 == 2:  # a validation
            ahead.refresh()
            assert not engine.growing.is_set()
            ahead.sleep()
    ahead.close()
    assert sorted(engine.seen) == list(range(12)), "nothing is sampled beyond the last step"


def test_an_error_of_the_thread_is_raised_where_its_trees_are_needed():
    engine = Scripted(failing=3)
    ahead = TreesAhead(1, 9, Clocks(), engine, engine.grow, Processes())
    for step in range(3):
        ahead.take(step)
    with pytest.raises(ModelError):
        ahead.take(3)
    ahead.close()


def test_an_outage_ends_the_run_with_a_checkpoint_and_it_goes_on(settings, lessons, run_app):  # noqa: F811
    from querylect.envs.environment import Environment
    from querylect.envs.server.app import create_app

    config = change(settings, **SOON, **{"train.staleness": 1, "client.deadline": 2.0})
    app, asked = create_app(Environment.open(lessons), lessons), []

    async def dying(scope, receive, send):
        if scope["type"] == "http" and scope["path"] == "/v1/step":
            asked.append(scope)
        if scope["type"] == "http" and len(asked) > 5:
            await send({"type": "http.response.start", "status": 503, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await app(scope, receive, send)

    with run_app(dying) as url, refused(EnvironmentUnavailableError, None, "--resume"):
        train(change(config, **{"client.urls": [url]}))
    folder = RunFolder(RunFolder(train(config, resume=True)).path)
    assert [line["step"] for line in records(folder.metrics)] == [1, 2, 3, 4, 5]


def test_a_signal_ends_a_run_that_waits_for_its_trees(settings, monkeypatch):  # noqa: F811
    """The thread is in the middle of a rollout, and the main thread waits for it."""
    from querylect.errors import StoppedError
    from querylect.rollouts.grow import Grower

    grow, main = Grower.grow, threading.main_thread()

    def slow(self, *arguments, **options):
        if threading.current_thread() is not main and len(asked) >= 2:
            threading.Timer(0.2, lambda: signal.pthread_kill(main.ident, signal.SIGTERM)).start()
            time.sleep(3)
        asked.append(1)
        return grow(self, *arguments, **options)

    asked = []
    monkeypatch.setattr(Grower, "grow", slow)
    started = time.monotonic()
    with refused(StoppedError, None, "SIGTERM"):
        train(change(settings, **SOON, **{"train.staleness": 1, "train.grace_seconds": 0.1}))
    assert time.monotonic() - started < 60
    monkeypatch.setattr(Grower, "grow", grow)
    folder = train(change(settings, **SOON, **{"train.staleness": 1, "train.grace_seconds": 0.1}), resume=True)
    assert [line["step"] for line in records(folder / "metrics.jsonl")] == [1, 2, 3, 4, 5]
