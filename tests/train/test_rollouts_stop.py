"""Turns that stop, in a real environment: what they keep and cost, in trees, records, later turns and a training."""

from statistics import fmean as mean

import pytest
from querylect.configs.schema import RewardConfig, RewriterConfig, RolloutConfig
from querylect.eval.records import records_of_trees
from querylect.rewriters.card import RetrieverCard
from querylect.rewriters.registry import make_rewriter
from querylect.rewriters.stop import FIRST, LATER
from querylect.rollouts.chat import Chat
from querylect.rollouts.grow import Grower
from querylect.rollouts.streaming import StreamingGrower, WaveGrower
from querylect.train.credit import assign_credit
from querylect.train.metrics import step_metrics
from querylect.train.mix import refuse_outage
from querylect.train.run import train
from querylect.train.validation import net_values, validation_metrics

from ..lessons import CLOSE, OPEN, change, lesson_url, lessons, records, save_chain, settings, speaking  # noqa: F401
from .test_answers_reward import Parrot, scored
from .test_rollouts_grow import HEAD, SUGAR, Script, say
from .test_rollouts_streaming import QUESTIONS, STREAMS, Searched, Uneven

STOP = "<think></think><stop/>"
METRICS = ["ndcg@10"]


def grower(client, engine, kind=Grower, price=0.25, **changes):
    rewriter = make_rewriter(RewriterConfig(name="general", stop=True), RetrieverCard("bm25", "bm25"))
    rollout = RolloutConfig(max_prompt_tokens=4096, **changes)
    return kind(engine, rewriter, client, rollout, RewardConfig(search_price=price))


def test_a_stop_keeps_the_ranking_before_it_and_costs_no_search(client):
    searched = Searched(client)
    engine = Script(say("headache"), say("sugar"), STOP, say("aspirin"), STOP, STOP)
    (tree,) = grower(searched, engine).grow([HEAD], [2, 2])
    first, other = tree.roots
    stop, search = first.children
    assert (stop.ranking, stop.metrics, stop.reward) == (first.ranking, first.metrics, first.reward)
    assert stop.reward > 0.1
    assert (stop.rewrite.plan, stop.rewrite.rewrites, stop.rewrite.stop) == (first.rewrite.plan, (), True)
    assert (stop.searched, search.searched, stop.cost, search.cost, first.cost) == (False, True, 0.0, 0.25, 0.25)
    assert [child.reward for child in other.children] == [other.reward] * 2
    assert searched.batches == [2, 1]
    assert tree.searches == 3


def test_a_stop_in_turn_1_searches_the_question_and_ends_the_path(client):
    engine = Script(STOP, say("headache"), say("migraine"), say("aspirin"))
    (tree,) = grower(client, engine).grow([HEAD], [2, 2])
    stop, searched = tree.roots
    (raw,) = client.search([stop.rewrite.plan])
    assert stop.rewrite.plan.texts == [HEAD.text]
    assert [hit.document.id for hit in stop.ranking] == [hit.id for hit in raw]
    assert (stop.children, stop.cost, len(searched.children)) == ([], 0.25, 2)
    assert [len(path) for path in tree.paths()] == [1, 1, 2, 2]
    assert len(engine.calls[1][0]) == 1, "only the path that goes on is sampled"


def test_a_stop_after_a_failed_format_keeps_an_earlier_search(client):
    engine = Script("no format", say("headache"), STOP, "no format", STOP)
    failed, searched = grower(client, engine).grow([HEAD, SUGAR], [1, 1, 1])
    (nothing,), (first,) = failed.roots, searched.roots
    (stop,) = nothing.children
    assert (stop.reused, stop.rewrite.plan.texts, stop.cost) == (False, [HEAD.text], 0.25)
    assert nothing.cost == 0.25, "a failed format is no way around the price"
    (late,) = first.children[0].children
    assert (late.reused, late.ranking, late.reward) == (True, first.ranking, first.reward)


