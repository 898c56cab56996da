"""Advantages for the best of k samples: against brute force over subsets, and against the gradient of the objective."""

import math
from itertools import combinations, product
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from querylect.errors import ConfigError
from querylect.train.best_of_k import best_of_k_advantages

from ..raising import refused

REWARDS = [st.sampled_from([0.0, 0.1, 0.1, 0.415, 0.73, 1.0]), st.floats(0, 1)]


def brute_force(rewards, k):
    """k · mean over the k-subsets with i of the maximum with i less that without; k = 1: less the others' mean."""
    indices = range(len(rewards))
    advantages = []
    for i in indices:
        other_indices = [j for j in indices if j != i]
        if k == 1:
            advantages.append(rewards[i] - fmean(rewards[j] for j in other_indices))
            continue
        without = [max(rewards[j] for j in subset) for subset in combinations(other_indices, k - 1)]
        advantages.append(k * fmean(max(rewards[i], best) - best for best in without))
    return advantages


@pytest.mark.parametrize(("values", "precision"), zip(REWARDS, (1e-12, 1e-7), strict=True), ids=["ties", "continuous"])
@given(data=st.data())
def test_advantages_are_those_of_all_subsets(values, precision, data):
    rewards = data.draw(st.lists(values, min_size=2, max_size=8))
    k = data.draw(st.integers(1, len(rewards)))
    assert best_of_k_advantages(rewards, k) == pytest.approx(brute_force(rewards, k), abs=precision)


def test_a_case_worked_by_hand():
    """n = 3, k = 2. The best: in {a, c} 1 − 0, in {b, c} 1 − .4, mean .8; the middle: .4 − 0 and nothing, mean .2."""
    assert best_of_k_advantages([1.0, 0.0, 0.4], 2) == pytest.approx([2 * 0.8, 0.0, 2 * 0.2])
    assert best_of_k_advantages([1.0, 0.0, 0.4], 3) == pytest.approx([3 * 0.6, 0.0, 0.0])
    assert best_of_k_advantages([1.0, 0.0, 0.5], 1) == pytest.approx([0.75, -0.75, 0.0])


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [4, 5])
def test_the_gradient_is_unbiased_on_a_bandit(n, k):
    """Every outcome of n samples from a softmax over three arms, weighted by its probability, no sampling."""
    logits, worth = [0.3, -0.4, 0.1], [0.1, 0.55, 1.0]

    def probabilities(logits):
        total = sum(map(math.exp, logits))
        return [math.exp(logit) / total for logit in logits]

    def objective(logits):
        p = probabilities(logits)
        return sum(
            math.prod(p[arm] for arm in arms) * max(worth[arm] for arm in arms) for arms in product(range(3), repeat=k)
        )

    p = probabilities(logits)
    estimated = [0.0] * 3
    for arms in product(range(3), repeat=n):
        chance = math.prod(p[arm] for arm in arms)
        advantages = best_of_k_advantages([worth[arm] for arm in arms], k)
        for arm, advantage in zip(arms, advantages, strict=True):
            for at in range(3):
                estimated[at] += chance * advantage * ((arm == at) - p[at]) / n
    step = 1e-5
    for at in range(3):
        up, down = list(logits), list(logits)
        up[at] += step
        down[at] -= step
        exact = (objective(up) - objective(down)) / (2 * step)
        assert estimated[at] == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_ties_give_exactly_zero(k):
    assert best_of_k_advantages([0.3] * 5, k) == [0.0] * 5
    assert best_of_k_advantages([0.3, 0.1 + 0.2, 0.3, 0.3, 0.3], k) == [0.0] * 5
    assert best_of_k_advantages([1.0, 1.0, 0.0], 3) == [0.0] * 3, "each is matched by another"
    assert best_of_k_advantages([0.0, 0.3, 0.1 + 0.2], 3) == [0.0] * 3, "rounding among the best"


@pytest.mark.parametrize("k", [1, 2, 3])
def test_unscorable_alternatives_are_left_out(k):
    scored = best_of_k_advantages([0.2, 0.9, 0.4], k)
    assert best_of_k_advantages([0.2, None, 0.9, 0.4, None], k) == [scored[0], None, *scored[1:], None]


def test_too_few_scored_alternatives_move_nothing():
    assert best_of_k_advantages([0.2, None, 0.9], 3) == [0.0, None, 0.0]
    assert best_of_k_advantages([None, 0.9], 1) == [None, 0.0]
    assert best_of_k_advantages([None, None], 2) == [None, None]


@pytest.mark.parametrize(("k", "n"), [(0, 4), (5, 4), (1, 0)])
def test_a_k_that_the_group_cannot_give_is_refused(k, n):
    with refused(ConfigError, f"k = {k} ", f"{n} samples", "rollout.branching"):
        best_of_k_advantages([0.5] * n, k)


def test_a_large_group_takes_no_subsets():
    rewards = [(index * 7919 % 2000) / 2000 for index in range(2000)]
    advantages = best_of_k_advantages(rewards, 8)  # C(2000, 8) is 6e21
    assert max(advantages) == advantages[rewards.index(max(rewards))]
