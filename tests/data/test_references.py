"""Published figures, and the check of measured figures against them."""

import pytest
from querylect.data.known import known
from querylect.data.references import Measured, check_baselines, references


def measured(value, dataset="scifact", retriever="bm25", split="test"):
    return Measured("mine", dataset, retriever, split, value, 300)


def test_a_figure_within_the_tolerance_is_right():
    for value, status in {0.6840: "right", 0.674: "right", 0.6841: "wrong", 0.5: "wrong"}.items():
        (verdict,) = check_baselines([measured(value)])
        assert verdict.status == status, verdict.sentence
        assert verdict.sentence.startswith(f"mine: ndcg@10 {value:.4f} over 300 test questions: {status};")
    assert "-0.1790 from 0.6790, published for BM25" in verdict.sentence
    assert "Look at the corpus" in verdict.sentence
    assert check_baselines([measured(0.69)], tolerance=0.02)[0].status == "right"


def test_nothing_is_invented_where_nothing_is_published():
    for measurement in (
        measured(0.5, "cranfield"),
        measured(0.68, split="validation"),
        measured(0.68, retriever="medcpt"),
    ):
        (verdict,) = check_baselines([measurement])
        assert (verdict.status, verdict.references) == ("unknown", ())
        assert "no figure is published" in verdict.sentence
    # a part of RAGBench alone is another corpus than that part of the whole
    assert check_baselines([measured(0.3, "ragbench[covidqa]/covidqa")])[0].status == "unknown"
    assert check_baselines([measured(0.308, "ragbench/covidqa")])[0].status == "right"


def test_sources_that_disagree_are_told_apart():
    (verdict,) = check_baselines([measured(0.649, retriever="contriever")])
    assert verdict.status == "right"
    assert "as published (0.6490, published for Contriever" in verdict.sentence
    assert "+0.0776 from 0.5714, Yuan et al." in verdict.sentence


def test_the_shipped_figures_are_complete_and_consistent():
    figures = references()
    assert all(0 < figure.value < 1 and figure.source for figure in figures)
    table = [figure for figure in figures if figure.source.endswith("table 2")]
    # the paper's own average, as a guard against mistyped figures
    assert round(100 * sum(figure.value for figure in table) / len(table), 2) == 28.84
    assert {f"beir/{figure.dataset}": figure.split for figure in table} == {
        name: entry.split for name, entry in known().items() if name.startswith("beir/")
    }
    for retriever, average in {"contriever": 45.5, "bm25": 45.0, "all-minilm-l6-v2": 52.9}.items():
        parts = [e.value for e in figures if e.retriever == retriever and e.dataset.startswith("ragbench/")]
        assert len(parts) == 11
        assert 100 * sum(parts) / 11 == pytest.approx(average, abs=0.06)
