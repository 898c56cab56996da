"""Collective decisions of several processes, with threads in their place: draws, random streams, saving, validation."""

from types import SimpleNamespace

import pytest
from querylect.configs.schema import RewardConfig, RolloutConfig, RunConfig
from querylect.data.types import Question
from querylect.rollouts.tree_sampler import ANSWERED_AT_ONCE, TreeSampler
from querylect.train.processes import Processes
from querylect.train.step_trees import resample
from querylect.train.validation import Validator

from ..lessons import change
from ..several import side_by_side
from .test_credit import node, tree

pytestmark = [pytest.mark.server, pytest.mark.slow]


def grown(name, dull):
    """A tree of two turns, whose rewards are all equal if it is dull."""
    if dull:
        return tree(node(0.3, 0.5, 0.5), node(0.3, 0.5, 0.5), name=name)
    return tree(node(0.1, 0.2, 0.4), node(0.9, 0.5, 0.5), name=name)


def names(trees):
    return [tree.question.id for tree in trees]


@pytest.mark.parametrize("dull", ["abcdefgh", "abdg", "cd", "ef", ""])
@pytest.mark.parametrize("mixed", [False, True], ids=["one environment", "two environments"])
def test_several_processes_ask_what_one_would_and_no_question_twice(dull, mixed):
    """Two questions each of four, and two rounds: the trees, the counts and what was asked are those of one process."""
    ids = [f"{'xy'[n % 2]}/{name}" if mixed else name for n, name in enumerate("abcdefgh")]
    config = change(RunConfig(), **{"train.resample_rounds": 2, "seed": 5})
    if mixed:
        config = change(config, mix={"environments": {"x": {}, "y": {"env": {"index": "other"}}}})
    questions = {name: Question(name, name) for name in ids}

    def run(processes, first):
        grown_ids = []

        def grow(chosen):
            grown_ids.append([question.id for question in chosen])
            return [grown(question.id, question.id[-1] in dull) for question in chosen]

        trees = grow([questions[name] for name in first])
        return resample(config, trees, questions, grow, 3, processes), grown_ids

    single, single_rounds = run(Processes(), ids[:4])
    pair, pair_rounds = zip(*side_by_side(2, lambda me: run(me, ids[2 * me.rank : 2 * me.rank + 2])), strict=True)
    assert [*names(pair[0][0]), *names(pair[1][0])] == names(single[0])
    assert sorted([*names(pair[0][1]), *names(pair[1][1])]) == sorted(names(single[1]))
    assert pair[0][2] == pair[1][2] == single[2]
    assert [sorted([*a, *b]) for a, b in zip(*pair_rounds, strict=True)] == [sorted(ids) for ids in single_rounds]
    everything = [name for ids in single_rounds for name in ids]
    assert len(everything) == len(set(everything)), "no question twice in a step"
    assert len(single_rounds) == 1 + single[2]["resample/rounds"]


def test_each_process_validates_its_share_of_the_questions(monkeypatch):
    """Five questions, of which two are answered at once."""
    monkeypatch.setattr("querylect.rollouts.tree_sampler.ANSWERED_AT_ONCE", 2)
    assert ANSWERED_AT_ONCE > 2

    def act(processes):
        calls, events = [], []
        conversation = SimpleNamespace(rollout=RolloutConfig())
        tree_sampler = SimpleNamespace(clock=None, client=None, conversation=conversation, reward=RewardConfig())
        tree_sampler.grow = lambda questions, branching, greedy: (
            calls.append(len(questions)) or [grown(question.id, True) for question in questions]
        )
        tree_sampler.answer = lambda *args, **how: TreeSampler.answer(tree_sampler, *args, **how)
        weight_sync = SimpleNamespace(refresh=lambda: events.append("refresh"), sleep=lambda: events.append("sleep"))
        questions = [Question(name, name) for name in "abcde"]
        step_trees = SimpleNamespace(prefetcher=None, weight_sync=weight_sync)
        trainer = SimpleNamespace(folder=None, tree_sampler=tree_sampler, step_trees=step_trees, processes=processes)
        validator = Validator(trainer, questions)
        assert validator._measure(4)["questions"] == 5
        return calls, events

    assert side_by_side(2, act) == [([2, 1], ["refresh", "sleep"]), ([2], ["refresh", "sleep"])]
