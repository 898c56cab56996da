"""RE-MMD² against a direct computation over all pairs, its p and its interval against theory."""

import math

import numpy as np
import pytest
from querylect.eval.mmd import compare, drawn_weights, gaussian, linear, median_sigma, permuted_sides
from scipy import stats
from scipy.sparse import csr_matrix

QUESTIONS = np.array([0, 1, 2, 2, 3, 4, 0, 1, 1, 4, 5, 6, 7, 5])
"""Of 6 and 8 queries: some questions shared, some alone, some with several queries."""


def normal(shape, seed=0, shift=0.0):
    return np.random.default_rng(seed).normal(shift, 1.0, size=shape)


def both_kernels(vectors, sigma=1.3):
    """Each kernel's matrix, and the same pair by pair."""
    gram = [[math.exp(-math.fsum((a - b) ** 2) / (2 * sigma**2)) for b in vectors] for a in vectors]
    yield gaussian(vectors, sigma), np.array(gram)
    yield linear(csr_matrix(vectors)), vectors @ vectors.T


def direct(matrix, first, second, questions):
    """Eq. 6 over pairs of different questions; `first` and `second` list (query, copy of its question)."""

    def mean(left, right):
        pairs = [matrix[i, j] for i, _ in left for j, _ in right if questions[i] != questions[j]]
        return sum(pairs) / len(pairs) if pairs else math.nan

    return mean(first, first) + mean(second, second) - 2 * mean(first, second)


def drift(matrix, n, questions, permutations=19, resamples=19, seed=0):
    return compare(matrix, n, questions, permutations=permutations, resamples=resamples, seed=seed)


def test_value_p_and_interval_are_those_of_an_independent_computation():
    sides, weights = permuted_sides(6, QUESTIONS, 200, seed=8), drawn_weights(6, QUESTIONS, 60, seed=8)
    for kernel, matrix in both_kernels(normal((14, 3), seed=5)):
        copies = [[(i, copy) for copy in range(60)] for i in range(14)]

        def value(side, times, matrix=matrix, copies=copies):
            chosen = [copy for i in range(14) for copy in copies[i][: int(times[QUESTIONS[i]])]]
            first = [copy for copy in chosen if side[copy[0]]]
            return direct(matrix, first, [copy for copy in chosen if not side[copy[0]]], QUESTIONS)

        once, as_it_is = np.ones(8), np.arange(14) < 6
        observed = value(as_it_is, once)
        extreme = sum(value(side, once) >= observed - 1e-12 for side in sides.T)
        low, high = np.nanquantile([value(as_it_is, times) for times in weights.T], [0.025, 0.975])
        result = drift(kernel, 6, QUESTIONS, permutations=200, resamples=60, seed=8)
        assert result["p"] == (extreme + 1) / 201
        assert (result["value"], result["low"], result["high"]) == pytest.approx((observed, low, high), abs=1e-9)


@pytest.mark.parametrize(("n", "m"), [(7, 11), (2, 30)])
def test_without_shared_questions_it_is_equation_6_as_written(n, m):
    vectors = normal((n + m, 5))
    for kernel, matrix in both_kernels(vectors, 1.7):
        x, y = matrix[:n, :n], matrix[n:, n:]
        expected = (x.sum() - np.trace(x)) / (n * (n - 1)) + (y.sum() - np.trace(y)) / (m * (m - 1))
        expected -= 2 * matrix[:n, n:].mean()
        assert drift(kernel, n, np.arange(n + m))["value"] == pytest.approx(expected, abs=1e-9)


def test_value_and_interval_of_two_normals_agree_with_the_closed_form():
    """E k(x, y) of N(0, 1) and N(δ, 1) is σ/√(σ² + 2)·exp(−δ²/2(σ² + 2)); the interval covers it as it says."""
    sigma, shift = 1.2, 0.8
    scale = sigma / math.sqrt(sigma**2 + 2)
    expected = 2 * scale * (1 - math.exp(-(shift**2) / (2 * (sigma**2 + 2))))
    values, covered = [], 0
    for seed in range(200):
        vectors = np.concatenate([normal((60, 1), seed), normal((60, 1), 1000 + seed, shift)])
        result = drift(gaussian(vectors, sigma), 60, np.arange(120), 1, 200, seed=seed)
        values.append(result["value"])
        covered += result["low"] <= expected <= result["high"]
    assert np.mean(values) == pytest.approx(expected, abs=4 * np.std(values) / math.sqrt(200))
    assert 178 <= covered <= 199


def test_p_and_value_are_unbiased_where_both_sides_answer_the_same_questions():
    """Each question moves both of its queries; some questions have a query on one side only."""
    values, p_values, unpaired_p_values = [], [], []
    questions = np.concatenate([np.arange(30), np.arange(20), np.arange(30, 40)])
    for trial in range(200):
        rng = np.random.default_rng(trial)
        vectors = 2 * rng.normal(size=(40, 2))[questions] + 0.3 * rng.normal(size=(60, 2))
        result = drift(gaussian(vectors, 2.0), 30, questions, 199, 1, seed=trial)
        values.append(result["value"])
        p_values.append(result["p"])
        unpaired_p_values.append(drift(gaussian(vectors, 2.0), 30, np.arange(60), 199, 1, seed=trial)["p"])
    assert abs(np.mean(values)) < 3 * np.std(values) / math.sqrt(200)
    assert stats.kstest(p_values, "uniform").pvalue > 0.05
    assert stats.kstest(unpaired_p_values, "uniform").pvalue < 1e-6, "as if the questions were unrelated"


def test_permutations_swap_shared_questions_and_keep_the_other_counts():
    sides = permuted_sides(6, QUESTIONS, 500, seed=0)
    for question in (0, 1, 4):
        first, second = sides[:6][QUESTIONS[:6] == question], sides[6:][QUESTIONS[6:] == question]
        assert (first == ~second[0]).all()
        assert (second == second[0]).all()
        assert 200 < first[0].sum() < 300
    alone = np.stack([sides[question == QUESTIONS][0] for question in (2, 3, 5, 6, 7)])
    for row, question in zip(alone, (2, 3, 5, 6, 7), strict=True):
        assert (sides[question == QUESTIONS] == row).all()
    assert (alone.sum(axis=0) == 2).all()


def test_questions_are_drawn_among_their_kind():
    weights = drawn_weights(6, QUESTIONS, 300, seed=0)
    for kind in ([0, 1, 4], [2, 3], [5, 6, 7]):
        assert (weights[kind].sum(axis=0) == len(kind)).all()
        assert len(np.unique(weights[kind], axis=1).T) > 2


@pytest.mark.parametrize("size", [2, 300])
def test_the_same_queries_on_both_sides_are_no_evidence(size):
    """Swapping equal queries changes nothing: every permuted value ties with the observed one, rounding or not."""
    vectors = normal((size, 8)).astype(np.float32)
    both, questions = np.concatenate([vectors, vectors]), np.concatenate([np.arange(size)] * 2)
    assert drift(gaussian(both, 2.0), size, questions, 299)["p"] == 1.0
    assert drift(linear(csr_matrix(both.astype(float))), size, questions, 299)["p"] == 1.0


def test_sigma_is_the_median_distance():
    vectors = normal((50, 4)).astype(np.float32)
    distances = [math.dist(vectors[i], vectors[j]) for i in range(50) for j in range(i)]
    assert median_sigma([vectors[:20], vectors[20:]], 0, sample=100) == pytest.approx(np.median(distances))
    assert median_sigma([np.ones((9, 2)), np.ones((4, 2))], 0, sample=100) == 0.0
