"""Advantages of turns, computed by hand and against TRL's own group normalisation."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from querylect.data.types import Question
from querylect.rewriters.base import Rewrite
from querylect.rollouts.tree import Node, Tree
from querylect.train.credit import assign_credit
from querylect.train.turns import gather, turns_of

from ..several import side_by_side
from .credited import Credited

pytestmark = pytest.mark.model

HALF_AND_ONE = (0.5, 1.0)


def node(reward, *children, turn=1):
    """A turn worth `reward`; children may be nodes or the rewards of leaves."""
    parent = Node(turn, [1], [2], [], True, "", Rewrite(None), reward=reward)
    parent.children = [child if isinstance(child, Node) else node(child) for child in children]
    for child in parent.children:
        for below in child.walk():
            below.turn += 1
    return parent


def tree(*roots, name="q"):
    """A tree of turns with different completions, so that no two lead to the same state."""
    grown = Tree(Question(name, name), [root if isinstance(root, Node) else node(root) for root in roots])
    for number, parent in enumerate(grown.walk()):
        parent.completion_ids = [number]
        for child in parent.children:
            child.prompt_ids = [*parent.prompt_ids, number, 0]
    return grown


def alike(*nodes):
    """Give turns the same completion, so that their children continue the same state."""
    for turn_node in nodes[1:]:
        turn_node.completion_ids = nodes[0].completion_ids
        for child in turn_node.children:
            child.prompt_ids = nodes[0].children[0].prompt_ids


def advantages(grown, credit="turn", weights=HALF_AND_ONE, scale="none"):
    """Advantages of one tree, turn by turn, in order."""
    assigned = Credited([grown], credit, weights, scale)
    depth = max(turn_node.turn for turn_node in grown.walk())
    turns = range(1, depth + 1)
    return [[assigned.of(turn_node) for turn_node in grown.walk() if turn_node.turn == turn] for turn in turns]


@pytest.fixture
def four_by_four():
    return tree(
        node(0.0, 0.0, 0.0, 0.0, 1.0),
        node(1.0, 1.0, 1.0, 0.0, 0.0),
        node(0.5, 0.5, 0.5, 0.5, 0.5),
        node(0.25, 0.2, 0.4, 0.6, 0.8),
    )


def test_four_by_four_by_hand(four_by_four):
    first, second = advantages(four_by_four)
    # V(i) = r1/2 + mean of r2: 0 + .25, .5 + .5, .25 + .5, .125 + .5; their mean is .65625
    assert first == pytest.approx([-0.40625, 0.34375, 0.09375, -0.03125], abs=1e-12)
    assert second == pytest.approx(
        [-0.25, -0.25, -0.25, 0.75, 0.5, 0.5, -0.5, -0.5, 0, 0, 0, 0, -0.3, -0.1, 0.1, 0.3], abs=1e-12
    )


def test_turns_that_answer_the_same_state_are_one_group():
    """Three of four first turns say the same: their six second turns are compared with each other, and their values
    are the same, so that nothing but the fourth first turn tells them apart."""
    grown = tree(node(0.2, 0.0, 0.4), node(0.2, 0.2, 0.6), node(0.2, 0.8, 1.0), node(0.6, 0.3, 0.5))
    alike(*grown.roots[:3])
    credit = Credited([grown], "turn", HALF_AND_ONE, "none")
    assert sorted((group.turn, len(group.members)) for group in credit.groups) == [(1, 4), (2, 2), (2, 6)]
    # V = .1 + .5 for three of them, .3 + .4 for the fourth
    assert [credit.of(root) for root in grown.roots] == pytest.approx([-0.025, -0.025, -0.025, 0.075])
    pooled = [credit.of(leaf) for root in grown.roots[:3] for leaf in root.children]
    # 6/5 of the distance from the mean of six, brought to the strength of four siblings, 3/4
    assert pooled == pytest.approx([0.9 * (reward - 0.5) for reward in (0.0, 0.4, 0.2, 0.6, 0.8, 1.0)])
    assert [credit.of(leaf) for leaf in grown.roots[3].children] == pytest.approx([-0.1 * 1.5, 0.1 * 1.5])


def test_trees_of_other_processes_answer_the_same_states_and_are_numbers():
    """A question that two processes ask is one group, and so are its second turns; no text is gathered."""
    trees = [tree(node(0.2, 0.0, 0.4), node(0.6, 0.2, 0.6)) for _ in range(2)]
    for turn_node in (turn_node for grown in trees for turn_node in grown.walk()):
        turn_node.text, turn_node.rewrite = "a text", Rewrite(None, rewrites=("a rewrite",), stop=False)
    expected = Credited(trees, "turn", HALF_AND_ONE, "none")
    gathered = []

    def of_all(processes):
        gathered.append(pickle.dumps(turns := turns_of([trees[processes.rank]], HALF_AND_ONE, len)))
        return gather(turns, processes)

    for rank, (turns, rows) in enumerate(side_by_side(2, of_all)):
        assert (turns.questions, rows) == (["q", "q"], slice(6 * rank, 6 * rank + 6))
        credit = assign_credit(turns, "turn", "none")
        assert [len(group.members) for group in credit.groups] == [4, 4, 4]
        assert credit.advantages.tolist() == expected.credit.advantages.tolist()
    assert not any(text in part for part in gathered for text in (b"a text", b"a rewrite"))


@pytest.mark.parametrize("scale", ["none", "group", "batch"])
@pytest.mark.parametrize("credit", ["turn", "trajectory"])
@pytest.mark.parametrize("noise", [0.0, 1e-16, 1e-12])
def test_ties_give_exactly_zero(scale, credit, noise):
    tied = tree(node(0.3, 0.1 + 0.2, 0.3), node(0.3 + noise, 0.3 - noise, 0.3 + noise), name="tied")
    varied = tree(node(0.0, 0.9, 0.1), node(1.0, 0.4, 0.5), name="varied")
    assigned = Credited([tied, varied], credit, HALF_AND_ONE, scale)
    assert [assigned.of(turn_node) for turn_node in tied.walk()] == [0.0] * 6
    assert any(assigned.of(turn_node) for turn_node in varied.walk())
    tied_ids = {assigned.rows[id(turn_node)] for turn_node in tied.walk()}
    assert not any(group.has_signal for group in assigned.groups if group.members[0] in tied_ids)
    lone = Credited([tied], credit, HALF_AND_ONE, scale)
    assert [lone.of(turn_node) for turn_node in tied.walk()] == [0.0] * 6


@pytest.mark.parametrize("scale", ["none", "group", "batch"])
@pytest.mark.parametrize("outages", [0, 2])
def test_trajectory_credit_of_independent_conversations_is_trls_own_normalisation(scale, outages):
    """[16, 1] with credit `trajectory` is the baseline of Yuan et al., plain GRPO; TRL adds 1e-4 to the deviation."""
    import torch
    from trl.trainer.utils import nanstd

    rewards = [((7 * i) % 16 / 16, (5 * i) % 16 / 16) for i in range(16)]
    trees = [
        tree(*(node(r1, None if i < outages else r2) for i, (r1, r2) in enumerate(rewards)), name="a"),
        tree(*(node(r2 / 2, r1 / 3) for r1, r2 in rewards), name="b"),
    ]
    assigned = Credited(trees, "trajectory", HALF_AND_ONE, scale)
    totals = torch.tensor(
        [
            [float("nan") if leaf.reward is None else 0.5 * root.reward + leaf.reward for root, leaf in grown.paths()]
            for grown in trees
        ],
        dtype=torch.float64,
    )
    centred = totals - totals.nanmean(1, keepdim=True)
    deviation = {
        "none": torch.tensor(1.0),
        "group": nanstd(totals, dim=1)[:, None] + 1e-4,
        "batch": nanstd(totals.flatten()) + 1e-4,
    }[scale]
    expected = torch.nan_to_num(centred / deviation, nan=0.0)
    for grown, row in zip(trees, expected.tolist(), strict=True):
        for (root, leaf), value in zip(grown.paths(), row, strict=True):
            assert assigned.of(leaf) == pytest.approx(value, rel=1e-3, abs=1e-9)
            assert assigned.of(root) == assigned.of(leaf)


reward = st.integers(0, 1000).map(lambda thousandths: thousandths / 1000)


@given(
    st.lists(
        st.tuples(st.none() | reward, st.lists(st.none() | reward, min_size=1, max_size=4)), max_size=4, min_size=1
    ),
    st.sampled_from(["turn", "trajectory"]),
    st.sampled_from(["none", "group", "batch"]),
)
def test_failed_searches_are_zero_and_groups_sum_to_zero(stems, credit, scale):
    grown = tree(*(node(r1, *leaves) for r1, leaves in stems))
    assigned = Credited([grown], credit, HALF_AND_ONE, scale)
    for turn_node in grown.walk():
        if turn_node.reward is None:
            assert assigned.of(turn_node) == 0
    for group in assigned.groups:
        assert sum(np.nan_to_num(assigned.credit.advantages[group.members])) == pytest.approx(0, abs=1e-6)
