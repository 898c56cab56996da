"""Updating on a part of a group: how many are kept, and that the expected gradient is that of all."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from querylect.train.credit import inclusion_probabilities, subsample

from ..lessons import change
from .credited import Credited
from .test_credit import node, tree
from .test_trl import losses_and_gradients, ready, step_inputs, with_trainer

pytestmark = pytest.mark.model


@given(st.lists(st.floats(0, 10, allow_subnormal=False), min_size=1, max_size=20), st.integers(1, 8))
def test_probabilities_sum_to_the_number_that_is_kept(sizes, limit):
    chances = inclusion_probabilities(sizes, limit)
    assert all(0 <= chance <= 1 + 1e-12 for chance in chances)
    assert sum(chances) == pytest.approx(min(limit, sum(size > 0 for size in sizes)))


def test_the_expected_advantage_of_every_turn_is_its_own():
    grown = tree(node(0.1, 0.9, 0.0, 0.2, 0.0), node(0.7, 0.1, 0.1, 0.1, 0.3), node(0.0, 0.0, 0.0, 0.0, 0.0))
    credited = Credited([grown], "turn", (0.5, 1.0), "none")
    credit, draw, count = credited.credit, Random(0), 20_000
    own = np.nan_to_num(credit.advantages)
    totals = np.zeros(len(own))
    for _ in range(count):
        sampled = subsample(credit, credited.turns, 2, draw)
        for group in credit.groups:
            assert sampled.has_signal[group.members].sum() == min(2, np.count_nonzero(own[group.members]))
        totals += np.nan_to_num(sampled.advantages) / count
    assert totals == pytest.approx(own, abs=0.02)


def test_fewer_tokens_are_computed_and_the_normalizer_stays(settings, monkeypatch):
    def act(trainer):
        ready(trainer)
        inputs = step_inputs(trainer)
        losses_and_gradients(trainer, inputs, packing=True)
        return trainer.packed_tokens, trainer.rollout.tokens, sum(int(i.completions.sum()) for i in inputs)

    single = {"rollout.branching": [8], "reward.turn_weights": [1.0]}
    all_tokens, items, tokens = with_trainer(change(settings, **single), monkeypatch, act)
    part = change(settings, **single, **{"train.samples_per_update": 2, "name": "part"})
    fewer, same_items, fewer_tokens = with_trainer(part, monkeypatch, act)
    assert 0 < fewer < all_tokens
    assert 0 < fewer_tokens < tokens
    assert items == same_items
