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
    rollout = pipeline.Rollout(shape, pipeline.Rates(slots=64, **RATES), 1, 1, pipeline.Service(2.0, 0.5), streamed)
    (sampled,) = rollout.run()
    searches = 2.0 + 2 * 0.5 + 2.0 + 6 * 0.5
    by_hand = 0.1 + 10 * (0.01 + 2 * 0.001) + 2 * 0.05 + 20 * (0.01 + 6 * 0.001) + searches
    assert (sampled.searching, rollout.max_searches) == (pytest.approx(searches), 6)
    assert sampled.seconds == pytest.approx(by_hand)
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
    assert rollout.run()[0].seconds == pytest.approx(end)
    assert rollout.max_searches == most


def uneven(questions):
    """Questions whose answers differ in length, on an engine of four slots."""
    return pipeline.Shape(questions=questions, spread=0.6, **SHAPE), pipeline.Rates(slots=4, **RATES)


def test_slots_are_respected_and_streaming_is_never_slower():
    shape, rates = uneven(20)
    rollouts = [pipeline.Rollout(shape, rates, 1, 1, pipeline.Service(2.0), streamed) for streamed in (False, True)]
    (in_turns,), (streamed,) = (rollout.run() for rollout in rollouts)
    assert max(number for _, number in in_turns.activity) == 4
    assert streamed.seconds < in_turns.seconds
    assert rollouts[0].max_searches == 20 * 6, "the second turns are searched together"
    assert rollouts[1].max_searches < 20 * 6


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
        pipeline.Sampled(10.0, 16.0, 2.0, [(0.0, 4), (8.0, 0)]),
        pipeline.Sampled(6.0, 16.0, 1.0, [(0.0, 4), (5.0, 0)]),
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


def test_a_step_sampled_ahead_waits_for_what_the_update_before_it_has_not_covered():
    """Steps are sampled from 0, 4 and 10 s on, as training takes the one before, until 4, 10 and 12; they are updated
    from 4, 10 and 15 s on."""
    sampling, update = [4.0, 6.0, 2.0], [3.0, 5.0, 1.0]
    assert pipeline.schedule(sampling, update, 0.0, 1) == ([4.0, 10.0, 15.0], [True] * 3)
    assert pipeline.overlapped(sampling, update, 1) == [7.0, 8.0, 1.0]
    assert pipeline.overlapped(sampling, update, 0) == [7.0, 11.0, 3.0]


def test_weights_in_flight_are_simulated_where_they_change_no_order():
    config = {"train": {"staleness": 1, "in_flight_updates": True}}
    assert pipeline.staleness_of(config) == 1
    config["train"]["staleness"] = 2
    with pytest.raises(SystemExit, match=r"train\.in_flight_updates"):
        pipeline.staleness_of(config)


def test_a_plan_shows_every_way_to_run_a_step(capsys):
    shape, rates = uneven(20)
    pipeline.plan(shape, dict.fromkeys((False, True), rates), pipeline.Gpus(4, 2, 1), pipeline.Service(2.0), 3.0)
    printed = capsys.readouterr().out
    for name, *_ in pipeline.WAYS:
        assert len([line for line in printed.splitlines() if line.startswith(f"{name} ")]) >= 2, "a row and a line"


def test_one_gpu_cannot_sample_ahead(capsys):
    shape, rates = uneven(4)
    pipeline.plan(shape, {False: rates}, pipeline.Gpus(1, 1, 1), pipeline.Service(2.0), 1.0)
    printed = capsys.readouterr().out
    assert "in turns" in printed
    assert "ahead" not in printed


def test_an_engine_of_several_gpus_counts_all_of_them(capsys):
    shape, rates = uneven(6)
    pipeline.plan(shape, dict.fromkeys((False, True), rates), pipeline.Gpus(6, 2, 2), pipeline.Service(2.0), 3.0)
    printed = capsys.readouterr().out
    assert "ahead, streamed" in printed
    assert "in turns, streamed" not in printed
    half, full = pipeline.Sampled(10.0, 20.0, 0.0, []), pipeline.Sampled(10.0, 40.0, 0.0, [])
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
    passes = pipeline.update_passes
    assert [passes(*case) for case in ((True, False), (False, False), (True, True), (False, True))] == [5, 4, 4, 3]
    assert double.update == single.update == 4 / 5 * pipeline.Rates.of_h100(8.0, 1800, 256, 1, passes=4).update


def write_run(folder, staleness, *amounts):
    """A run whose seconds follow from sampled tokens, searches and packed tokens: 10 ms, 20 ms, 5 ms, and 0.5 s. With
    sampling ahead a step waits for what is left of its sampling when the step before it has ended."""
    rows = []
    covered = 0.0
    for sampled, searches, packed in amounts:
        generate, retrieve, update = 0.01 * sampled, 0.02 * searches, 0.005 * packed
        seconds = {"generate": generate, "retrieve": retrieve, "update": update}
        seconds["step"] = max(0.0, generate + retrieve - covered) + update + 0.5
        covered = update + 0.5 if staleness else 0.0
        tokens = {"tokens/sampled": sampled, "tokens/packed": packed, "searches": searches}
        rows.append(tokens | {f"seconds/{name}": value for name, value in seconds.items()})
    folder.mkdir(exist_ok=True)
    write_jsonl(folder / "metrics.jsonl", *rows)
    train = {"staleness": staleness, "questions_per_step": 2}
    config = {"train": train, "rollout": {"branching": [2, 3], "micro_batch": 64}}
    (folder / "config.yaml").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("staleness", [0, 1])
def test_rates_of_the_first_half_of_a_run_predict_each_step_of_the_second(tmp_path, capsys, staleness):
    """Every step has its own tokens and searches; one without a reward that differs trains on none."""
    steps = [(80, 10, 400), (80, 12, 400), (80, 0, 0), (160, 16, 800), (40, 4, 800), (400, 0, 0)]
    pipeline.check(write_run(tmp_path / "run", staleness, *steps))
    printed = capsys.readouterr().out
    assert "10.00 ms a sampled token, 20.00 ms a search, 5.00 ms a packed token" in printed
    assert "0.50 s besides" in printed
    assert "median 1.00, 1.00 to 1.00; 3 of 3 steps within 20 %; all steps 1.00" in printed
    assert "0 of 3 steps" in printed, "the median of the first half"
    with pytest.raises(SystemExit, match="1 steps"):
        pipeline.check(write_run(tmp_path / "run", staleness, *steps[:3]))


def test_rates_of_one_run_predict_another_whose_steps_are_larger(tmp_path, capsys):
    rates_of = write_run(tmp_path / "one", 0, (80, 10, 400), (80, 10, 400))
    pipeline.check(write_run(tmp_path / "other", 1, (800, 100, 4000), (400, 50, 6000)), rates_of)
    assert "median 1.00, 1.00 to 1.00; 2 of 2 steps within 20 %" in capsys.readouterr().out
