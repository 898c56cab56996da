"""Stopping: which answers are stops, and the credit of trees with stops and search prices, by enumeration."""

from collections import Counter
from itertools import combinations_with_replacement, product
from math import exp, factorial, prod
from random import Random

import pytest
from querylect.configs.schema import RewriterConfig
from querylect.data.types import Question
from querylect.envs.plan import SearchPlan
from querylect.rewriters.base import Rewrite
from querylect.rewriters.delegating import read_stop
from querylect.rewriters.registry import make_rewriter
from querylect.rewriters.retriever_info import RetrieverInfo
from querylect.rollouts.tree import Node, Tree
from querylect.train import turns

from .credited import Credited
from .wrong_credit import equal_node_weights, leaf_advantages_without_lambda, plain_means

pytestmark = pytest.mark.model

QUESTION = Question("q", "my head hurts")
CARD = RetrieverInfo("bm25", "bm25")


def rewriter(name, stop=True, **settings):
    return make_rewriter(RewriterConfig(name=name, stop=stop, **settings), CARD, 20)


@pytest.mark.parametrize(
    ("text", "think"),
    [
        ("<stop/>", ""),
        ("<think></think>\n<stop/><|im_end|>\n", ""),
        ("<think>x</think><rewrite> <stop/> </rewrite>", "x"),
        ("<think>never closed <stop/>", None),
        ("<think>x</think>I would <stop/>", None),
        ("<think>x</think><rewrite>headache</rewrite><stop/>", None),
        ("<think><stop/></think><rewrite>headache</rewrite>", None),
    ],
)
def test_a_stop_searches_the_question_and_any_other_answer_is_read_by_the_rewriter(text, think):
    assert read_stop(text) == think
    without = make_rewriter(RewriterConfig(name="general"), CARD, 20)
    stop = Rewrite(SearchPlan.of("my head hurts", k=20), think or "", stop=True)
    assert rewriter("general").parse(QUESTION, text, 1) == (without.parse(QUESTION, text, 1) if think is None else stop)


def test_a_stop_without_a_search_keeps_the_format_and_has_no_plan():
    """Only a turn before has a plan for it; with `true` it has that of the question."""
    stop = rewriter("general", stop="answer").parse(QUESTION, "<think>known</think><stop/>", 1)
    assert stop == Rewrite(None, "known", stop=True)
    assert (stop.unsearched, stop.failure) == (True, "")


# A policy of two turns whose third answer is a stop: every tree of the branching is enumerated.
LAMBDA = (0.5, 2.0)
FIRSTS = (0.3, -0.4, 0.1)
SECONDS = ((0.6, 0.1, -0.3), (-0.2, 0.5, 0.2))
RAW, R1, R2 = 0.35, (0.2, 0.7), ((0.1, 0.9), (0.4, 0.3))
HALT = 2
PROMPT, SHOWN = 100, 200


def softmax(logits):
    weights = [exp(logit) for logit in logits]
    return [weight / sum(weights) for weight in weights]


P1, P2 = softmax(FIRSTS), [softmax(logits) for logits in SECONDS]


def outcome(first, second, price, halt_price):
    """The outcome of a path: λ of each turn times its reward, minus the price of each search. `halt_price` is that of a
    stop in turn 1, which searches the question (`price`) or nothing (0)."""
    if first == HALT:
        return (LAMBDA[0] + LAMBDA[1]) * RAW - halt_price
    if second == HALT:
        return (LAMBDA[0] + LAMBDA[1]) * R1[first] - price
    return LAMBDA[0] * R1[first] + LAMBDA[1] * R2[first][second] - 2 * price


def true_gradient(price, halt_price):
    """∂/∂logits of the expected outcome: those of turn 1, then those of turn 2 after answers 0 and 1."""
    values = [sum(P2[a][b] * outcome(a, b, price, halt_price) for b in range(3)) for a in (0, 1)]
    values.append(outcome(HALT, None, price, halt_price))
    mean = sum(p * value for p, value in zip(P1, values, strict=True))
    first = [P1[a] * (values[a] - mean) for a in range(3)]
    second = [P1[a] * P2[a][b] * (outcome(a, b, price, halt_price) - values[a]) for a in (0, 1) for b in range(3)]
    return [*first, *second]


def sampled_tree(branches, price, halt_price, branching):
    """A tree of first turns, each with the answers that follow it."""

    def node(turn, prompt, answer, reward):
        stopped = answer == HALT
        cost = price if not stopped else halt_price if turn == 1 else 0.0
        return Node(turn, prompt, [answer], [], True, "", Rewrite(None, stop=stopped), reward=reward, cost=cost)

    roots = []
    for first, seconds in branches:
        root = node(1, [PROMPT], first, RAW if first == HALT else R1[first])
        for second in seconds:
            reward = R1[first] if second == HALT else R2[first][second]
            root.children.append(node(2, [PROMPT, first, SHOWN], second, reward))
        roots.append(root)
    return Tree(Question("q", "q"), roots, branching)


