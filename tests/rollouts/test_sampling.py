"""Drawing tokens: in proportion to the weights, from the nucleus only, and never from a column without weight."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from querylect.rollouts.engines.base import Sampling
from querylect.rollouts.engines.transformers import _draw, _sample
from scipy.stats import chisquare

pytestmark = pytest.mark.model


@pytest.mark.parametrize("columns", [3, 256, 300, 700])
@pytest.mark.parametrize("block", [16, 256])
def test_columns_are_drawn_in_proportion_to_their_weights(columns, block):
    """Chi-square against the weights, which lie over several blocks and have empty stretches among them."""
    generator = torch.Generator().manual_seed(columns)
    weights = torch.rand(columns, generator=generator) ** 3
    weights[::3] = 0
    weights[16:48] = 0
    weights[1] = 0.5
    torch.manual_seed(1)
    draws = 40_000
    drawn = _draw((2.5 * weights).expand(draws, -1), torch.rand(draws, 1), block)
    counts = torch.bincount(drawn, minlength=columns)
    expected = weights.double() / weights.double().sum() * draws
    assert counts[expected == 0].sum() == 0
    rare = expected < 5
    observed = [*counts[~rare].tolist(), counts[rare].sum().item()]
    expected_counts = [*expected[~rare].tolist(), expected[rare].sum().item()]
    if expected_counts[-1] == 0:
        observed, expected_counts = observed[:-1], expected_counts[:-1]
    assert chisquare(observed, expected_counts).pvalue > 1e-3


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.0, 1e-38, 1e-9, 0.1, 1 / 3, 1.0]), min_size=1, max_size=40),
    st.sampled_from([0.0, 1e-7, 0.1, 0.5, 0.9, 0.9999999, 1 - 2**-24]),
    st.sampled_from([4, 16, 256]),
)
def test_a_column_without_weight_is_never_drawn(weights, uniform, block):
    """At both ends of the random number and for all roundings: what is drawn exists and has weight."""
    if not sum(weights):
        weights[0] = 1.0
    drawn = int(_draw(torch.tensor([weights]), torch.tensor([[uniform]]), block))
    assert drawn < len(weights)
    assert weights[drawn] > 0


def test_the_nucleus_is_the_fewest_tokens_that_reach_top_p():
    """Probabilities .4 .3 .2 .1: at top_p .65 the two likeliest remain, in the ratio 4 : 3; recorded is the draw's."""
    logits = torch.tensor([0.2, 0.4, 0.1, 0.3]).log().expand(20_000, -1)
    torch.manual_seed(0)
    token, logprob = _sample(logits, Sampling(1.0, 0.65, 1), torch.rand(20_000, 1))
    counts = torch.bincount(token, minlength=4).tolist()
    assert (counts[0], counts[2]) == (0, 0)
    assert chisquare([counts[1], counts[3]], [20_000 * 4 / 7, 20_000 * 3 / 7]).pvalue > 1e-3
    assert logprob[token == 1][0].item() == pytest.approx(math.log(4 / 7))
    assert logprob[token == 3][0].item() == pytest.approx(math.log(3 / 7))


def test_temperature_divides_the_logits():
    """At temperature ½ odds of 3 : 1 become 9 : 1, and the recorded log-probability is that of the draw."""
    logits = torch.tensor([0.75, 0.25]).log().expand(20_000, -1)
    torch.manual_seed(0)
    token, logprob = _sample(logits, Sampling(0.5, 1.0, 1), torch.rand(20_000, 1))
    ones = int(token.sum())
    assert chisquare([20_000 - ones, ones], [18_000, 2_000]).pvalue > 1e-3
    assert logprob[token == 0][0].item() == pytest.approx(math.log(0.9))


def test_greedy_takes_the_likeliest_and_says_its_probability():
    token, logprob = _sample(torch.tensor([[0.2, 0.5, 0.3]]).log(), Sampling(0.0, 0.1, 1), torch.empty(1, 0))
    assert token.tolist() == [1]
    assert logprob.item() == pytest.approx(math.log(0.5))
