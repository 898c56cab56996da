"""Trees that are searched while they are sampled: those of the loop turn by turn, without a barrier between turns."""

import threading
from concurrent.futures import Future
from random import Random

import pytest
from querylect.configs.schema import RewardConfig, RewriterConfig, RolloutConfig, RunConfig
from querylect.data.types import Question
from querylect.errors import EnvironmentUnavailableError
from querylect.rewriters.forms import render
from querylect.rewriters.registry import make_rewriter
from querylect.rewriters.retriever_info import RetrieverInfo
from querylect.rollouts.engines.base import Completion, stream
from querylect.rollouts.tree_sampler import SEARCHES_AT_ONCE, PolicyConversation, StreamingTreeSampler, TreeSampler

from ..lessons import change
from ..tiny import tiny_tokenizer
from ..tree_samplers import engine_of, tree_sampler_of
from ..vllm_doubles import serving

pytestmark = [pytest.mark.model, pytest.mark.slow]

QUESTIONS = [
    Question("q-head", "what helps when my head hurts"),
    Question("q-sugar", "too much sugar in the blood"),
    Question("q-gums", "bleeding gums"),
]
STREAMS = [stream("here", number) for number in range(3)]
WORDS = ["headache", "migraine", "sugar", "insulin", "aspirin", "citrus"]


class Uneven:
    """A streaming engine whose answers are functions of their streams, and whose requests take 1 to 40 rounds."""

    def __init__(self, formatted=0.6):
        self.tokenizer, self.formatted = tiny_tokenizer(), formatted
        self.stop_ids = {self.tokenizer.eos_token_id}
        self.under_way, self.rounds, self.events = [], 0, []

    def _sample(self, stream, number):
        draw = Random(f"{stream} {number}")
        text = render("", [" ".join(draw.choices(WORDS, k=2))]) if draw.random() < self.formatted else "no format"
        ids = [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]
        return Completion(ids, [-0.5] * len(ids), True), draw.randint(1, 40)

    def generate(self, prompts, n, sampling):
        return [[self._sample(stream, number)[0] for number in range(n)] for stream in sampling.streams]

    def submit(self, prompt, n, sampling):
        futures = []
        for number in range(n):
            completion, rounds = self._sample(sampling.streams[0], number)
            futures.append(Future())
            self.under_way.append((self.rounds + rounds, futures[-1], completion))
        self.events += ["asked"] * n
        return futures

    def advance(self):
        self.rounds += 1
        under_way, self.under_way = self.under_way, []
        for due, future, completion in under_way:
            if due > self.rounds:
                self.under_way.append((due, future, completion))
            else:
                self.events.append("ended")
                future.set_result(completion)
        return True

    def cancel(self):
        self.under_way = []


class Searched:
    """A client that records its batches, and can be set to fail or to answer nothing."""

    def __init__(self, client, engine=None, fails=False, out=()):
        self.client, self.engine, self.fails, self.out, self.batches = client, engine, fails, out, []

    def step(self, steps, **options):
        self.batches.append(len(steps))
        if self.engine:
            self.engine.events.append("searched")
        if self.fails:
            raise EnvironmentUnavailableError("the service has gone")
        results = self.client.step(steps, **options)
        return [None if step.question_id in self.out else result for step, result in zip(steps, results, strict=True)]


def tree_sampler(kind, engine, client, **changes):
    retriever = RetrieverInfo("bm25", "bm25")
    rollout = RolloutConfig(**{"max_prompt_tokens": 4096, **changes})
    rewriter = make_rewriter(RewriterConfig(name="general"), retriever)
    return kind(PolicyConversation(engine, rewriter, rollout), client, RewardConfig())


