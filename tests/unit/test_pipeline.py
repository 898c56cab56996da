"""The simulated time line of a step (benchmarks/pipeline.py) against what can be computed by hand."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def pipeline():
    path = Path(__file__).parents[2] / "benchmarks" / "pipeline.py"
    spec = importlib.util.spec_from_file_location("pipeline", path)
    module = sys.modules["pipeline"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RATES = {"token": 0.01, "sequence": 0.001, "prefill": 1000.0, "update": 100.0}
SHAPE = {"branching": (2, 3), "prompt": 100, "answers": (10, 20), "observation": 50, "longest": 4.0}


@pytest.mark.parametrize("streamed", [False, True])
def test_equal_lengths_take_what_is_computed_by_hand(pipeline, streamed):
    """One question: two first turns together, one search, then six second turns; nothing overlaps."""
    shape = pipeline.Shape(questions=1, spread=0.0, **SHAPE)
    sampled = pipeline.sample(shape, pipeline.Rates(slots=64, **RATES), 1, 2.0, streamed, 0)
    by_hand = 0.1 + 10 * (0.01 + 2 * 0.001) + 2.0 + 2 * 0.05 + 20 * (0.01 + 6 * 0.001)
    assert sampled.seconds == pytest.approx(by_hand)
    decoding = 10 * (0.01 + 2 * 0.001) * 2 + 20 * (0.01 + 6 * 0.001) * 6
    assert sampled.busy == pytest.approx(decoding + 0.2 * 64, rel=1e-6)
    assert shape.packed_tokens() == 100 + 2 * (10 + 50) + 6 * 20


def test_slots_are_respected_and_streaming_is_never_slower(pipeline):
    shape = pipeline.Shape(questions=20, spread=0.6, **SHAPE)
    rates = pipeline.Rates(slots=4, **RATES)
    in_turns, streamed = (pipeline.sample(shape, rates, 20, 2.0, each, 1) for each in (False, True))
    assert max(number for _, number in in_turns.activity) == 4
    assert streamed.seconds < in_turns.seconds


def test_rates_of_the_first_half_of_a_run_predict_the_second(pipeline, tmp_path, capsys):
    rows = [
        {"seconds/generate": n, "seconds/update": 2.0 * n, "seconds/step": 3.0 * n + 1, "tokens/sampled": 10 * n,
         "tokens/packed": 40 * n}
        for n in (1, 2, 3, 4, 5, 6)
    ]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pipeline.check(tmp_path)
    printed = capsys.readouterr().out
    assert "10 sampled and 20 packed tokens a second, 1.00 s besides" in printed
    assert "median 1.00, 100% of 3 steps" in printed
    (tmp_path / "metrics.jsonl").write_text(json.dumps(rows[0]) + "\n")
    with pytest.raises(SystemExit, match="1 steps"):
        pipeline.check(tmp_path)
