"""Rewards of a turn and of a path."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from querylect.rewards.reward import answer_reward, format_reward, node_reward, trajectory_value

unit = st.floats(0, 1)


def test_metric_and_format_are_weighed():
    assert node_reward(0.5, True, 0.1) == pytest.approx(0.9 * 0.5 + 0.1)
    assert node_reward(1.0, True, 0.1) == pytest.approx(1.0)
    assert node_reward(0.0, True, 0.1) == pytest.approx(0.1)
    assert node_reward(0.3, True, 0.0) == 0.3
    assert node_reward(0.3, True, 1.0) == 1.0
    assert (format_reward(True), format_reward(False)) == (1.0, 0.0)


def test_a_failed_format_is_worth_nothing_and_an_outage_is_never_a_reward():
    assert [node_reward(metric, False, 0.1) for metric in (0.0, 1.0, None)] == [0.0] * 3
    assert node_reward(None, True, 0.1) is node_reward(None, True, 1.0) is None


def test_an_answer_is_rewarded_by_score_gain_and_metric():
    assert answer_reward(0.5, None, 0.0, 1.0) == 0.5
    assert answer_reward(0.5, 0.5, 0.0, 1.0) == 0.5
    assert (answer_reward(1.0, 0.0, 0.0, 1.0), answer_reward(0.0, 1.0, 0.0, 1.0)) == (1.0, 0.0)
    assert answer_reward(0.75, 0.25, 1.0, 0.25) == pytest.approx(0.75 * 1 + 0.25 * 0.75)
    for wrong in ((1.5, None, 0, 1), (0, -1, 0, 1), (0, 0, math.nan, 1), (0, 0, 0, 2)):
        with pytest.raises(ValueError, match="from 0 to 1"):
            answer_reward(*wrong)


@given(unit, unit, unit, unit)
def test_the_raw_score_moves_all_rewards_of_a_question_alike(first, second, raw, weight):
    """So it cancels in GRPO's advantages."""
    with_gain = answer_reward(first, raw, 0.5, weight) - answer_reward(second, raw, 0.5, weight)
    without = answer_reward(first, None, 0.5, weight) - answer_reward(second, None, 0.5, weight)
    assert with_gain == pytest.approx(without / 2, abs=1e-12)
    assert 0 <= answer_reward(first, raw, second, weight) <= 1 + 1e-15


@given(unit, unit, unit)
def test_rewards_stay_in_range_and_follow_the_metric(first, second, weight):
    low, high = sorted((first, second))
    below, above = node_reward(low, True, weight), node_reward(high, True, weight)
    assert 0 <= below <= above <= 1 + 1e-15
    assert node_reward(low, False, weight) <= below


def test_a_metric_or_a_weight_outside_its_range_is_refused():
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=r"^metric"):
            node_reward(wrong, True, 0.1)
        with pytest.raises(ValueError, match=r"^format_weight"):
            node_reward(0.5, True, wrong)


def test_a_path_sums_its_weighted_turns_less_the_prices_of_its_searches():
    assert trajectory_value([0.4, 0.8], [0.5, 1.0]) == pytest.approx(0.5 * 0.4 + 0.8)
    assert trajectory_value([0.4], [0.5, 1.0]) == pytest.approx(0.2)
    assert trajectory_value([0.4, 0.6], [0.5, 1.0], [0.1, 0.1]) == pytest.approx(0.2 + 0.6 - 0.2)
    for rewards in ([], [0.1, 0.2, 0.3]):
        with pytest.raises(ValueError, match=f"{len(rewards)} rewards and 2"):
            trajectory_value(rewards, [0.5, 1.0])