@pytest.mark.parametrize("branching", [[4, 4], [2, 3, 2], [5]])
def test_the_trees_are_those_of_the_loop_turn_by_turn(client, branching):
    expected = tree_sampler(TreeSampler, Uneven(), client).grow(QUESTIONS, branching, streams=STREAMS)
    grown = tree_sampler(StreamingTreeSampler, Uneven(), client)
    assert grown.grow(QUESTIONS, branching, streams=STREAMS) == expected
    assert {node.rewrite.plan is None for tree in expected for node in tree.walk()} == {True, False}
    assert len({node.reward for tree in expected for node in tree.walk()}) > 1


def test_nothing_waits_for_the_longest_answer_of_a_turn(client):
    """The first search begins and a second turn is asked for before the last first turn has ended."""
    engine = Uneven()
    searched = Searched(client, engine)
    tree_sampler(StreamingTreeSampler, engine, searched).grow(QUESTIONS, [4, 4], streams=STREAMS)
    ends = [at for at, event in enumerate(engine.events) if event == "ended"]
    assert engine.events.index("searched") < ends[11]
    requested = [at for at, event in enumerate(engine.events) if event == "asked"]
    assert requested[12] < max(ends[:-40])
    assert sum(searched.batches) <= 60
    assert len(searched.batches) > 2


def test_turns_that_end_while_all_requests_are_under_way_are_searched_together(client):
    """What ends meanwhile waits for a request, so a slow service gets large batches."""
    engine, released = Uneven(formatted=1.0), threading.Event()
    searched, advance = Searched(client), engine.advance

    def step(steps, inner=searched.step, **options):
        assert released.wait(60), "sampling goes on while searches run"
        return inner(steps, **options)

    def advance_and_release():
        computed = advance()
        if not engine.under_way:
            released.set()
        return computed

    searched.step, engine.advance = step, advance_and_release
    tree_sampler(StreamingTreeSampler, engine, searched).grow(QUESTIONS, [12], streams=STREAMS)
    assert len(searched.batches) == SEARCHES_AT_ONCE + 1


def test_a_failed_search_is_not_scored_and_ends_its_path(client):
    grown = tree_sampler(StreamingTreeSampler, Uneven(), Searched(client, out={"q-sugar"}), micro_batch=4)
    trees = grown.grow(QUESTIONS, [6, 2], streams=STREAMS)
    outage = [node for node in trees[1].walk() if node.rewrite.plan is not None and node.turn == 1]
    assert {(node.reward, len(node.children)) for node in outage} == {(None, 0)}
    assert all(node.reward is not None for tree in (trees[0], trees[2]) for node in tree.walk())


def test_a_search_that_fails_ends_the_growth(client):
    engine = Uneven()
    with pytest.raises(EnvironmentUnavailableError):
        tree_sampler(StreamingTreeSampler, engine, Searched(client, fails=True), micro_batch=4).grow(
            QUESTIONS, [4, 4], streams=STREAMS
        )
    assert not engine.under_way, "nothing is sampled any more"


@pytest.mark.parametrize("name", ["vllm", "vllm_server"])
def test_each_vllm_engine_gives_one_by_one_what_it_gives_at_once(
    name, client, vllm, run_app, monkeypatch, tiny_policy, tmp_path
):
    config = RunConfig.model_validate(
        {
            "policy": {"model": str(tiny_policy), "dtype": "float32", "lora": None},
            "rollout": {"max_new_tokens": 6, "max_prompt_tokens": 4096, "engine": name, "micro_batch": 8},
            "rewriter": {"name": "general"},
        }
    )
    with serving(run_app, monkeypatch, tiny_policy) as (url, _):
        config = change(config, **{"rollout.server.base_url": url, "rollout.server.weights_folder": str(tmp_path)})
        engine = engine_of(config)
        streaming = tree_sampler_of(config, client, engine)
        assert type(streaming) is StreamingTreeSampler
        turn_by_turn = TreeSampler(streaming.conversation, client, config.reward)
        for greedy in (False, True):
            expected = turn_by_turn.grow(QUESTIONS[:2], [2, 2], greedy, STREAMS[:2])
            assert streaming.grow(QUESTIONS[:2], [2, 2], greedy, STREAMS[:2]) == expected
