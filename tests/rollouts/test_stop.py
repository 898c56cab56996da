"""Turns that stop, in a real environment: their ranking and cost in trees, records, later turns and training."""

from statistics import fmean as mean

import pytest
from querylect.configs.schema import RewardConfig, RewriterConfig, RolloutConfig
from querylect.data.types import Question
from querylect.errors import EnvironmentUnavailableError
from querylect.eval.records import records_of_trees
from querylect.rewriters.registry import make_rewriter
from querylect.rewriters.retriever_info import RetrieverInfo
from querylect.rollouts.chat import Chat
from querylect.rollouts.tree_sampler import PolicyConversation, StreamingTreeSampler, TreeSampler
from querylect.train.credit import assign_credit
from querylect.train.metrics import step_metrics
from querylect.train.run import train
from querylect.train.step_trees import refuse_outage
from querylect.train.turns import turns_of
from querylect.train.validation import net_values, validation_metrics

from ..lessons import ASKED, CLOSE, OPEN, change, records, save_chain
from ..raising import refused
from ..train.test_answers_reward import Parrot, reader, reader_url, run, scored, unjudged, unjudged_url  # noqa: F401
from .test_grow import HEAD, SUGAR, Script, say
from .test_streaming import QUESTIONS, STREAMS, Searched, Uneven

pytestmark = pytest.mark.model

STOP = "<think></think><stop/>"
METRICS = ["ndcg@10"]
SWEET = Question("sugar", ASKED["sugar"][0])
"""A question of `scored`."""


def tree_sampler(client, engine, kind=TreeSampler, price=0.25, stop=True, reward=None, **changes):
    rewriter = make_rewriter(RewriterConfig(name="general", stop=stop), RetrieverInfo("bm25", "bm25"))
    rollout = RolloutConfig(max_prompt_tokens=4096, **changes)
    rewards = RewardConfig.model_validate({"search_price": price, **(reward or {})})
    return kind(PolicyConversation(engine, rewriter, rollout), client, rewards)


def chat_of(engine):
    return Chat(engine.tokenizer, {engine.tokenizer.eos_token_id})


def test_a_stop_keeps_the_ranking_before_it_and_costs_no_search(client):
    searched = Searched(client)
    engine = Script(say("headache"), say("sugar"), STOP, say("aspirin"), STOP, STOP)
    (tree,) = tree_sampler(searched, engine).grow([HEAD], [2, 2])
    first, second = tree.roots
    stop, search = first.children
    assert (stop.ranking, stop.metrics, stop.reward) == (first.ranking, first.metrics, first.reward)
    assert stop.reward > 0.1
    assert (stop.rewrite.plan, stop.rewrite.rewrites, stop.rewrite.stop) == (first.rewrite.plan, (), True)
    assert (stop.searched, search.searched, stop.cost, search.cost, first.cost) == (False, True, 0.0, 0.25, 0.25)
    assert [child.reward for child in second.children] == [second.reward] * 2
    assert searched.batches == [2, 1]
    assert tree.searches == 3


def test_a_stop_in_turn_1_searches_the_question_and_ends_the_path(client):
    engine = Script(STOP, say("headache"), say("migraine"), say("aspirin"))
    (tree,) = tree_sampler(client, engine).grow([HEAD], [2, 2])
    stop, searched = tree.roots
    (raw,) = client.search([stop.rewrite.plan])
    assert stop.rewrite.plan.texts == [HEAD.text]
    assert [hit.id for hit in stop.ranking] == [hit.id for hit in raw.ranking]
    assert (stop.children, stop.cost, len(searched.children)) == ([], 0.25, 2)
    assert [len(path) for path in tree.paths()] == [1, 1, 2, 2]
    assert len(engine.calls[1][0]) == 1, "only the path that goes on is sampled"


