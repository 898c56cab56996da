"""RE-MMD² against a direct computation over all pairs, its p and its interval against theory."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from querylect.eval.drift.mmd import PooledSides, compare, drawn_weights, gaussian, linear, median_sigma, permuted_signs
from scipy import stats
from scipy.sparse import csr_matrix


def normal(shape, seed=0, shift=0.0):
    return np.random.default_rng(seed).normal(shift, 1.0, size=shape)


def disjoint(n, m):
    """A layout without a shared question."""
    return PooledSides(n, np.arange(n + m))


def paired(n):
    """A layout of the same n questions on both sides."""
    return PooledSides(n, np.concatenate([np.arange(n), np.arange(n)]))


def gram(vectors, sigma):
    """The Gaussian kernel matrix, pair by pair."""
    return np.array([[math.exp(-math.fsum((a - b) ** 2) / (2 * sigma**2)) for b in vectors] for a in vectors])


def direct(matrix, n):
    """Eq. 6 as it is written."""
    m = len(matrix) - n
    x = sum(matrix[i, j] for i in range(n) for j in range(n) if i != j) / (n * (n - 1))
    y = sum(matrix[i, j] for i in range(n, n + m) for j in range(n, n + m) if i != j) / (m * (m - 1))
    return x + y - 2 * sum(matrix[i, j] for i in range(n) for j in range(n, n + m)) / (n * m)


def direct_across(matrix, n, questions):
    """Eq. 6 over pairs of different questions."""

    def mean(rows, columns):
        return np.mean([matrix[i, j] for i in rows for j in columns if questions[i] != questions[j]])

    first, second = range(n), range(n, len(matrix))
    return mean(first, first) + mean(second, second) - 2 * mean(first, second)


def both_kernels(vectors, sigma=1.3):
    """Each kernel's matrix, and the same pair by pair."""
    yield gaussian(vectors, sigma), gram(vectors, sigma)
    yield linear(csr_matrix(vectors)), vectors @ vectors.T


def drift(matrix, layout, permutations=19, resamples=19, seed=0, **options):
    return compare(matrix, layout, permutations=permutations, resamples=resamples, seed=seed, **options)


@pytest.mark.parametrize(("n", "m"), [(7, 11), (2, 30)])
@pytest.mark.parametrize("estimator", ["different", "eq6"])
def test_without_shared_questions_both_estimators_are_equation_6(n, m, estimator):
    vectors = normal((n + m, 5)).astype(np.float32)
    expected = direct(gram(vectors.astype(float), 1.7), n)
    result = drift(gaussian(vectors, 1.7), disjoint(n, m), estimator=estimator)
    assert result.value == pytest.approx(expected, rel=1e-10, abs=1e-13)


QUESTIONS = np.array([0, 1, 2, 2, 3, 4, 0, 1, 1, 4, 5, 6, 7, 5])
"""Of 6 and 8 queries: some questions shared, some alone, some with several queries."""


def test_pairs_of_one_question_are_left_out_across_questions():
    for kernel, matrix in both_kernels(normal((14, 3))):
        layout = PooledSides(6, QUESTIONS)
        assert drift(kernel, layout, estimator="eq6").value == pytest.approx(direct(matrix, 6), rel=1e-10)
        assert drift(kernel, layout).value == pytest.approx(direct_across(matrix, 6, QUESTIONS), rel=1e-10)


def test_a_permuted_value_is_the_direct_one_of_the_permuted_layout():
    """p counted from the matrix itself, draw by draw."""
    layout = PooledSides(6, QUESTIONS)
    signs = permuted_signs(layout, 200, seed=8)
    for kernel, matrix in both_kernels(normal((14, 3), seed=5)):
        extreme, observed = 0, direct_across(matrix, 6, QUESTIONS)
        extreme6, observed6 = 0, direct(matrix, 6)
        for draw in range(200):
            order = np.concatenate([np.flatnonzero(signs[:, draw] > 0), np.flatnonzero(signs[:, draw] < 0)])
            n = int((signs[:, draw] > 0).sum())
            permuted = matrix[np.ix_(order, order)]
            extreme += direct_across(permuted, n, QUESTIONS[order]) >= observed - 1e-12
            extreme6 += direct(permuted, n) >= observed6 - 1e-12
        usual = drift(kernel, layout, permutations=200, seed=8)
        strict = drift(kernel, layout, permutations=200, seed=8, estimator="eq6")
        assert (usual.p, strict.p) == ((extreme + 1) / 201, (extreme6 + 1) / 201)


