"""Figures of an evaluation by hand: means, averages, marks, notes, tested differences and their correction."""

from dataclasses import replace

import pytest
from querylect.configs.evaluation import BEST_FREE, SpecConfig
from querylect.eval.records import EvalRecord
from querylect.eval.results import EvalResults
from querylect.eval.statistics import holm
from querylect.eval.summary import add_best_free, phrase, sample_notes, table_spec, verdict
from querylect.eval.table import MEAN, Arm, frame_of, tabulate
from querylect.eval.text import written_table
from querylect.eval.training_free import Tuned

RAW, ONE, TWO, TRAINED = Arm("raw", 0), Arm("prompted", 1), Arm("prompted", 2), Arm("trained", 1)


def spec(**changes):
    values = {
        "datasets": {"one": None, "two": None},
        "environments": {"bm25": {}, "minilm": {}},
        "systems": {"prompted": {"turns": 2}, "trained": {"run": "runs/x"}},
        "metrics": ["ndcg@10"],
        "permutations": 999,
        "bootstrap": 200,
        **changes,
    }
    return SpecConfig.model_validate(values)


def record(arm, question_id, value, dataset="one", environment="bm25", **changes):
    values = {
        "system": arm.system, "turn": arm.turn, "question_id": question_id, "question": f"text of {question_id}",
        "dataset": dataset, "environment": environment, "metrics": {"ndcg@10": value, "mrr@10": value},
        "think": "", "rewrites": (f"rewrite of {question_id}",), "ranking": ("d1", "d2"), "plan": {}, "format_ok": True,
        "tokens": 5 * arm.turn, "prompt_tokens": 7, "searches": 1, "calls": arm.turn,
    }  # fmt: skip
    return EvalRecord(**values | changes)


def records(columns, dataset="one", prefix=""):
    """Records of {(arm, environment): values} by question number."""
    return [
        record(arm, f"{prefix}q{number:03}", value, dataset, environment)
        for (arm, environment), values in columns.items()
        for number, value in enumerate(values)
    ]


def evaluated(rows, settings=None, samples=None):
    """The results of records, whose questions are all that were asked."""
    settings = settings or spec()
    questions = {}
    for row in rows:
        questions.setdefault(row.dataset, {})[row.question_id] = None
    ids = {dataset: list(names) for dataset, names in questions.items()}
    frame = frame_of(rows, ids, settings.metrics, samples=samples, parts=settings.parts)
    table = tabulate(frame, table_spec(settings))
    return EvalResults(
        name="a <plan> & more",
        split="test",
        metrics=list(settings.metrics),
        scores=table.scores,
        comparisons=table.comparisons,
        notes=[*table.notes, *sample_notes(settings)],
        legend=[(better, worse, phrase(name)) for name, (better, worse) in table_spec(settings).marks.items()],
    )


def kinds(results):
    return [note.kind for note in results.notes]


def test_a_table_by_hand():
    low, high = [0.0, 0.5] * 20, [0.5, 1.0] * 20
    results = evaluated(records({(RAW, "bm25"): low, (ONE, "bm25"): high, (TWO, "bm25"): low}))
    raw, first, second = results.scores
    assert [(score.arm, score.label) for score in results.scores] == [
        (RAW, "raw question"), (ONE, "prompted, turn 1"), (TWO, "prompted, turn 2"),
    ]  # fmt: skip
    assert (raw.mean, first.mean, raw.marks, first.marks, second.marks) == (0.25, 0.75, "", "†", "")
    assert (raw.best, first.best, second.best) == (False, True, False)
    assert [(score.calls, score.tokens, score.n, score.of) for score in (first, second)] == [
        (1, 5, 40, 40),
        (2, 10, 40, 40),
    ]
    assert (raw.format_ok, raw.repeats, raw.cut, raw.with_fall_back) == (None, None, None, None), "no model wrote"
    better, same = results.comparisons
    assert (better.difference, better.wins, better.ties, better.losses, better.p) == (0.5, 40, 0, 0, 0.001)
    assert (better.p_holm, same.p_holm, better.outcome, same.outcome) == (0.002, 1.0, "better", "same")
    assert kinds(results) == ["few"]