def test_a_stop_below_an_outage_is_unscorable(client):
    out = Searched(client, out=[HEAD.id])
    (tree,) = grower(out, Script(say("headache"), STOP)).grow([HEAD], [1, 1])
    assert [node.reward for node in tree.walk()] == [None, None]
    assert out.batches == [1]


def test_figures_of_paths_count_a_stop_as_the_paths_that_it_ends_and_no_outage(client):
    engine = Script(STOP, say("headache"), say("aspirin"), "no format")
    (tree,) = grower(client, engine).grow([HEAD], [2, 2])
    (lost,) = grower(Searched(client, out=[SUGAR.id]), Script(say("sugar"), say("blood"))).grow([SUGAR], [1, 1])
    trees = [tree, lost]
    credit = assign_credit(trees, "turn", [0.5, 1.0], "none")
    figures = step_metrics(trees, credit, Chat(engine.tokenizer, {engine.tokenizer.eos_token_id}))
    stop, searched = tree.roots
    ends = [stop.reward, stop.reward, *(child.reward for child in searched.children)]
    assert figures["final_reward"] == pytest.approx(mean(ends))
    assert figures["searches_per_path"] == mean([1, 1, 2, 1])


def test_a_stop_has_the_readers_reward_of_the_ranking_that_it_keeps(lessons, tmp_path):  # noqa: F811
    """Raw, "too much sugar" finds nothing that answers; citrus does. A stop of turn 1 gains nothing over the raw
    question, one of turn 2 asks the reader nothing, and one below a missing reply is unscorable."""
    parrot = Parrot(gone="insulin lowers blood")
    answering = scored(lessons, tmp_path, parrot)
    (question,) = [question for question in answering.questions("train") if question.id == "sugar"]
    rewriter = make_rewriter(RewriterConfig(name="general", stop=True), RetrieverCard("bm25", "bm25"))
    reward = RewardConfig.model_validate({"kind": "answer", "search_price": 0.25, "format_weight": 0})
    engine = Script(STOP, say("citrus"), say("insulin"), STOP, STOP)
    rollout = RolloutConfig(max_prompt_tokens=4096)
    (tree,) = Grower(engine, rewriter, answering, rollout, reward).grow([question], [3, 1])
    _, found, missing = tree.roots
    assert [node.reward for node in tree.roots] == [0.5, 1.0, None]
    (kept,), (lost,) = found.children, missing.children
    assert (kept.reward, kept.cost, kept.metrics) == (1.0, 0.0, found.metrics)
    assert (lost.reward, lost.cost) == (None, 0.0)
    assert parrot.asked == 3, "a stop of turn 1 and the raw question read the same documents"
    assert tree.searches == 3
    refuse_outage([tree], answering, {"": 60.0}, reward, "no rollout", "")
    values = {id(node): value for group in assign_credit([tree], "turn", [0.5, 1.0], "none").groups
              for node, value in zip(group.members, group.values, strict=True)}  # fmt: skip
    assert [values[id(node)] for node in tree.roots] == [1.5 * 0.5 - 0.25, 0.5 - 0.25 + 1.0, None]