def test_a_resampled_value_is_the_direct_one_of_the_drawn_questions():
    """The interval from queries written out as often as their question was drawn, each copy a question of its own."""
    layout = PooledSides(6, QUESTIONS)
    weights = drawn_weights(layout, 60, seed=1)
    for kernel, matrix in both_kernels(normal((14, 3), seed=6)):
        values, across_values = [], []
        for draw in range(60):
            copies = [(i, copy) for i in range(14) for copy in range(weights[QUESTIONS[i], draw])]
            sides = [[pair for pair in copies if pair[0] < 6], [pair for pair in copies if pair[0] >= 6]]

            def mean(left, right, matrix=matrix, copies=True):
                entries = [
                    matrix[i, j]
                    for i, a in left
                    for j, b in right
                    if (i, a) != (j, b) and (QUESTIONS[i] != QUESTIONS[j] or (copies and a == b))
                ]
                return np.mean(entries) if entries else np.nan

            values.append(mean(sides[0], sides[0]) + mean(sides[1], sides[1]) - 2 * mean(*sides))
            mean = partial(mean, copies=False)
            across_values.append(mean(sides[0], sides[0]) + mean(sides[1], sides[1]) - 2 * mean(*sides))
        for estimator, expected in (("eq6", values), ("different", across_values)):
            result = drift(kernel, layout, resamples=60, seed=1, estimator=estimator)
            assert (result.low, result.high) == pytest.approx(tuple(np.nanquantile(expected, [0.025, 0.975])), rel=1e-9)


def test_the_expectation_is_0_for_two_halves_of_one_set():
    values = []
    everything = normal((60, 3), seed=9)
    for split in range(300):
        shuffled = everything[np.random.default_rng(split).permutation(60)]
        values.append(drift(gaussian(shuffled, 1.5), disjoint(30, 30), 1, 1).value)
    low, high = stats.t.interval(0.99, 299, np.mean(values), np.std(values, ddof=1) / math.sqrt(300))
    assert low < 0 < high
    assert min(values) < 0, "an estimate that is never below 0 is not unbiased"


def test_value_and_interval_of_two_normals_agree_with_the_closed_form():
    """E k(x, y) of N(0, 1) and N(δ, 1) is σ/√(σ² + 2)·exp(−δ²/2(σ² + 2)); the interval covers it as it says."""
    sigma, shift = 1.2, 0.8
    scale = sigma / math.sqrt(sigma**2 + 2)
    expected = 2 * scale * (1 - math.exp(-(shift**2) / (2 * (sigma**2 + 2))))
    values, covered = [], 0
    for seed in range(200):
        vectors = np.concatenate([normal((60, 1), seed), normal((60, 1), 1000 + seed, shift)])
        result = drift(gaussian(vectors, sigma), disjoint(60, 60), 1, 200, seed=seed)
        values.append(result.value)
        covered += result.low <= expected <= result.high
    assert np.mean(values) == pytest.approx(expected, abs=4 * np.std(values) / math.sqrt(200))
    assert 178 <= covered <= 199


def test_p_is_uniform_over_200_splits_of_one_set():
    everything = normal((60, 2), seed=2)
    p_values = []
    for split in range(200):
        shuffled = everything[np.random.default_rng(split).permutation(60)]
        p_values.append(drift(gaussian(shuffled, 1.0), disjoint(25, 35), 199, 1, seed=split).p)
    assert stats.kstest(p_values, "uniform").pvalue > 0.05
    assert 0.01 <= np.mean(np.array(p_values) <= 0.05) <= 0.09


def test_p_is_uniform_where_both_sides_answer_the_same_questions():
    """Each question moves both of its queries; some questions have a query on one side only."""
    p_values, unpaired_p_values = [], []
    for trial in range(200):
        rng = np.random.default_rng(trial)
        topics = 2 * rng.normal(size=(40, 2))
        questions = np.concatenate([np.arange(30), np.arange(20), np.arange(30, 40)])
        vectors = topics[questions] + 0.3 * rng.normal(size=(60, 2))
        p_values.append(drift(gaussian(vectors, 2.0), PooledSides(30, questions), 199, 1, seed=trial).p)
        unpaired_p_values.append(drift(gaussian(vectors, 2.0), disjoint(30, 30), 199, 1, seed=trial).p)
    assert stats.kstest(p_values, "uniform").pvalue > 0.05
    assert stats.kstest(unpaired_p_values, "uniform").pvalue < 1e-6, "as if the questions were unrelated"


