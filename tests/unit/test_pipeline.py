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


@pytest.mark.parametrize(
    ("processes", "requests", "seconds", "plan", "end", "most"),
    [
        (1, 1, 4.0, 0.0, 13.0, 2),  # requests from 1, 5 and 9 s on
        (2, 1, 4.0, 0.0, 9.0, 3),  # from 1 and 5 s on, and the other process's from 5 s on
        (1, 2, 6.0, 0.0, 13.0, 3),  # from 1, 3 and 7 s on
        (1, 3, 6.0, 0.0, 11.0, 4),  # from 1, 3 and 5 s on
        (1, 3, 4.0, 3.0, 17.0, 4),  # the same; the service computes four plans from 1 s on
    ],
)
def test_a_process_has_a_limited_number_of_requests(monkeypatch, processes, requests, seconds, plan, end, most):
    """Two questions on one engine: the answers of one end after 1 and 3 s, those of the other after 5."""
    lengths = iter([[[1.0, 3.0]], [[5.0, 5.0]]])
    monkeypatch.setattr(pipeline, "draw_lengths", lambda shape, drawn: next(lengths))
    shape = pipeline.Shape(2, (2,), 0, (2.0,), 0, 4.0, 0.0)
    rates = pipeline.Rates(1.0, 0.0, 1000.0, 64, 1.0)
    rollout = pipeline.Rollout(shape, rates, 1, processes, pipeline.Service(seconds, plan, requests), True)
    assert rollout.run()[0].now == pytest.approx(end)
    assert rollout.max_searches == most


def uneven(questions):
    """Questions whose answers differ in length, on an engine of four slots."""
    return pipeline.Shape(questions=questions, spread=0.6, **SHAPE), pipeline.Rates(slots=4, **RATES)


def test_streaming_is_never_slower():
    shape, rates = uneven(20)
    rollouts = [pipeline.Rollout(shape, rates, 1, 1, pipeline.Service(2.0), streamed) for streamed in (False, True)]
    (in_turns,), (streamed,) = (rollout.run() for rollout in rollouts)
    assert streamed.now < in_turns.now
    assert rollouts[0].max_searches == 20 * 6, "the second turns are searched together"
    assert rollouts[1].max_searches < 20 * 6


@pytest.mark.parametrize(
    ("trainers", "update", "seconds", "waits"),
    [(0, 6.0, 18.0, (9, 3, 0, 0, 4)), (1, 6.0, 12.0, (9, 3, 4, 0, 6)), (1, 12.0, 14.0, (9, 3, 0, 4, 6))],
)
def test_idle_time_is_counted_by_what_is_waited_for(trainers, update, seconds, waits):
    """Two GPUs with four slots sample for 10 and 6 seconds, the last 2 and 1 of them without a sequence."""
    engines = [pipeline.Engine(pipeline.Rates(slots=4, **RATES)) for _ in range(2)]
    for engine, now, searching in zip(engines, (10.0, 6.0), (2.0, 1.0), strict=True):
        engine.now, engine.busy, engine.searching = now, 16.0, searching
    expected = [gpu_seconds / ((2 + trainers) * seconds) for gpu_seconds in waits]
    assert pipeline.idle(engines, trainers, update, 2.0) == (seconds, pytest.approx(expected))


def test_a_plan_has_a_row_for_every_way_to_run_a_step(capsys, monkeypatch):
    for gpus, names in ((4, 4), (1, 2)):
        options = ["--gpus", str(gpus), "--train-gpus", "2", "--questions", "8"]
        monkeypatch.setattr("sys.argv", ["pipeline.py", *options])
        pipeline.main()
        rows = [line for line in capsys.readouterr().out.splitlines() if line.count("%") == 6]
        assert len(rows) == names


def test_the_memory_of_a_gpu_limits_the_sequences_of_an_engine():
    shape = pipeline.Shape(512, (4, 4), 600, (300, 300), 900, 3.4, 0.6)
    sequence = (600 + 4 * 1200 + 16 * 300) / 16 * 18e3 * 8 / 2**30
    free = 0.28 * 79 - 16e9 / 2**30 - 3
    assert pipeline.slots_of(shape, 8.0, 0.28, 256) == int(free / sequence) < 50
    assert pipeline.slots_of(shape, 8.0, 0.9, 256) == 256
    with pytest.raises(SystemExit, match="20%"):
        pipeline.slots_of(shape, 8.0, 0.2, 256)