def test_native_queries_have_a_share_without_hits_and_of_sets_that_are_cut():
    """Of four: refused, without hits, within the metric's depth, beyond it. Words have neither."""
    rows = [record(ONE, f"q{i}", 0.5, hits=hits, format_ok=i > 0) for i, hits in enumerate([0, 0, 100, 101])]
    rows = [replace(row, metrics={"f3@100": 0.5, "setp@1000": 0.5}) for row in rows]
    words = [replace(row, system="raw", turn=0, hits=None, format_ok=True) for row in rows]
    results = evaluated([*rows, *words], spec(metrics=["f3@100", "setp@1000"], depth=1000))
    raw, native = results.scores
    assert (native.format_ok, native.no_hits, native.beyond) == (0.75, 0.5, 0.25)
    assert (raw.no_hits, raw.beyond) == (None, None)
    assert kinds(results) == ["few", "beyond"]
    assert written_table(results)["without hits"].tolist() == ["–", "50.0%"]
    assert "without hits" not in written_table(evaluated(words, spec(metrics=["f3@100"], depth=100)))


def test_holm_covers_every_dataset_and_their_mean_under_one_caption():
    """Three datasets with one comparison each: alone none would be corrected, together with the mean there are four."""
    values = {"one": [0.3] * 12, "two": [0.2, 0.3, 0.1, 0.4] * 3, "three": [0.0, 0.1, -0.1, 0.2] * 3}
    settings = spec(datasets=dict.fromkeys(values), systems={"trained": {"run": "runs/x"}}, permutations=199)
    rows = [
        row
        for dataset, gains in values.items()
        for row in records({(RAW, "bm25"): [0.5] * 12, (TRAINED, "bm25"): [0.5 + gain for gain in gains]}, dataset)
    ]
    results = evaluated(rows, settings)
    assert [row.dataset for row in results.comparisons] == [*values, MEAN]
    p_values = [row.p for row in results.comparisons]
    assert len(set(p_values)) > 1
    assert [row.p_holm for row in results.comparisons] == holm(p_values)
    assert results.comparisons[0].p_holm == pytest.approx(4 * results.comparisons[0].p)
    trained = {score.dataset: score.marks for score in results.scores if score.system == "trained"}
    assert trained == {row.dataset: "†" if row.p_holm < 0.05 else "" for row in results.comparisons}
    assert {"†", ""} <= set(trained.values())


def test_parts_of_a_dataset_are_another_family_and_average_to_it():
    settings = spec(datasets={"rag": None}, parts=["rag"], systems={"trained": {"run": "runs/x"}})
    rows = [
        row
        for part, raw, count in (("covid", 0.5, 4), ("tech", 0.25, 40))
        for row in records({(RAW, "bm25"): [raw] * count, (TRAINED, "bm25"): [raw + 0.25] * count}, "rag", f"{part}/")
    ]
    results = evaluated(rows, settings)
    assert [score.part for score in results.scores if score.arm == RAW] == ["covid", "tech", ""]
    assert [results.score(RAW, "rag", "bm25", part).mean for part in ("covid", "tech", "")] == [0.5, 0.25, 0.375]
    whole = results.score(RAW, "rag", "bm25")
    assert (whole.n, whole.of) == (44, 44)
    by_part = {row.part: row for row in results.comparisons}
    assert [by_part[part].p_holm for part in ("covid", "tech")] == holm([by_part[part].p for part in ("covid", "tech")])
    assert by_part[""].p_holm == by_part[""].p, "one comparison"


def test_a_failed_search_is_left_out_and_told_and_never_zero():
    columns = {(RAW, "bm25"): [1.0, None, 0.5, 0.5], (ONE, "bm25"): [None] * 4}
    results = evaluated(records(columns))
    raw, nothing = results.scores
    assert (raw.mean, raw.n, raw.of) == (2 / 3, 3, 4)
    assert (nothing.mean, nothing.n, nothing.interval) == (None, 0, None)
    assert results.comparisons == []
    assert [note.count for note in results.notes if note.kind == "unscored"] == [1, 4]


def test_samples_count_by_their_mean_and_only_when_all_are_scored():
    values = {"a": [0.0, 1.0, 0.5], "b": [1.0, None, 1.0], "c": [1.0, 1.0]}
    rows = [record(ONE, q, value, sample=sample) for q, scores in values.items() for sample, value in enumerate(scores)]
    settings = spec(systems={"prompted": {"samples": 3, "temperature": 0.7}})
    results = evaluated(rows, settings, {"prompted": 3})
    score = results.score(ONE)
    assert (score.mean, score.n, score.of) == (0.5, 1, 3)
    assert "samples" in kinds(results)


