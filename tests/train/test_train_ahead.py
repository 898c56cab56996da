"""Sampling ahead (train.staleness): which weights sample which trees, corrections, refusals and resumption."""

import signal
import threading
import time
from collections import Counter
from concurrent.futures import Future
from itertools import groupby

import pytest
import torch
from pydantic import ValidationError
from querylect.data.types import Question
from querylect.envs.client.connect import open_environment
from querylect.envs.client.in_process import InProcessClient
from querylect.envs.environment import Environment
from querylect.envs.server.app import create_app
from querylect.errors import ConfigError, EnvironmentUnavailableError, ModelError, StoppedError
from querylect.rewriters.base import Rewrite
from querylect.rollouts.engines.base import Completion
from querylect.rollouts.grow import Grower
from querylect.rollouts.policy import add_lora, load_policy
from querylect.rollouts.tree import Node, Tree
from querylect.train.ahead import TreesAhead
from querylect.train.arguments import check_settings
from querylect.train.credit import assign_credit
from querylect.train.distributed.processes import Processes
from querylect.train.in_flight import VersionedEngine, staleness_metrics
from querylect.train.packing.packing import packed_logps
from querylect.train.questions import prepare_data
from querylect.train.rows import question_streams, row_advantages, row_mask, row_turns
from querylect.train.run import train
from querylect.train.run_folder import RunFolder
from querylect.train.watch import describe
from safetensors.torch import load_file
from torch.nn.utils.rnn import pad_sequence
from transformers import set_seed

from ..growers import engine_around, engine_of, grower_of
from ..lessons import change, lesson_settings, records, stopped_copy, without_seconds
from ..raising import logged, refused
from ..several import side_by_side, wait_until
from ..vllm_doubles import serving
from .test_train_stops import breaking
from .test_train_validation import ASKED as VALIDATION
from .test_train_validation import environment

SOON = {"train.steps": 5, "train.save_steps": 1, "train.keep_checkpoints": 9, "train.log_rollouts": 9}


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
    sampled = {step: [*map(without_versions, trees)] for step, trees in logged.items()}
    assert sampled[1] == in_order[1]
    assert any(sampled[step] != in_order[step] for step in (2, 3, 4, 5)), "older weights sample something else"
    with open_environment(config.env, config.client) as client:
        for step, trees in logged.items():
            assert [tree["question_id"] for tree in trees] == [tree["question_id"] for tree in in_order[step]]
            checkpoint = folder / "checkpoints" / f"checkpoint-{step - 2}" if step > 2 else None
            assert sampled_again(config, client, engine_of(config, checkpoint), step, trees) == sampled[step]
            assert all(node["versions"] == [max(0, step - 2)] * 2 for tree in trees for node in turns_of(tree, 2))
    assert max(abs(line["sampling/importance_sampling_ratio/mean"] - 1) for line in metrics[1:]) > 1e-4
    assert metrics[0]["sampling/importance_sampling_ratio/mean"] == pytest.approx(1, abs=1e-5)
    assert all(line["seconds/wait"] >= 0 and line["seconds/update"] > 0 for line in metrics)


@pytest.mark.parametrize("lora", [{"r": 4, "alpha": 8}, None])
def test_staleness_0_is_a_synchronous_loop_bit_for_bit(settings, lora):
    """Sample with the newest weights, then update them: without a trainer, a thread or a second engine, with the update
    written down once more. Every sample and every weight after every step is equal."""
    config = change(settings, **{**SOON, "policy.lora": lora, "train.steps": 4})
    folder = train(config)
    set_seed(config.seed)
    model, tokenizer = load_policy(config.policy)
    model = add_lora(model, config.policy).train()
    engine, weights = engine_around(config, model, tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.train.learning_rate, weight_decay=0.0)
    with open_environment(config.env, config.client) as client:
        for step, logged_trees in by_step(folder).items():
            weights.refresh()
            trees = grow_again(config, client, engine, step, logged_trees)
            assert [{"step": step, **describe(tree)} for tree in trees] == logged_trees
            credit = assign_credit(trees, config.train.credit, config.reward.turn_weights, config.train.scale)
            tokens = sum(len(node.completion_ids) for node in row_turns(trees))
            for tree in trees:
                policy_loss(model, tree, credit, tokens).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.train.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            name = "adapter_model.safetensors" if lora else "model.safetensors"
            saved = load_file(folder / "checkpoints" / f"checkpoint-{step}" / name)
            trained = {key.replace(".default", ""): value for key, value in model.state_dict().items()}
            assert saved
            assert all(torch.equal(trained[key], value) for key, value in saved.items()), step
    assert any(line["grad_norm"] > 0 for line in records(folder / "metrics.jsonl"))


