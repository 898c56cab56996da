"""Fusion of rankings: hand-computed cases and invariants."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from querylect.envs.retrievers.base import Scored, best, fuse

A = [(7, 3.0), (2, 2.0), (5, 1.0)]
B = [(2, 2.5), (9, 2.0)]


def scored(pairs):
    return Scored(np.array([d for d, _ in pairs], dtype=np.int64), np.array([s for _, s in pairs], dtype=np.float64))


def pairs(ranking):
    return list(zip(ranking.documents.tolist(), ranking.scores.tolist(), strict=True))


def fused(how, *rankings, k=10):
    return pairs(fuse([scored(ranking) for ranking in rankings], how, k))


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("max", [(7, 3.0), (2, 2.5), (9, 2.0), (5, 1.0)]),
        ("sum", [(2, 4.5), (7, 3.0), (9, 2.0), (5, 1.0)]),
        ("rrf", [(2, 1 / 62 + 1 / 61), (7, 1 / 61), (9, 1 / 62), (5, 1 / 63)]),
        ("interleave", [(7, 1.0), (2, 1 / 2), (9, 1 / 3), (5, 1 / 4)]),
    ],
)
def test_fusion_by_hand(how, expected):
    assert fused(how, A, B) == [(document, pytest.approx(score, abs=1e-15)) for document, score in expected]


def test_a_tie_goes_to_the_better_rank_then_to_the_earlier_ranking():
    for how in ("max", "sum"):
        assert [d for d, _ in fused(how, [(4, 2.0), (8, 1.0)], [(3, 1.0)], [(1, 1.0)])] == [4, 3, 1, 8]
    documents = np.array([9, 4, 6, 1], dtype=np.int64)
    assert pairs(best(documents, np.array([1.0, 2.0, 1.0, 1.0]), 3)) == [(4, 2.0), (1, 1.0), (6, 1.0)]


SCORES = st.integers(-8, 8).map(float)
RANKINGS = st.lists(
    st.dictionaries(st.integers(0, 12), SCORES, max_size=8).map(
        lambda scores: sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))
    ),
    min_size=1,
    max_size=4,
)


@given(RANKINGS, st.sampled_from(["max", "sum", "rrf", "interleave"]), st.integers(1, 15))
def test_a_fused_ranking_falls_and_names_each_found_document_once(rankings, how, k):
    result = fused(how, *rankings, k=k)
    ranked = {document for ranking in rankings for document, _ in ranking}
    documents = [document for document, _ in result]
    assert len(documents) == len(set(documents)) == min(k, len(ranked))
    assert set(documents) <= ranked
    scores = [score for _, score in result]
    assert scores == sorted(scores, reverse=True)
