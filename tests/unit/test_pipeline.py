"""The simulated time line of a step (benchmarks/pipeline.py) against what can be computed by hand."""

import json

import pytest
from querylect.benchmarks import pipeline

from ..jsonl import write_jsonl

RATES = {"token": 0.01, "sequence": 0.001, "prefill": 1000.0, "update": 100.0}
SHAPE = {"branching": (2, 3), "prompt": 100, "answers": (10, 20), "observation": 50, "longest": 4.0}


@pytest.mark.parametrize("streamed", [False, True])
def test_equal_lengths_take_what_is_computed_by_hand(streamed):
    """One question: two first turns together, a search, then six second turns, a search; nothing overlaps."""
    shape = pipeline.Shape(questions=1, spread=0.0, **SHAPE)
    sampled = pipeline.sample(shape, pipeline.Rates(slots=64, **RATES), 1, 2.0, streamed, 0)
    by_hand = 0.1 + 10 * (0.01 + 2 * 0.001) + 2.0 + 2 * 0.05 + 20 * (0.01 + 6 * 0.001) + 2.0
    assert (sampled.searching, sampled.open_searches) == (pytest.approx(4.0), 6)
    assert sampled.seconds == pytest.approx(by_hand)
    decoding = 10 * (0.01 + 2 * 0.001) * 2 + 20 * (0.01 + 6 * 0.001) * 6
    assert sampled.busy == pytest.approx(decoding + 0.2 * 64, rel=1e-6)
    assert shape.packed_tokens() == 100 + 2 * (10 + 50) + 6 * 20


def uneven(questions):
    """Questions whose answers differ in length, on an engine of four slots."""
    return pipeline.Shape(questions=questions, spread=0.6, **SHAPE), pipeline.Rates(slots=4, **RATES)


def test_slots_are_respected_and_streaming_is_never_slower():
    shape, rates = uneven(20)
    in_turns, streamed = (pipeline.sample(shape, rates, 20, 2.0, streaming, 1) for streaming in (False, True))
    assert max(number for _, number in in_turns.activity) == 4
    assert streamed.seconds < in_turns.seconds
    assert in_turns.open_searches == 20 * 6, "the second turns are searched together"
    assert streamed.open_searches < 20 * 6


@pytest.mark.parametrize(
    ("ahead", "update", "seconds", "idle", "lines"),
    [
        (False, 6.0, 18.0, (9, 3, 0, 0, 4), [((17, "█"), (10, "▄"), (6, "r"), (20, "u"), (7, "t"))]),
        (True, 6.0, 12.0, (9, 3, 4, 0, 6),
         [((25, "█"), (15, "▄"), (10, "r"), (10, "t")), ((30, "u"), (20, " "), (10, "t"))]),
        (True, 12.0, 14.0, (9, 3, 0, 4, 6),
         [((21, "█"), (13, "▄"), (9, "r"), (8, " "), (9, "t")), ((51, "u"), (9, "t"))]),
    ],
)  # fmt: skip
def test_idle_time_is_counted_by_what_is_waited_for(ahead, update, seconds, idle, lines):
    """Two GPUs with four slots sample for 10 and 6 seconds, the last 2 and 1 of them without a sequence."""
    engines = [
        pipeline.Sampled(10.0, 16.0, 2.0, 0, [(0.0, 4), (8.0, 0)]),
        pipeline.Sampled(6.0, 16.0, 1.0, 0, [(0.0, 4), (5.0, 0)]),
    ]
    step = pipeline.Step(engines, 1, ahead, 4, update, 2.0)
    assert step.seconds == seconds
    assert list(step.idle().values()) == pytest.approx(
        [gpu_seconds / ((3 if ahead else 2) * seconds) for gpu_seconds in idle]
    )
    assert step.time_lines() == ["".join(number * sign for number, sign in line) for line in lines]


@pytest.mark.parametrize(
    ("sampling", "update", "staleness", "expected"),
    [
        (10.0, 6.0, 1, (12.0, 1.0)),
        (6.0, 10.0, 1, (12.0, 1.0)),
        (10.0, 6.0, 2, (11.0, 0.5)),  # 10 + 10 + 2 in two steps: one follows the other without new weights
        (6.0, 10.0, 2, (11.0, 0.5)),  # training takes a step while the next one is sampled, then one while none is
        (4.0, 10.0, 2, (12.0, 1.0)),  # both steps are sampled when training takes the next
        (10.0, 6.0, 3, (10 + 2 / 3, 1 / 3)),
    ],
)
def test_the_pace_of_sampling_ahead_is_that_computed_by_hand(sampling, update, staleness, expected):
    """2 s send the weights, if no step is sampled when training takes one."""
    assert pipeline.pace(sampling, update, 2.0, staleness) == pytest.approx(expected)


