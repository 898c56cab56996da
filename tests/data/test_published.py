"""Published figures, and the check of measured figures against them."""

import pytest
from querylect.data.get import known_benchmarks
from querylect.data.published import Measured, check_baseline, references


def checked(value, dataset="scifact", retriever="bm25", split="test", **tolerance):
    return check_baseline(Measured("mine", dataset, retriever, split, value, 300), **tolerance)


def test_a_figure_within_the_tolerance_is_right():
    for value, expected in {0.6840: "right", 0.674: "right", 0.6841: "wrong", 0.5: "wrong"}.items():
        status, sentence = checked(value)
        assert status == expected, sentence
        assert sentence.startswith(f"mine: ndcg@10 {value:.4f} over 300 test questions: {status};")
    assert "-0.1790 from 0.6790, published for BM25" in sentence
    assert checked(0.69, tolerance=0.02)[0] == "right"


def test_nothing_is_invented_where_nothing_is_published():
    unknown = [("cranfield", "bm25", "test"), ("scifact", "bm25", "validation"), ("scifact", "medcpt", "test")]
    assert [checked(0.68, *names)[0] for names in unknown] == ["unknown"] * 3
    # a part of RAGBench alone is another corpus than that part of the whole
    assert checked(0.3, "ragbench[covidqa]/covidqa")[0] == "unknown"
    assert checked(0.308, "ragbench/covidqa")[0] == "right"


def test_sources_that_disagree_are_told_apart():
    status, sentence = checked(0.649, retriever="contriever")
    assert status == "right"
    assert "as published (0.6490, published for Contriever" in sentence
    assert "+0.0776 from 0.5714, Yuan et al." in sentence


def test_the_shipped_figures_are_complete_and_consistent():
    figures = references()
    assert all(0 < figure.value < 1 and figure.source for figure in figures)
    table = [figure for figure in figures if "table 2" in figure.source]
    # the paper's own average, as a guard against mistyped figures
    assert round(100 * sum(figure.value for figure in table) / len(table), 2) == 28.84
    beir = {name: entry for name, entry in known_benchmarks().items() if name.startswith("beir/")}
    assert {f"beir/{figure.dataset}" for figure in table} == beir.keys()
    assert all(f" {figure.split} questions" in beir[f"beir/{figure.dataset}"].about for figure in table)
    assert all(entry.ignore_identical_ids and entry.licence for entry in beir.values())
    for retriever, average in {"contriever": 45.5, "bm25": 45.0, "all-minilm-l6-v2": 52.9}.items():
        parts = [e.value for e in figures if e.retriever == retriever and e.dataset.startswith("ragbench/")]
        assert len(parts) == 11
        assert 100 * sum(parts) / 11 == pytest.approx(average, abs=0.06)