@pytest.mark.parametrize(("gain", "rewards"), [(True, [1.0, 0.5, 0.5]), (False, [1.0, 0.0, 0.0])])
def test_a_stop_before_any_search_has_the_readers_reward_and_no_price(lessons, tmp_path, gain, rewards):
    """The reader knows citrus by heart; the raw question and the rewrite find insulin. A later stop keeps that."""
    parrot = Parrot(closed_book="citrus")
    answering = scored(lessons, tmp_path, parrot, gain=gain)
    reward = {"kind": "answer", "answer": {"gain": gain}, "format_weight": 0}
    engine = Script(STOP, say("insulin"), STOP)
    question = Question("fat", ASKED["fat"][0])
    (tree,) = tree_sampler(answering, engine, stop="answer", reward=reward).grow([question], [2, 1])
    stop, search = tree.roots
    (later_stop,) = search.children
    assert [node.reward for node in (stop, search, later_stop)] == rewards
    assert (stop.rewrite.unsearched, stop.searched, stop.ranking, stop.children) == (True, False, [], [])
    assert (stop.cost, search.cost, later_stop.cost) == (0.0, 0.25, 0.0)
    assert (later_stop.reused, later_stop.metrics, later_stop.rewrite.unsearched) == (True, search.metrics, False)
    assert stop.metrics["ndcg@10"] == 0
    assert tree.searches == 1
    assert sum("Answer the question below.\n" in prompt for prompt in parrot.prompts) == 1
    turns = turns_of([tree], [0.5, 1.0])
    figures = step_metrics(turns, assign_credit(turns, "turn", "none"))
    assert [figures[name] for name in ("searches_per_path", "stopped/turn1", "format/turn1")] == [0.5, 0.5, 1.0]
    net = net_values(turns, "answer_reward")
    assert net["net/turn1"] == pytest.approx((rewards[0] + rewards[1] - 0.25) / 2)


def test_an_outage_of_either_side_is_no_reward_of_a_stop(lessons, tmp_path):
    """What the reader knows is not lost with the environment, but a step whose searches all failed is an outage.
    Without the raw question's answer a gain is unknown."""
    reward = {"kind": "answer", "answer": {"gain": False}, "format_weight": 0}

    def refuse(trees, client):
        turns = turns_of(trees, [0.5, 1.0])
        refuse_outage(turns, client, False, "no rollout")

    def trees_of(client, *texts):
        return tree_sampler(client, Script(*texts), stop="answer", reward=reward).grow([SWEET], [len(texts)])

    answering = scored(lessons, tmp_path, Parrot(closed_book="citrus"), gain=False)
    answering.environment_client = Searched(answering.environment_client, out=["sugar"])
    (tree,) = trees_of(answering, STOP, say("insulin"))
    assert [node.reward for node in tree.roots] == [1.0, None]
    with refused(EnvironmentUnavailableError):
        refuse([tree], answering)
    silent = scored(lessons, tmp_path, Parrot(unanswered="Answer the question below.\n"), gain=False)
    (tree,) = trees_of(silent, STOP, STOP)
    assert [node.reward for node in tree.roots] == [None, None]
    with refused(EnvironmentUnavailableError, "reader"):
        refuse([tree], silent)
    (tree,) = trees_of(silent, STOP, say("insulin"))
    assert [node.reward for node in tree.roots] == [None, 0.0]
    refuse([tree], silent)
    gaining = scored(lessons, tmp_path, Parrot(closed_book="citrus"))
    gaining.environment_client = Searched(gaining.environment_client, out=["sugar"])
    (tree,) = trees_of(gaining, STOP)
    assert tree.roots[0].reward is None