def policy_loss(model, tree, credit, tokens):
    """The loss of a tree: the policy gradient of its turns, path by path, over the `tokens` of its step."""
    turns = [*row_turns([tree])]
    prompts, completions, sampled = (
        pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=-1)
        for rows in zip(*((node.prompt_ids, node.completion_ids, node.logprobs) for node in turns), strict=True)
    )
    ids, mask = torch.cat([prompts, completions], 1), (completions >= 0) & row_mask([tree], credit).bool()[:, None]
    logps, _, _ = packed_logps(model, ids, ids >= 0, mask, 1.0)
    corrections = (logps.detach() - sampled).exp().clamp(max=3.0)
    ratios = (logps - logps.detach()).exp()
    return (-ratios * row_advantages([tree], credit)[:, None] * corrections * mask).sum() / tokens


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
    return grower_of(config, client, engine).grow(questions, config.rollout.branching, streams=streams)


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
    assert logged(caplog, "train.ahead") == [(3,)]
    assert [line["step"] for line in records(folder / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    assert [line["sampling/staleness"] for line in records(folder / "metrics.jsonl")] == [0, 1, 0, 1, 1]


@pytest.mark.parametrize(("top_p", "signal"), [(1.0, True), (1e-6, False)])
def test_older_trees_than_allowed_are_never_trained_on(settings, tmp_path, top_p, signal):
    """Also after a resumption, and where all answers to a state are equal, so that no step has a signal."""
    config = change(settings, **{**SOON, "train.staleness": 3, "train.steps": 6, "rollout.top_p": top_p})
    config, folder = stopped_copy(config, train(config), tmp_path / "copy", 3)
    train(config, resume=True)
    metrics = records(folder / "metrics.jsonl")
    assert any(line["grad_norm"] > 0 for line in metrics) == signal
    staleness = [line["sampling/staleness"] for line in metrics]
    assert staleness[0] == staleness[3] == 0, "the first step, and the first after the resumption"
    assert all(1 <= value <= 3 for value in (*staleness[1:3], *staleness[4:]))
    assert len(records(folder / "rollouts.jsonl")) == 12


def turns_of(tree, turn):
    """The logged turns of a tree with this number."""
    nodes = list(tree["turns"])
    for _ in range(turn - 1):
        nodes = [child for node in nodes for child in node["children"]]
    return nodes


def without_versions(tree):
    """A logged tree as its samples alone make it."""

    def plain(node):
        left = {key: value for key, value in node.items() if key != "versions"}
        return {**left, "children": [plain(child) for child in node["children"]]}

    return {**tree, "turns": [plain(node) for node in tree["turns"]]}


class ByTurn:
    """An engine for each turn of a tree."""

    def __init__(self, *engines):
        self.tokenizer, self.stop_ids = engines[0].tokenizer, engines[0].stop_ids
        self.engines = iter(engines)

    def generate(self, prompts, n, sampling):
        return next(self.engines).generate(prompts, n, sampling)


def test_every_turn_has_the_samples_of_the_weights_that_its_version_names(settings, monkeypatch):
    """The second turns of a step wait for the update before it; each is sampled again from the checkpoints. All weights
    are trained."""
    generate, send, calls = VersionedEngine.generate, TreesAhead._send_in_flight, []

    def wait_for_update(self, prompts, n, sampling):
        step, second = divmod(len(calls), 2)
        calls.append(step)
        if second:
            wait_until(lambda: self.version == step)
        return generate(self, prompts, n, sampling)

    def wait_for_second_turns(self, step):
        wait_until(lambda: len(calls) == 2 * step + 2)
        send(self, step)

    monkeypatch.setattr(VersionedEngine, "generate", wait_for_update)
    monkeypatch.setattr(TreesAhead, "_send_in_flight", wait_for_second_turns)
    all_weights = {"policy.lora": None, "train.learning_rate": 1e-3, "train.steps": 4}
    config = change(settings, **{**SOON, **all_weights}, **{"train.staleness": 1, "train.in_flight_updates": True})
    folder = train(config)
    metrics = records(folder / "metrics.jsonl")
    assert [line["sampling/staleness"] for line in metrics] == [0, 1, 1, 1]
    assert [line["sampling/staleness_min"] for line in metrics] == [0] * 4
    assert all(0 < line["sampling/staleness_mean"] < 1 for line in metrics[1:])
    assert max(abs(line["sampling/importance_sampling_ratio/mean"] - 1) for line in metrics[1:]) > 1e-4
    engines = [engine_of(config, folder / "checkpoints" / f"checkpoint-{v}" if v else None) for v in range(4)]
    with open_environment(config.env, config.client) as client:
        for step, trees in by_step(folder).items():
            older, newer = max(0, step - 2), step - 1
            for turn, version in ((1, older), (2, newer)):
                assert all(node["versions"] == [version] * 2 for tree in trees for node in turns_of(tree, turn))
            engine = ByTurn(engines[older], engines[newer])
            assert sampled_again(config, client, engine, step, trees) == [*map(without_versions, trees)]


def test_a_vllm_server_takes_weights_while_it_answers(settings, vllm, run_app, monkeypatch, speaking):
    """First turns of the second step end only when the weights after the first have arrived."""
    with serving(run_app, monkeypatch, speaking) as (url, server):
        draw, send = server.answers.draw, TreesAhead._send_in_flight
        drawn = []

        def draw_later(*arguments):
            drawn.append(arguments)
            if len(drawn) > 12:  # of two questions' 2 + 4 turns
                wait_until(lambda: server.events.count("resume") == 2)
            return draw(*arguments)

        def send_later(self, step):
            wait_until(lambda: len(drawn) == 12 + 4)
            send(self, step)

        server.answers.draw = draw_later
        monkeypatch.setattr(TreesAhead, "_send_in_flight", send_later)
        server_settings = {"rollout.engine": "vllm_server", "rollout.server.base_url": url, "train.steps": 2}
        folder = train(change(settings, **server_settings, **{"train.staleness": 1, "train.in_flight_updates": True}))
    metrics = records(folder / "metrics.jsonl")
    assert [line["sampling/staleness_min"] for line in metrics] == [0, 0]
    assert [line["sampling/staleness"] for line in metrics] == [0, 1]
    for tree in records(folder / "rollouts.jsonl")[2:]:
        assert [node["versions"] for node in turns_of(tree, 1)] == [[0, 1]] * 2
        assert [node["versions"] for node in turns_of(tree, 2)] == [[1, 1]] * 4
    update = ["pause keep", "start", "update", "finish", "reset", "resume"]
    assert server.events == ["init", *update, *update]


def test_what_knows_later_questions_or_weights_is_refused(settings):
    for name, value in (("num_iterations", 2), ("resample_rounds", 1), ("importance_sampling_correction", False)):
        with pytest.raises(ValidationError, match=f"train.{name} {value}"):
            change(settings, **{"train.staleness": 1, f"train.{name}": value})
    with pytest.raises(ValidationError, match=r"train\.in_flight_updates"):
        change(settings, **{"train.in_flight_updates": True})
    with refused(ConfigError, "train.staleness"):
        check_settings(change(settings, **{"train.staleness": 1, "train.curriculum.prefer": "hard"}), 1)
    with refused(ConfigError, "vllm_server", "train.staleness"):
        check_settings(change(settings, **{"train.staleness": 1, "rollout.engine": "vllm"}), 1)


def test_only_a_rewriter_with_a_first_stage_is_refused(settings, lessons):
    """An offer to stop wraps a rewriter, and has a first stage only where the rewriter has one."""
    ahead = change(settings, **{"train.staleness": 1, "rewriter.stop": True})
    client = InProcessClient(lessons)
    assert prepare_data(ahead, Processes(), client).questions == client.questions("train")
    for stop in (False, True):
        staged = change(ahead, **{"rewriter.name": "hcqr", "rewriter.stop": stop})
        with refused(ConfigError, "hcqr"):
            prepare_data(staged, Processes(), client)


def test_sampling_ahead_with_stops_and_prices(settings):
    """The first step has the trees of a run that samples nothing ahead, with as many searches."""
    config = change(settings, **{"rewriter.stop": True, "reward.search_price": 0.1, "train.steps": 2})
    synchronous, ahead = (
        records(train(change(config, name=name, **{"train.staleness": k})) / "metrics.jsonl")
        for name, k in (("sync", 0), ("ahead", 1))
    )
    assert ahead[0]["searches_per_path"] == synchronous[0]["searches_per_path"]
    assert ahead[0]["searches"] == synchronous[0]["searches"] > 0
    assert [line["sampling/staleness"] for line in ahead] == [0, 1]


class Scripted:
    """An engine and its weights, and trees of two turns that it samples; `generate` takes as long as it is set to."""

    def __init__(self, seconds=0.0, failing=None):
        self.refreshed, self.calls, self.seconds, self.failing = 0, [], seconds, failing
        self.tokenizer, self.stop_ids, self.clock, self.searched = None, {0}, None, None
        self.generating = threading.Event()
        self.engine = self
        """That of the grower, which this is too."""

    def refresh(self):
        assert not self.generating.is_set(), "the weights change while they are sampled from"
        self.refreshed += 1

    def sleep(self):
        pass

    def generate(self, prompts, n, sampling):
        self.generating.set()
        self.calls.append(self.refreshed)
        time.sleep(self.seconds)
        self.generating.clear()
        return [[Completion([0], [0.0], True)] for _ in prompts]

    def grow(self, grower, step):
        if step == self.failing:
            raise ModelError("not finite")
        trees = [Tree(Question(f"q{step}-{position}", ""), []) for position in range(2)]
        for turn in (1, 2):
            for tree, (sample,) in zip(trees, grower.engine.generate([[turn]] * len(trees), 1, None), strict=True):
                node = Node(turn, [turn], sample.ids, [], True, "", Rewrite(None), versions=sample.versions)
                (tree.roots[0].children if turn == 2 else tree.roots).append(node)
        return trees


def versions_of(sampled):
    """(oldest, newest) of each turn of the first tree."""
    return [node.versions for node in sampled.trees[0].walk()]


@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("staleness", [1, 2, 4])
@pytest.mark.parametrize("seconds", [0.0, 0.02])
def test_weights_never_change_while_they_are_sampled_from(staleness, seconds, in_flight):
    engine = Scripted(seconds)
    ahead = TreesAhead(staleness, 12, engine, engine, engine.grow, Processes(), in_flight)
    for step in range(12):
        sampled = ahead.take(step)
        assert [tree.question.id for tree in sampled.trees] == [f"q{step}-0", f"q{step}-1"]
        first, second = versions_of(sampled)
        assert step - staleness <= first[0] == first[1] <= second[0] == second[1] <= step
        assert first == second or in_flight
        if step % 3 == 2:  # a validation
            ahead.refresh()
            assert not engine.generating.is_set()
            assert ahead._engine.version == step + 1, "what is sampled before the next step is taken has these weights"
            ahead.sleep()
    ahead.close()
    assert ahead._next == 12, "nothing is sampled beyond the last step"
    assert len(engine.calls) == 24, "nothing is sampled twice"
    assert engine.refreshed <= 13, "no weights are sent twice"


def test_later_turns_of_a_tree_have_the_weights_that_arrived_while_it_grew():
    engine = Scripted()
    ahead = TreesAhead(1, 9, engine, engine, engine.grow, Processes(), in_flight=True)
    generate = engine.generate

    def until_held(prompts, n, sampling):
        """The first call of a later step ends when the weights of that step wait for it."""
        if len(engine.calls) > 1 and len(engine.calls) % 2 == 0:
            wait_until(lambda: ahead._engine.paused)
        return generate(prompts, n, sampling)

    engine.generate = until_held
    assert versions_of(ahead.take(0)) == [(0, 0), (0, 0)]
    for step in range(1, 9):
        wait_until(lambda: ahead._engine.sampling)
        assert versions_of(ahead.take(step)) == [(step - 1, step - 1), (step, step)]
    assert engine.refreshed == 9
    ahead.close()


def test_no_step_begins_with_weights_that_would_be_too_old():
    """Those of step 1 are not sent, because the second step is sampled; then the third waits for those of step 2."""
    engine, ended = Scripted(), threading.Event()
    ahead = TreesAhead(2, 5, engine, engine, engine.grow, Processes(), in_flight=True)
    generate = engine.generate

    def until_trained(prompts, n, sampling):
        if len(engine.calls) == 4:
            ended.wait()
        return generate(prompts, n, sampling)

    engine.generate = until_trained
    ahead.take(0)
    wait_until(lambda: 1 in ahead._ready and len(engine.calls) == 4 and ahead._engine.sampling)
    ahead.take(1)
    assert engine.refreshed == 1, "the weights are not sent while a call runs and the trees are there"
    ended.set()
    wait_until(lambda: 2 in ahead._ready)
    assert not ahead._may_sample()
    assert versions_of(ahead.take(2)) == [(0, 0), (0, 0)]
    wait_until(lambda: 4 in ahead._ready)
    assert versions_of(ahead.take(3)) == versions_of(ahead.take(4)) == [(2, 2), (2, 2)]
    ahead.close()
    assert len(engine.calls) == 10, "nothing is sampled twice"


def test_a_tree_that_is_too_old_is_an_error():
    """The weights after the first update never arrive, and the thread does not wait for them."""
    engine = Scripted()
    ahead = TreesAhead(1, 9, engine, engine, engine.grow, Processes())
    ahead._may_sample = lambda: ahead._closed or ahead._next <= ahead._last
    ahead.take(0)
    ahead._send = lambda step: None
    assert versions_of(ahead.take(1)) == [(0, 0), (0, 0)]
    with pytest.raises(RuntimeError, match="step 3 is 2 updates old"):
        ahead.take(2)
    ahead.close()


def test_no_step_begins_between_the_check_that_none_is_sampled_and_the_new_weights():
    engine, begins = Scripted(), []
    ahead = TreesAhead(2, 9, engine, engine, engine.grow, Processes())
    may_sample, refresh = ahead._may_sample, engine.refresh

    def note_and_refresh():
        if ahead._next is not None:
            begins.append(may_sample())
        refresh()

    engine.refresh = note_and_refresh
    ahead._may_sample = lambda: ahead._next != 2 and may_sample()  # the thread has ended step 1, and not begun step 2
    ahead.take(0)
    wait_until(lambda: 1 in ahead._ready)
    begins.clear()
    ahead.take(1)
    assert may_sample(), "once the weights are there"
    ahead._may_sample = may_sample
    ahead.close()
    assert begins == [False]


def test_weights_are_sent_in_flight_by_all_processes_together():
    """While each process is between two calls of its engine."""

    def run(processes):
        engine = Scripted(0.002 * processes.rank)
        ahead = TreesAhead(2, 12, engine, engine, engine.grow, processes, in_flight=True)
        for step in range(12):
            assert step - versions_of(ahead.take(step))[0][0] <= 2
        ahead.close()
        return engine.refreshed

    first, second = side_by_side(2, run)
    assert first == second
    assert isinstance(first, int), first


def test_the_staleness_of_a_step_counts_tokens():
    def node(turn, versions, length, children=()):
        return Node(turn, [1], [0] * length, [], True, "", Rewrite(None), children=list(children), versions=versions)

    tree = Tree(Question("q", ""), [node(1, (3, 3), 4, [node(2, (4, 5), 12)])])
    assert staleness_metrics([tree], 5) == {
        "sampling/staleness": 2, "sampling/staleness_mean": (2 * 4 + 1 * 12) / 16, "sampling/staleness_min": 0,
    }  # fmt: skip


class Requests:
    """A streaming engine whose samples the test ends."""

    def __init__(self):
        self.tokenizer, self.stop_ids, self.futures = None, {0}, []

    def submit(self, prompt, n, sampling):
        self.futures += (futures := [Future() for _ in range(n)])
        return futures


def test_samples_under_way_note_the_weights_that_arrive():
    requests = Requests()
    engine = VersionedEngine(requests, threading.Condition())
    engine.version = engine.arriving = 3
    before, during, cancelled, failed = engine.submit([1], 4, None)
    requests.futures[0].set_result(Completion([0], [0.0], True))
    engine.arriving = 4
    requests.futures[1].set_result(Completion([0], [0.0], True))
    requests.futures[2].cancel()
    requests.futures[3].set_exception(ModelError("not finite"))
    assert (before.result().versions, during.result().versions) == ((3, 3), (3, 4))
    assert cancelled.cancelled()
    with pytest.raises(ModelError):
        failed.result()


def test_an_error_of_the_thread_is_raised_where_its_trees_are_needed():
    engine = Scripted(failing=3)
    ahead = TreesAhead(1, 9, engine, engine, engine.grow, Processes())
    for step in range(3):
        ahead.take(step)
    with pytest.raises(ModelError):
        ahead.take(3)
    ahead.close()


def test_a_step_that_is_sampled_when_the_run_ends_is_given_up():
    """A process that ends while a thread of it computes in PyTorch is aborted, so that its exit code is not 75."""
    sampling, engine = threading.Event(), Scripted()

    def grow(grower, step):
        if step == 0:
            return engine.grow(grower, step)
        sampling.set()
        while True:
            time.sleep(0.001)

    ahead = TreesAhead(1, 9, engine, engine, grow, Processes())
    ahead.take(0)
    assert sampling.wait(30)
    ahead.close()
    assert not ahead._thread.is_alive()


def test_an_outage_ends_the_run_with_a_checkpoint_and_it_goes_on(settings, lessons, run_app):
    steps = {"train.staleness": 1, "train.steps": 3, "train.save_steps": 1}
    config = change(settings, **steps, **{"client.deadline": 2.0})
    dying = breaking(create_app(Environment.open(lessons)), after=3)
    with run_app(dying) as url, refused(EnvironmentUnavailableError, "--resume"):
        train(change(config, **{"client.urls": [url]}))
    folder = RunFolder(train(config, resume=True))
    assert [line["step"] for line in records(folder.metrics)] == [1, 2, 3]


def test_a_signal_ends_a_run_that_waits_for_its_trees(settings, monkeypatch):
    """The thread is in the middle of a rollout, and the main thread waits for it."""
    grow, main = Grower.grow, threading.main_thread()

    def slow(self, *arguments, **options):
        if threading.current_thread() is not main and len(calls) >= 2:
            threading.Timer(0.2, lambda: signal.pthread_kill(main.ident, signal.SIGTERM)).start()
            time.sleep(1)
        calls.append(1)
        return grow(self, *arguments, **options)

    calls = []
    monkeypatch.setattr(Grower, "grow", slow)
    config = change(settings, **{"train.staleness": 1, "train.grace_seconds": 0.1, "train.steps": 3})
    started = time.monotonic()
    with refused(StoppedError, "SIGTERM"):
        train(config)
    assert time.monotonic() - started < 60
    monkeypatch.setattr(Grower, "grow", grow)
    folder = train(config, resume=True)
    assert [line["step"] for line in records(folder / "metrics.jsonl")] == [1, 2, 3]