def test_eq_6_is_pulled_down_by_pairs_of_one_question_and_the_other_estimate_is_not():
    values, literal = [], []
    for trial in range(200):
        rng = np.random.default_rng(trial)
        topics = rng.normal(size=(20, 1))
        kernel = gaussian(np.concatenate([topics, topics]) + 0.1 * rng.normal(size=(40, 1)), 1.0)
        values.append(drift(kernel, paired(20), 1, 1).value)
        literal.append(drift(kernel, paired(20), 1, 1, estimator="eq6").value)
    assert np.mean(literal) < -0.02
    assert abs(np.mean(values)) < 3 * np.std(values) / math.sqrt(200)


def test_permutations_swap_shared_questions_and_keep_the_other_counts():
    signs = permuted_signs(PooledSides(6, QUESTIONS), 500, seed=0)
    for question in (0, 1, 4):
        first = signs[:6][QUESTIONS[:6] == question]
        second = signs[6:][QUESTIONS[6:] == question]
        assert (first == -second[0]).all()
        assert (second == second[0]).all()
        assert 200 < (first[0] > 0).sum() < 300
    alone = np.stack([signs[question == QUESTIONS][0] for question in (2, 3, 5, 6, 7)])
    for row, question in zip(alone, (2, 3, 5, 6, 7), strict=True):
        assert (signs[question == QUESTIONS] == row).all()
    assert ((alone > 0).sum(axis=0) == 2).all()


def test_questions_are_drawn_among_their_kind():
    weights = drawn_weights(PooledSides(6, QUESTIONS), 300, seed=0).astype(int)
    for kind in ([0, 1, 4], [2, 3], [5, 6, 7]):
        assert (weights[kind].sum(axis=0) == len(kind)).all()
        assert weights[kind].mean() == pytest.approx(1.0)
        assert len(np.unique(weights[kind], axis=1).T) > 2


@given(st.integers(2, 12), st.integers(2, 12), st.integers(0, 2**31), st.floats(0.05, 20.0), st.booleans())
@settings(max_examples=60)
def test_properties_of_any_input(n, m, seed, sigma, share):
    rng = np.random.default_rng(seed)
    vectors = rng.integers(-2, 3, size=(n + m, 2)).astype(float)
    questions = np.concatenate([np.arange(n), np.arange(m)]) if share else np.arange(n + m)
    result = drift(gaussian(vectors, sigma), PooledSides(n, questions))
    assert 1 / 20 <= result.p <= 1
    assert result.value <= 2 + 1e-9
    swapped = drift(
        gaussian(np.concatenate([vectors[n:], vectors[:n]]), sigma),
        PooledSides(m, np.concatenate([questions[n:], questions[:n]])),
    )
    assert swapped.value == pytest.approx(result.value, abs=1e-12)
    order = np.concatenate([rng.permutation(n), n + rng.permutation(m)])
    moved = drift(gaussian(vectors[order], sigma), PooledSides(n, questions[order]))
    assert moved.value == pytest.approx(result.value, abs=1e-12)


@pytest.mark.parametrize("size", [2, 40, 300])
def test_the_same_queries_on_both_sides_are_no_evidence(size):
    """Swapping equal queries changes nothing: every permuted value ties with the observed one, rounding or not."""
    vectors = normal((size, 8)).astype(np.float32)
    both = np.concatenate([vectors, vectors])
    assert drift(gaussian(both, 2.0), paired(size), 299).p == 1.0
    assert drift(linear(csr_matrix(both.astype(float))), paired(size), 299).p == 1.0


def test_sigma_is_the_median_distance():
    vectors = normal((50, 4)).astype(np.float32)
    distances = [math.dist(vectors[i], vectors[j]) for i in range(50) for j in range(i)]
    assert median_sigma([vectors[:20], vectors[20:]], 0, sample=100) == pytest.approx(np.median(distances))
    assert median_sigma([np.ones((9, 2)), np.ones((4, 2))], 0, sample=100) == 0.0
