"""Tables of answers: missing answers are counted and left out of means, and which systems are compared."""

from dataclasses import asdict

import pytest
from querylect.benchmarks.paired import compare_paired
from querylect.eval.answers.table import AnswerRecord, markdown, tabulate_answers
from querylect.eval.records import NO_RAG
from querylect.eval.statistics import holm


def record(system, top, question, value, **changes):
    missing = value is None
    values = {
        "system": system, "turn": 0 if system in (NO_RAG, "raw") else 2, "top": top, "question_id": question,
        "question": "?", "documents": ("d",) * top, "answer": None if missing else "x", "chosen": "", "cut": False,
        "missing": "no reply" if missing else "", "scores": dict.fromkeys(("accuracy", "cover_em", "f1", "em"), value),
        "ndcg": None if system == NO_RAG else 0.5, "prompt_tokens": 10, "tokens": 2, "key": f"{system}{top}{question}",
    }  # fmt: skip
    return AnswerRecord(**{**values, **changes})


VALUES = {
    (NO_RAG, 0): [0.0, 0.0, 0.5, 1.0],
    ("raw", 5): [0.5, 1.0, None, 1.0],
    ("trained", 5): [1.0, 1.0, 1.0, 1.0],
    ("raw", 20): [0.0, 0.0, 0.0, 1.0],
    ("trained", 20): [None] * 4,
}


@pytest.fixture
def records():
    return [
        record(system, top, f"q{number}", value)
        for (system, top), values in VALUES.items()
        for number, value in enumerate(values)
    ]


def tabulated(records, metric="f1"):
    return tabulate_answers(records, metric, resamples=50, permutations=99, seed=3)


def test_missing_answers_are_counted_and_never_0(records):
    rows = {(row.system, row.top): row for row in tabulated(records).rows}
    raw = rows["raw", 5]
    assert (raw.n, raw.missing, raw.scores["f1"]) == (3, {"no reply": 1}, pytest.approx(2.5 / 3))
    lost = rows["trained", 20]
    assert (lost.n, lost.scores["f1"], lost.low) == (0, None, None)
    assert rows[NO_RAG, 0].ndcg is None
    assert rows["raw", 20].documents == 20


def test_raw_is_compared_with_nothing_and_systems_with_raw_at_the_same_depth(records):
    comparisons = tabulated(records).comparisons
    assert [(row.arm.system, int(row.environment), row.baseline.system) for row in comparisons] == [
        ("raw", 5, NO_RAG),
        ("trained", 5, "raw"),
        ("raw", 20, NO_RAG),
    ]
    for row in comparisons:
        top = int(row.environment)
        a, b = VALUES[row.arm.system, top], VALUES[row.baseline.system, 0 if row.baseline.system == NO_RAG else top]
        expected = compare_paired(a, b, resamples=50, permutations=99, seed=3)
        assert all(getattr(row, name) == value for name, value in asdict(expected).items())
    assert comparisons[0].left_out == 1
    assert [row.p_holm for row in comparisons] == holm([row.p for row in comparisons])
    deep = tabulated([record(system, top, "q", top / 100) for system in ("raw", "trained") for top in (5, 20)])
    assert [(row.environment, row.difference) for row in deep.comparisons] == [("5", 0.0), ("20", 0.0)]


def test_counts_of_cut_empty_and_undecided_answers():
    scores = {"accuracy": 1.0, "cover_em": None, "f1": None, "em": None}
    rows = [
        record("raw", 5, "a", 1.0, scores=scores, chosen="B", cut=True),
        record("raw", 5, "b", 1.0, scores={**scores, "accuracy": 0.0}, answer=" "),
    ]
    (row,) = tabulated(rows, "accuracy").rows
    assert (row.cut, row.empty, row.no_choice, row.scores) == (
        1,
        1,
        1,
        {"accuracy": 0.5, "cover_em": None, "f1": None, "em": None},
    )
    (open_row,) = tabulated([record("raw", 5, "a", 1.0)]).rows
    assert open_row.no_choice == 0


def test_the_page_says_it_all(records):
    page = markdown(tabulated(records), ["a note"], {"reader": "m"})
    assert "| – | No retrieval |  | 37.5 | 37.5 | 37.5 | 37.5 |" in page
    assert "| top 5 | Raw question | 0.500 | 83.3 | 83.3 | 83.3 |" in page
    assert "| top 5 | Trained, turn 2 | raw question | +16.7 |" in page
    assert "- a note\n- reader: m\n" in page