def expected_gradient(branching, credit, price, halt_price):
    """The mean over all trees of Σ leaves · advantage · ∂ log p, as the loss computes it.

    The order of first turns changes no turn's credit, so trees that differ in it alone are computed once, in an order
    drawn at random."""
    width, below = branching
    gradient = [0.0] * 9
    shuffled = Random(0)
    for branches in combinations_with_replacement(branches_of(below), width):
        weight = factorial(width) / prod(map(factorial, Counter(branches).values()))
        weight *= prod(P1[first] * prod(P2[first][second] for second in seconds) for first, seconds in branches)
        tree = sampled_tree(shuffled.sample(branches, width), price, halt_price, branching)
        assigned = Credited([tree], credit, LAMBDA, "none")
        leaves = turns.leaves_below([tree])
        assert len(list(tree.paths())) == width * below, "every tree weighs the same"
        for node in tree.walk():
            sampled, scale = node.completion_ids[0], weight * leaves[id(node)] * assigned.of(node) / (width * below)
            probabilities = P1 if node.turn == 1 else P2[node.prompt_ids[1]]
            start = 0 if node.turn == 1 else 3 + 3 * node.prompt_ids[1]
            for action in range(3):
                gradient[start + action] += scale * ((sampled == action) - probabilities[action])
    return gradient


def branches_of(below):
    """Each first turn with each series of answers that can follow it."""
    following = list(product(range(3), repeat=below))
    return [(first, seconds) for first in range(3) for seconds in ([()] if first == HALT else following)]


def norm(vector):
    return sum(x * x for x in vector) ** 0.5


def compare(branching, credit, price=0.0, halt_price=0.0):
    """(cosine of the expected gradient to the true one, strength of turn 1 beside turn 2 in units of the true one)."""
    estimate, truth = expected_gradient(branching, credit, price, halt_price), true_gradient(price, halt_price)
    strength = norm(estimate[:3]) / norm(estimate[3:]) / (norm(truth[:3]) / norm(truth[3:]))
    return cosine(estimate, truth), strength


def cosine(left, right):
    return sum(a * b for a, b in zip(left, right, strict=True)) / norm(left) / norm(right)


PRICES = [(0.0, 0.0), (0.8, 0.8), (0.8, 0.0)]


@pytest.mark.parametrize("credit", ["turn", "trajectory"])
@pytest.mark.parametrize(
    ("branching", "price", "halt_price"),
    [*(((2, 2), *prices) for prices in PRICES), ((2, 3), 0.8, 0.0), ((3, 2), 0.0, 0.0)],
)
def test_the_expected_gradient_is_that_of_the_expected_reward_minus_prices(branching, credit, price, halt_price):
    """cosine ≥ .999 to the true gradient, and turn 1 as strong beside turn 2 as it should be, to 2 %.

    At a price of 0 for a stop in turn 1, that path has no search."""
    cosine, strength = compare(branching, credit, price, halt_price)
    assert cosine >= 0.999
    assert strength == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    ("wrong", "branching", "credit"),
    [
        (equal_node_weights, (2, 2), "turn"),
        (equal_node_weights, (2, 2), "trajectory"),
        (leaf_advantages_without_lambda, (2, 2), "turn"),
        (plain_means, (2, 3), "turn"),
        (plain_means, (2, 2), "trajectory"),
    ],
)
def test_a_wrong_rule_of_credit_is_noticed(monkeypatch, wrong, branching, credit):
    wrong(monkeypatch)
    cosine, strength = compare(branching, credit)
    assert cosine < 0.999 or abs(strength - 1) > 0.02


@pytest.mark.parametrize("part", ["price", "free stop", "branching"])
def test_the_gradient_notices_a_forgotten_price_and_a_stop_that_weighs_as_one_leaf(part, monkeypatch):
    if part == "price":
        assert cosine(expected_gradient((2, 2), "turn", 0.0, 0.0), true_gradient(0.8, 0.8)) < 0.999
    elif part == "free stop":
        assert cosine(expected_gradient((2, 2), "turn", 0.8, 0.8), true_gradient(0.8, 0.0)) < 0.999
    else:
        monkeypatch.setattr(Tree, "paths", one_path_per_leaf)
        with pytest.raises(AssertionError, match="weighs the same"):
            expected_gradient((2, 2), "turn", 0.0, 0.0)


def one_path_per_leaf(self):
    for root in self.roots:
        yield from ([root, child] for child in root.children) if root.children else [[root]]
