"""The exact tests against scipy, against counting by hand, and with values that are missing."""

import numpy as np
import pytest
from querylect.eval.statistics import compare_exactly
from scipy.stats import binomtest, wilcoxon


def test_discordant_pairs_by_hand():
    """Five pairs differ, four for a: P(X ≥ 4) of 5 fair coins is (5 + 1) / 32; pairs that agree do not count."""
    a, b = [1, 1, 1, 1, 0, 1, 0, 0], [0, 0, 0, 0, 1, 1, 0, 0]
    assert compare_exactly(b, a).p == pytest.approx(31 / 32)
    assert compare_exactly(a, b, "less").p == pytest.approx(31 / 32)
    result = compare_exactly(a, b)
    assert (result.test, result.n, result.higher, result.lower, result.p) == (
        "binomial",
        8,
        4,
        1,
        pytest.approx(6 / 32),
    )
    assert (result.mean_a, result.mean_b) == (5 / 8, 2 / 8)


def test_signed_ranks_by_hand():
    """Differences 1, 2, 3, −4 of distinct size: W+ = 6 of 10; of 16 signs, 7 reach at least 6."""
    a, b = [0.1, 0.2, 0.3, 0.0], [0.0, 0.0, 0.0, 0.4]
    reached = sum(
        sum(rank for rank, sign in enumerate(signs, start=1) if sign) >= 6 for signs in np.ndindex(2, 2, 2, 2)
    )
    assert reached == 7
    result = compare_exactly(a, b)
    assert (result.test, result.p) == ("wilcoxon", pytest.approx(reached / 16))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("alternative", ["greater", "less", "two-sided"])
def test_against_scipy(seed, alternative):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 2, 60).astype(float), rng.integers(0, 2, 60).astype(float)
    higher, lower = int((a > b).sum()), int((a < b).sum())
    expected = binomtest(higher, higher + lower, 0.5, alternative=alternative).pvalue
    assert compare_exactly(a.tolist(), b.tolist(), alternative).p == pytest.approx(expected)
    x, y = rng.random(40), rng.random(40)
    assert compare_exactly(x.tolist(), y.tolist(), alternative).p == pytest.approx(
        wilcoxon(x, y, alternative=alternative).pvalue
    )


def test_missing_values_leave_their_pair_out_and_unequal_lengths_are_refused():
    result = compare_exactly([1, None, 1, 0], [0, 1, None, 0])
    assert (result.n, result.left_out, result.higher, result.lower, result.mean_a) == (2, 2, 1, 0, 0.5)
    assert compare_exactly([None, 1], [1, None]) is None, "no pair"
    with pytest.raises(ValueError, match="longer"):
        compare_exactly([1], [1, 0])
