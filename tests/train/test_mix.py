"""Whose questions the steps of a mix have."""

from collections import Counter

import pytest
from querylect.configs.schema import MixConfig
from querylect.train.questions import mixed_order

pytestmark = pytest.mark.slow

IDS = [f"a/{n}" for n in range(5)] + [f"b/{n}" for n in range(40)]


def mix(**weights):
    return MixConfig.model_validate({"environments": {name: {"weight": weight} for name, weight in weights.items()}})


def steps_of(order, size):
    return [order[start : start + size] for start in range(0, len(order), size)]


@pytest.mark.parametrize("size", [3, 8])
def test_shares_are_the_weights_rounded_and_their_mean_is_exact(size):
    order = mixed_order(mix(a=1.0, b=3.0), IDS, 400, size, seed=0)
    counts = [Counter(name.partition("/")[0] for name in step)["a"] for step in steps_of(order, size)]
    assert set(counts) <= {size // 4, -(-size // 4)}
    assert sum(counts) / (400 * size) == pytest.approx(0.25, abs=0.01)


def test_questions_come_in_passes_and_never_twice_in_a_step():
    order = mixed_order(mix(a=1.0, b=1.0), IDS, 60, 8, seed=1)
    assert all(len(set(step)) == 8 for step in steps_of(order, 8))
    counts = Counter(order)
    assert {counts[name] for name in IDS[5:]} == {6}, "240 of 40 questions"
    assert len({tuple(order[start : start + 40]) for start in range(0, 400, 40)}) == 10


def test_a_longer_run_has_the_same_beginning_and_another_seed_another_order():
    weights = mix(a=1.0, b=2.0)
    order = mixed_order(weights, IDS, 5, 6, seed=3)
    assert mixed_order(weights, IDS, 9, 6, seed=3)[:30] == order
    assert mixed_order(weights, IDS, 5, 6, seed=4) != order
