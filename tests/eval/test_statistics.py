"""Statistics against closed forms, exact enumeration and scipy."""

import math

import numpy as np
import pytest
from querylect.eval.statistics import (
    Stratum,
    compare_exactly,
    compare_strata,
    holm,
    mean_cis,
    paired_permutation_test,
)
from scipy import stats

A = [0.63, 0.0, 1.0, 0.5, 0.43, 0.39, 1.0, 0.0, 0.31]
B = [0.50, 0.0, 0.63, 0.5, 0.63, 0.0, 0.39, 0.36, 0.0]


def bootstrap_ci(values, resamples, seed):
    """The interval of one mean."""
    return mean_cis({"": [(1.0, values)]}, resamples, seed)[""]


def test_permutation_test_agrees_with_the_exact_one_of_scipy():
    """Of all 2⁹ sign patterns."""
    exact = stats.permutation_test(
        (np.array(A), np.array(B)),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=math.inf,
    ).pvalue
    error = 4 * math.sqrt(exact * (1 - exact) / 40_000) + 1 / 40_000
    assert paired_permutation_test(A, B, 40_000, seed=11) == pytest.approx(exact, abs=error)


def test_p_is_at_least_one_over_m_plus_one_and_exactly_one_for_equal_values():
    assert paired_permutation_test([1.0] * 60, [0.0] * 60, 500, seed=0) == 1 / 501
    assert paired_permutation_test(A, A, 1000, seed=0) == 1.0


def test_a_rounding_error_does_not_count_as_less_extreme():
    """No sign pattern of 0.3 + 0.1 − 0.2 − 0.1 has a sum closer to 0, but in floats one of them has."""
    assert paired_permutation_test([0.3, 0.1, 0.0, 0.0], [0.0, 0.0, 0.2, 0.1], 1000, seed=0) == 1.0


def test_bootstrap_interval_is_close_to_scipy():
    values = np.random.default_rng(0).beta(0.4, 0.6, size=150)
    low, high = bootstrap_ci(list(values), 20_000, seed=1)
    reference = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", random_state=np.random.default_rng(4)
    ).confidence_interval
    assert (low, high) == pytest.approx((reference.low, reference.high), abs=0.004)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def compare(*strata):
    """Strata (weight, a, b)."""
    return compare_strata([Stratum(*stratum) for stratum in strata], resamples=200, permutations=2000, seed=0)


def effect(a, b):
    return compare((1.0, a, b)).effect_size


def test_effect_size_by_hand():
    # Differences 1, 2, 3: mean 2, standard deviation 1.
    assert effect([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == pytest.approx(2.0)
    assert (effect([0.3, 0.3], [0.3, 0.3]), effect([0.5, 0.6], [0.4, 0.5]), effect([0.5], [0.4])) == (0.0, None, None)
    assert effect(A, B) == pytest.approx(stats.ttest_rel(A, B).statistic / math.sqrt(len(A)))


def test_pairs_with_a_failed_search_are_left_out_and_counted():
    result = compare((1.0, [1.0, None, 0.5, 0.1 + 0.2, None], [0.0, 0.2, None, 0.3, None]))
    assert (result.n, result.left_out) == (2, 3)
    assert (result.mean_a, result.mean_b, result.difference) == (0.65, 0.15, 0.5)
    assert (result.wins, result.ties, result.losses) == (1, 1, 0)
    assert compare((1.0, [None], [1.0])) is None


def test_every_figure_of_an_average_weighs_sets_and_not_questions():
    """A gain on the two questions of one set weighs as much as an equal loss on the hundred of the other."""
    gain, loss = (0.5, [1.0, 1.0], [0.0, 0.0]), (0.5, [0.0] * 100, [1.0] * 100)
    result = compare(gain, loss)
    assert (result.difference, result.p, result.effect_size) == pytest.approx((0.0, 1.0, 0.0))
    assert (result.n, result.wins, result.ties, result.losses) == (102, 51, 0, 51)
    assert compare(gain, (0.5, [None], [1.0])) is None
    doubled = compare((0.5, A, B), (0.5, A, B))
    assert doubled.effect_size == pytest.approx(effect(A * 2, B * 2)), "equal weights: as if pooled"


def test_metrics_that_share_their_draws_have_the_intervals_that_each_has_alone():
    strata = {
        "ndcg@10": [(0.5, [0.1, 0.5, 0.9, 0.4]), (0.5, [1.0, 0.0, 0.3])],
        "mrr@10": [(0.5, [1.0, 0.2, 0.0, 0.5]), (0.5, [0.5, 0.5, 1.0])],
        "recall@10": [(1.0, [0.0, 1.0, 1.0])],
    }
    alone = {name: mean_cis({name: values}, 200, 3)[name] for name, values in strata.items()}
    assert mean_cis(strata, 200, 3) == alone


def test_discordant_pairs_by_hand():
    """Five pairs differ, four for a: P(X ≥ 4) of 5 fair coins is (5 + 1) / 32; pairs that agree do not count."""
    a, b = [1, 1, 1, 1, 0, 1, 0, 0, None], [0, 0, 0, 0, 1, 1, 0, 0, 1]
    result = compare_exactly(a, b, "greater")
    assert result == {
        "test": "binomial", "n": 8, "mean_a": 5 / 8, "mean_b": 2 / 8, "higher": 4, "lower": 1,
        "p": pytest.approx(6 / 32),
    }  # fmt: skip
    assert compare_exactly(a, b, "less")["p"] == pytest.approx(31 / 32)
    assert compare_exactly([None, 1], [1, None], "less") is None


def test_signed_ranks_by_hand():
    """Differences 1, 2, 3, −4 of distinct size: W+ = 6 of 10; of 16 signs, 7 reach at least 6."""
    reached = sum(sum(rank for rank, sign in enumerate(signs, 1) if sign) >= 6 for signs in np.ndindex(2, 2, 2, 2))
    result = compare_exactly([0.1, 0.2, 0.3, 0.0], [0.0, 0.0, 0.0, 0.4], "greater")
    assert (result["test"], result["p"]) == ("wilcoxon", pytest.approx(reached / 16))