class Hesitant(Uneven):
    """Answers half of its requests with a stop."""

    def _sample(self, its, number):
        completion, rounds = super()._sample(its, number)
        if rounds % 2:
            ids = [*self.tokenizer(STOP, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]
            completion = type(completion)(ids, [-0.5] * len(ids), True)
        return completion, rounds


@pytest.mark.parametrize("kind", [StreamingGrower, WaveGrower])
def test_trees_that_are_searched_while_they_are_sampled_stop_alike(client, kind):
    expected = grower(client, Hesitant()).grow(QUESTIONS, [3, 2, 2], streams=STREAMS)
    assert grower(client, Hesitant(), kind, micro_batch=3).grow(QUESTIONS, [3, 2, 2], streams=STREAMS) == expected
    nodes = [node for tree in expected for node in tree.walk()]
    assert {node.turn for node in nodes if node.rewrite.stop} == {1, 2, 3}
    assert all(len(list(tree.paths())) == 12 for tree in expected)


@pytest.mark.parametrize("kind", [Grower, StreamingGrower, WaveGrower])
def test_trees_of_first_turns_that_all_stop(client, kind):
    class Stops(Uneven):
        def _sample(self, its, number):
            ids = [*self.tokenizer(STOP, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]
            return type(super()._sample(its, number)[0])(ids, [-0.5] * len(ids), True), 1

    trees = grower(client, Stops(), kind).grow(QUESTIONS, [2, 2], streams=STREAMS)
    assert [[len(path) for path in tree.paths()] for tree in trees] == [[1] * 4] * 3


def test_every_later_turn_of_an_evaluation_has_the_record_of_the_stop(client):
    """Turn 2 of three stops: its score, tokens and searches also stand in turn 3."""
    engine = Script(say("headache"), say("insulin"), STOP, say("sugar"), say("blood"))
    trees = grower(client, engine).grow([HEAD, SUGAR], [1, 1, 1], greedy=True)
    stopped, going = (records_of_trees("p", [tree], METRICS) for tree in trees)
    assert [(record.turn, record.searches) for record in stopped] == [(1, 1), (2, 1), (3, 1)]
    assert [(record.turn, record.searches) for record in going] == [(1, 1), (2, 2), (3, 3)]
    assert {record.ranking for record in stopped} == {stopped[0].ranking}
    assert stopped[1].tokens == stopped[2].tokens > stopped[0].tokens
    assert stopped[2].plan == stopped[0].plan
    measured = validation_metrics(trees)
    scores = [[record.metrics["ndcg@10"] for record in path] for path in (stopped, going)]
    for turn in (1, 2, 3):
        assert measured[f"ndcg/turn{turn}"] == pytest.approx(sum(path[turn - 1] for path in scores) / 2)


def test_the_value_of_a_turn_is_its_metric_less_the_price_of_its_searches(client):
    """One path stops in turn 2, one goes on, one writes no format in turn 2, and a first turn stops."""
    engine = Script(say("headache"), say("insulin"), say("insulin"), STOP, STOP, say("sugar"), "none")
    trees = grower(client, engine, price=0.25).grow([HEAD, SUGAR, SUGAR, HEAD], [1, 1], greedy=True)
    scores = [[node.metrics["ndcg@10"] for node in path] for tree in trees for path in tree.paths()]
    values = net_values(trees, "ndcg@10")
    assert values["net/turn1"] == pytest.approx(mean(path[0] for path in scores) - 0.25)
    assert values["net/turn2"] == pytest.approx(mean(path[-1] for path in scores) - 0.25 * mean((1, 2, 2, 1)))
    assert RewardConfig(search_price=0.25).objective == "net"
    assert RewardConfig().objective == "ndcg@10"


def test_the_offer_stands_in_every_prompt(client):
    engine = Script(say("headache"), STOP)
    (tree,) = grower(client, engine).grow([HEAD], [1, 1])
    first, second = tree.roots[0], tree.roots[0].children[0]
    assert FIRST in engine.tokenizer.decode(first.prompt_ids)
    assert LATER in engine.tokenizer.decode(second.prompt_ids)


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
def test_a_policy_learns_to_stop_at_a_high_price_and_to_search_at_none(settings, undecided):  # noqa: F811
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
                "train.guard.action": "warn",
            },
        )
        logged = records(train(config) / "metrics.jsonl")
        stopped[price] = [line.get("stopped/turn1", 0.0) for line in logged]
        searches[price] = [line.get("searches_per_path", 2.0) for line in logged]
    assert stopped[0.0][0] > 0.1 > mean(stopped[0.0][-3:])
    assert mean(searches[1.0][-3:]) < 1.2 < 1.8 < mean(searches[0.0][-3:])