class Hesitant(Uneven):
    """Answers half of its requests with a stop."""

    def _sample(self, stream, number):
        completion, rounds = super()._sample(stream, number)
        if rounds % 2:
            ids = [*self.tokenizer(STOP, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]
            completion = type(completion)(ids, [-0.5] * len(ids), True)
        return completion, rounds


@pytest.mark.parametrize("stop", [True, "answer"])
def test_trees_that_are_searched_while_they_are_sampled_stop_alike(client, stop):
    def grown(kind, **changes):
        return tree_sampler(client, Hesitant(), kind, stop=stop, **changes).grow(QUESTIONS, [3, 2, 2], streams=STREAMS)

    expected = grown(TreeSampler)
    assert grown(StreamingTreeSampler) == expected
    nodes = [node for tree in expected for node in tree.walk()]
    assert {node.turn for node in nodes if node.rewrite.stop} == {1, 2, 3}
    assert any(node.rewrite.unsearched for node in nodes) == (stop == "answer")
    assert all(len(list(tree.paths())) == 12 for tree in expected)


def test_every_later_turn_of_an_evaluation_has_the_record_of_the_stop(client):
    """Turn 2 of three stops: its score, tokens and searches also stand in turn 3."""
    engine = Script(say("headache"), say("insulin"), STOP, say("sugar"), say("blood"))
    trees = tree_sampler(client, engine).grow([HEAD, SUGAR], [1, 1, 1], greedy=True)
    stopped, searching = (records_of_trees("p", [tree], METRICS) for tree in trees)
    assert [(record.turn, record.searches) for record in stopped] == [(1, 1), (2, 1), (3, 1)]
    assert [(record.turn, record.searches) for record in searching] == [(1, 1), (2, 2), (3, 3)]
    assert {record.ranking for record in stopped} == {stopped[0].ranking}
    assert stopped[1].tokens == stopped[2].tokens > stopped[0].tokens
    assert stopped[2].plan == stopped[0].plan
    measured = validation_metrics(turns_of(trees, [0.5, 1.0, 1.0]))
    scores = [[record.metrics["ndcg@10"] for record in path] for path in (stopped, searching)]
    for turn in (1, 2, 3):
        assert measured[f"ndcg/turn{turn}"] == pytest.approx(sum(path[turn - 1] for path in scores) / 2)


def test_the_value_of_a_turn_is_its_metric_less_the_price_of_its_searches(client):
    """One path stops in turn 2, one goes on, one writes no format in turn 2, and a first turn stops."""
    engine = Script(say("headache"), say("insulin"), say("insulin"), STOP, STOP, say("sugar"), "none")
    trees = tree_sampler(client, engine, price=0.25).grow([HEAD, SUGAR, SUGAR, HEAD], [1, 1], greedy=True)
    scores = [[node.metrics["ndcg@10"] for node in path] for tree in trees for path in tree.paths()]
    values = net_values(turns_of(trees, [0.5, 1.0]), "ndcg@10")
    assert values["net/turn1"] == pytest.approx(mean(path[0] for path in scores) - 0.25)
    assert values["net/turn2"] == pytest.approx(mean(path[-1] for path in scores) - 0.25 * mean((1, 2, 2, 1)))
    assert RewardConfig(search_price=0.25).objective == "net"
    assert RewardConfig().objective == "ndcg@10"


@pytest.fixture(scope="module")
def undecided(tmp_path_factory):
    """A policy that searches with one of four words or stops, each as often, in both turns."""
    answers = ("triptan", "insulin", "citrus", "statin", "<stop/>")
    links = [
        ("\n", (OPEN,), None),
        (OPEN, answers, None),
        *((word, (CLOSE,), None) for word in answers),
        (CLOSE, (), None),
    ]
    return save_chain(tmp_path_factory.mktemp("undecided") / "policy", [OPEN, CLOSE, *answers], links)


@pytest.mark.slow  # 25 seconds: two trainings
def test_a_policy_learns_to_stop_at_a_high_price_and_to_search_at_none(settings, undecided):
    """At a price of 1 a second search never pays. At 0 a first rewrite does: the raw questions find next to nothing."""
    stopped, searches = {}, {}
    for price in (0.0, 1.0):
        config = change(
            settings,
            **{
                "name": f"price-{price:g}",
                "policy.model": str(undecided),
                "rewriter.stop": True,
                "reward.search_price": price,
                "rollout.branching": [4, 4],
                "train.steps": 8,
                "train.questions_per_step": 4,
                "train.learning_rate": 0.005,
                "train.save_steps": 8,
            },
        )
        logged = records(train(config) / "metrics.jsonl")
        stopped[price] = [line.get("stopped/turn1", 0.0) for line in logged]
        searches[price] = [line.get("searches_per_path", 2.0) for line in logged]
    assert stopped[0.0][0] > 0.1 > mean(stopped[0.0][-3:])
    assert mean(searches[1.0][-3:]) < 1.2 < 1.8 < mean(searches[0.0][-3:])