def test_a_plan_shows_every_way_to_run_a_step(capsys):
    shape, rates = uneven(20)
    pipeline.plan(shape, dict.fromkeys((False, True), rates), pipeline.Gpus(4, 2, 1), 2.0, 3.0)
    printed = capsys.readouterr().out
    for name, *_ in pipeline.WAYS:
        assert len([line for line in printed.splitlines() if line.startswith(f"{name} ")]) >= 2, "a row and a line"


def test_one_gpu_cannot_sample_ahead(capsys):
    shape, rates = uneven(4)
    pipeline.plan(shape, {False: rates}, pipeline.Gpus(1, 1, 1), 2.0, 1.0)
    printed = capsys.readouterr().out
    assert "in turns" in printed
    assert "ahead" not in printed


def test_an_engine_of_several_gpus_counts_all_of_them(capsys):
    shape, rates = uneven(6)
    pipeline.plan(shape, dict.fromkeys((False, True), rates), pipeline.Gpus(6, 2, 2), 2.0, 3.0)
    printed = capsys.readouterr().out
    assert "ahead, streamed" in printed
    assert "in turns, streamed" not in printed
    half, full = pipeline.Sampled(10.0, 20.0, 0.0, 0, []), pipeline.Sampled(10.0, 40.0, 0.0, 0, [])
    step = pipeline.Step([half, full], 4, True, 4, 10.0, 0.0, 2)
    assert step.idle()["tail"] == pytest.approx(2 * 5 / (8 * 10)), "one of two engines of two GPUs, half of the time"


def test_the_memory_of_a_gpu_limits_the_sequences_of_an_engine():
    shape = pipeline.Shape(512, (4, 4), 600, (300, 300), 900, 3.4, 0.6)
    sequence = (600 + 4 * 1200 + 16 * 300) / 16 * 18e3 * 8 / 2**30
    free = 0.28 * 79 - 16e9 / 2**30 - 3
    assert pipeline.slots_of(shape, 8.0, 0.28, 1, 256) == int(free / sequence) < 50
    assert pipeline.slots_of(shape, 8.0, 0.28, 2, 256) > 5 * int(free / sequence), "it holds the weights once"
    assert pipeline.slots_of(shape, 8.0, 0.9, 4, 256) == 4 * 256
    with pytest.raises(SystemExit, match="20%"):
        pipeline.slots_of(shape, 8.0, 0.2, 1, 256)


def test_an_engine_of_two_gpus_decodes_each_token_faster_and_as_many_on_each():
    single, double = (pipeline.Rates.of_h100(8.0, 1800, 256 * gpus, gpus) for gpus in (1, 2))
    assert single.token / 2 < double.token < single.token
    assert double.sequence == single.sequence / 2
    assert double.update == single.update == 4 / 5 * pipeline.Rates.of_h100(8.0, 1800, 256, 1, reference=False).update


@pytest.mark.parametrize(("staleness", "step"), [(0, 3.0), (1, 2.0)])
def test_rates_of_the_first_half_of_a_run_predict_the_second(tmp_path, capsys, staleness, step):
    """1 s of sampling and search, 2 s of update, 0.5 s of the rest; the last step takes half as long again."""
    row = {"seconds/generate": 0.8, "seconds/retrieve": 0.2, "seconds/update": 2.0, "seconds/step": step + 0.5}
    rows = [row | {"tokens/sampled": 80}] * 7 + [row | {"tokens/sampled": 80, "seconds/step": 1.5 * (step + 0.5)}]
    write_jsonl(tmp_path / "metrics.jsonl", *rows)
    train = {"staleness": staleness, "questions_per_step": 2}
    config = {"train": train, "rollout": {"branching": [2, 3], "micro_batch": 64}}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    pipeline.check(tmp_path)
    printed = capsys.readouterr().out
    assert "100 sampled tokens a second" in printed
    assert "0.50 s besides" in printed
    assert f"predicted {step + 0.5:.2f} s" in printed
    assert "median 1.00, 75% within 20 %" in printed
    write_jsonl(tmp_path / "metrics.jsonl", rows[0])
    with pytest.raises(SystemExit, match="1 steps"):
        pipeline.check(tmp_path)