def test_an_average_weighs_datasets_and_lacks_what_one_of_them_lacks():
    rows = records({(RAW, "bm25"): [1.0] * 2, (ONE, "bm25"): [1.0] * 2})
    rows += records({(RAW, "bm25"): [0.0] * 8, (RAW, "minilm"): [0.5] * 8}, "two")
    results = evaluated(rows)
    assert results.score(RAW, MEAN, "bm25").mean == 0.5
    assert results.score(ONE, MEAN, "bm25") is None
    assert results.score(RAW, MEAN, "minilm") is None
    assert kinds(results).count("incomplete") == 2


def test_behaviour_of_answers_by_hand():
    raw = [record(RAW, f"q{n}", 0.25, rewrites=(f"text of q{n}",)) for n in range(4)]
    written = [("Text of Q0!",), (), ("other",), ("text of q3", "other")]
    rows = [
        record(ONE, f"q{n}", 0.5, rewrites=texts, format_ok=n != 1, cut=n < 3, truncated=n == 2)
        for n, texts in enumerate(written)
    ]
    score = evaluated([*raw, *rows]).score(ONE)
    assert (score.format_ok, score.cut, score.truncated) == (0.75, 0.75, 0.25)
    assert score.repeats == pytest.approx(1 / 3), "of the answers with a rewrite"
    assert score.with_fall_back == pytest.approx((3 * 0.5 + 0.25) / 4)
    unknown = evaluated([*raw, replace(rows[0], cut=None, tokens=None), *rows[1:]]).score(ONE)
    assert (unknown.cut, unknown.tokens) == (None, None), "not known of every answer"


@pytest.mark.parametrize(("share", "warned"), [(0.2, ["prompted"]), (0.0, [])])
def test_a_warning_names_systems_that_are_often_cut_and_no_trained_one(share, warned):
    rows = [record(arm, f"q{n}", 0.5, cut=n < 10 * share) for arm in (ONE, TRAINED) for n in range(10)]
    results = evaluated(rows, spec(systems={"prompted": {}, "trained": {"run": "runs/x"}}))
    assert [note.text.split()[0] for note in results.notes if note.kind == "cut"] == warned


def test_the_best_training_free_baseline_is_a_row_of_its_own():
    rows = records(
        {(RAW, "bm25"): [0.5] * 3, (Arm("rm3", 0), "bm25"): [0.25] * 3, (Arm("first_titles", 0), "bm25"): [0.75] * 3}
    )
    frame = frame_of(rows, {"one": ["q000", "q001", "q002"]}, ["ndcg@10"])
    tuned = {
        ("one", "bm25", "rm3"): Tuned("rm3", {}, 0.5),
        ("one", "bm25", "first_titles"): Tuned("first_titles", {}, 0.4),
    }
    chosen, notes = add_best_free(frame, tuned, "ndcg@10")
    assert list(chosen.xs(BEST_FREE, level="system")["ndcg@10"]) == [0.25] * 3, "the best on validation"
    assert [note.kind for note in notes] == ["tuned", "tuned", "best_free"]
    untuned, _ = add_best_free(frame, {key: Tuned(key[2], {}) for key in tuned}, "ndcg@10")
    assert list(untuned.xs(BEST_FREE, level="system")["ndcg@10"]) == [0.75] * 3, "else the best on the questions"


def test_the_verdict_counts_datasets():
    gains = {"one": 0.4, "two": 0.0, "three": -0.4}
    rows = [
        row
        for dataset, gain in gains.items()
        for row in records({(RAW, "bm25"): [0.5] * 30, (TRAINED, "bm25"): [0.5 + gain] * 30}, dataset)
    ]
    settings = spec(datasets=dict.fromkeys(gains), systems={"trained": {"run": "runs/x"}})
    results = evaluated(rows, settings)
    sentence = verdict(settings, results, of_run=True)
    assert sentence == "At turn 1, the trained policy beats the raw question in 1 of 3 (and is worse in 1)."
    assert verdict(settings, results) == "trained beats the raw question in 1 of 3 comparisons; worse, in 1: trained."
    alone = evaluated(records({(RAW, "bm25"): [0.5] * 30}))
    assert verdict(spec(), alone) == "Only the raw question was evaluated: ndcg@10 is 0.500."
    same = evaluated(records({(RAW, "bm25"): [0.5] * 30, (TRAINED, "bm25"): [0.5] * 30}), settings)
    assert verdict(settings, same) == "Nothing beats the raw question in 1 comparison."
