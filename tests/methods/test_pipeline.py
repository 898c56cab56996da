"""The simulated time line of a step (benchmarks/pipeline.py) against what can be computed by hand."""

import pytest
from querylect.benchmarks import pipeline

RATES = {"token": 0.01, "sequence": 0.001, "prefill": 1000.0, "update": 100.0}
SHAPE = {"branching": (2, 3), "prompt": 100, "answers": (10, 20), "observation": 50, "longest": 4.0}


@pytest.mark.parametrize("streamed", [False, True])
def test_equal_lengths_take_what_is_computed_by_hand(streamed):
    """One question: two first turns together, a search, then six second turns, a search; nothing overlaps."""
    shape = pipeline.Shape(questions=1, spread=0.0, **SHAPE)
    rollout = pipeline.Rollout(shape, pipeline.Rates(slots=64, **RATES), 1, 1, pipeline.Service(2.0, 0.5), streamed)
    (sampled,) = rollout.run()
    searches = 2.0 + 2 * 0.5 + 2.0 + 6 * 0.5
    by_hand = 0.1 + 10 * (0.01 + 2 * 0.001) + 2 * 0.05 + 20 * (0.01 + 6 * 0.001) + searches
    assert (sampled.searching, rollout.max_searches) == (pytest.approx(searches), 6)
    assert sampled.now == pytest.approx(by_hand)
    decoding = 10 * (0.01 + 2 * 0.001) * 2 + 20 * (0.01 + 6 * 0.001) * 6
    assert sampled.busy == pytest.approx(decoding + 0.2 * 64, rel=1e-6)
    assert shape.packed_tokens() == 100 + 2 * (10 + 50) + 6 * 20
