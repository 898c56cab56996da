"""Credit on a problem of two turns whose gradient is known: the expectation over all trees, by enumeration."""

import sys
from itertools import product
from math import exp, prod

import pytest
from querylect.data.types import Question
from querylect.rewriters.base import Rewrite
from querylect.rollouts.tree import Node, Tree
from querylect.train.credit import assign_credit
from querylect.train.rows import row_advantages, row_turns

from ..wrong_credit import equal_node_weights, leaf_advantages_without_lambda, plain_means

LAMBDA = (0.5, 2.0)
FIRST = (0.3, -0.4)
"""Logits of the two answers of turn 1."""
SECOND = ((0.6, 0.1), (-0.2, 0.5))
"""Logits of turn 2 after each of them."""
R1 = (0.2, 0.7)
R2 = ((0.1, 0.9), (0.4, 0.3))
PROMPT, SHOWN = 100, 200


def softmax(logits):
    weights = [exp(logit) for logit in logits]
    return [weight / sum(weights) for weight in weights]


P1, P2 = softmax(FIRST), [softmax(logits) for logits in SECOND]


def true_gradient():
    """∂/∂logits of E[λ₁·r₁ + λ₂·r₂]: turn 1, then turn 2 after answer 0 and after answer 1."""
    later = [sum(p * r for p, r in zip(P2[a], R2[a], strict=True)) for a in (0, 1)]
    q = [LAMBDA[0] * R1[a] + LAMBDA[1] * later[a] for a in (0, 1)]
    mean = sum(p * value for p, value in zip(P1, q, strict=True))
    first = [P1[a] * (q[a] - mean) for a in (0, 1)]
    second = [P1[a] * P2[a][b] * LAMBDA[1] * (R2[a][b] - later[a]) for a in (0, 1) for b in (0, 1)]
    return first, second


def sampled_tree(firsts, seconds):
    def node(turn, prompt, answer, reward):
        return Node(turn, prompt, [answer], [], True, "", Rewrite(None), reward=reward)

    roots = []
    for first, answers in zip(firsts, seconds, strict=True):
        root = node(1, [PROMPT], first, R1[first])
        root.children = [node(2, [PROMPT, first, SHOWN], second, R2[first][second]) for second in answers]
        roots.append(root)
    return Tree(Question("q", "q"), roots)


def expected_gradient(branching, credit):
    """The mean over all trees of Σ rows advantage · ∂ log p, by what is under test; rows per leaf."""
    width, below = branching
    first, second = [0.0, 0.0], [0.0] * 4
    for firsts in product((0, 1), repeat=width):
        for flat in product((0, 1), repeat=width * below):
            seconds = [flat[i * below : (i + 1) * below] for i in range(width)]
            weight = prod(P1[a] for a in firsts) * prod(
                P2[a][b] for a, answers in zip(firsts, seconds, strict=True) for b in answers
            )
            tree = sampled_tree(firsts, seconds)
            found = assign_credit([tree], credit, LAMBDA, "none")
            for node, advantage in zip(row_turns([tree]), row_advantages([tree], found).tolist(), strict=True):
                said, scale = node.completion_ids[0], weight * advantage / (width * below)
                for other in (0, 1):
                    if node.turn == 1:
                        first[other] += scale * ((said == other) - P1[other])
                    else:
                        after = node.prompt_ids[1]
                        second[2 * after + other] += scale * ((said == other) - P2[after][other])
    return first, second


def norm(vector):
    return sum(x * x for x in vector) ** 0.5


def compare(branching, credit):
    """(cosine of the expected gradient to the true one, strength of turn 1 beside turn 2 in units of the true one)."""
    (first, second), (true_first, true_second) = expected_gradient(branching, credit), true_gradient()
    estimate, truth = [*first, *second], [*true_first, *true_second]
    cosine = sum(a * b for a, b in zip(estimate, truth, strict=True)) / norm(estimate) / norm(truth)
    return cosine, norm(first) / norm(second) / (norm(true_first) / norm(true_second))


@pytest.mark.parametrize("credit", ["turn", "trajectory"])
@pytest.mark.parametrize("branching", [[2, 2], [2, 3], [3, 2]])
def test_the_expected_gradient_is_that_of_the_expected_trajectory_reward(branching, credit):
    """cosine ≥ .999 to the true gradient, and turn 1 as strong beside turn 2 as it should be, to 2 %."""
    cosine, strength = compare(branching, credit)
    assert cosine >= 0.999
    assert strength == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    ("wrong", "branching", "credit"),
    [
        (equal_node_weights, [2, 2], "turn"),
        (equal_node_weights, [2, 3], "trajectory"),
        (leaf_advantages_without_lambda, [2, 2], "turn"),
        (plain_means, [2, 3], "turn"),
        (plain_means, [2, 2], "trajectory"),
    ],
)
def test_a_wrong_rule_of_credit_is_noticed(monkeypatch, wrong, branching, credit):
    if wrong is plain_means:
        wrong(monkeypatch)
    else:
        wrong(monkeypatch, sys.modules[__name__])
    cosine, strength = compare(branching, credit)
    assert cosine < 0.999 or abs(strength - 1) > 0.02
