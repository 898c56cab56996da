"""The files of an evaluation: the same figures as Markdown, LaTeX, CSV and HTML, and results.json read back."""

import re
import shutil
import subprocess
from io import StringIO

import pandas
import pytest
from querylect.errors import DataError
from querylect.eval.results import read_results
from querylect.eval.text import caption, html, latex, markdown, transfer, write_results, written_table

from ..raising import refused
from .test_table import ONE, RAW, TRAINED, TWO, evaluated, record, records, spec

BOTH = {"prompted": {}, "trained": {"run": "runs/x"}}
"""Two systems of one turn."""


def nine_datasets(environments=("bm25",), name="set_{}"):
    """Nine datasets and their average; the prompted system lacks the last one."""
    rows = []
    for number in range(9):
        for environment in environments:
            columns = {(RAW, environment): [0.1 * number] * 30, (TRAINED, environment): [0.05 * number + 0.2] * 30}
            columns |= {(ONE, environment): [0.5] * 30} if number < 8 else {}
            rows += records(columns, name.format(number))
    datasets = {name.format(number): None for number in range(9)}
    return evaluated(rows, spec(datasets=datasets, systems=BOTH))


def cells_of(text, form):
    """Rows of cells without markup; a bold one begins with *."""
    if form is markdown:
        rows = [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")]
        table_rows = [[re.sub(r"\*\*(.*)\*\*", r"*\1", cell.strip()) for cell in row] for row in rows]
    elif form is latex:
        rows = [line.removesuffix(r" \\").split(" & ") for line in text.splitlines() if line.endswith(r"\\")]
        table_rows = [[re.sub(r"\\textbf\{(.*?)\}", r"*\1", cell) for cell in row] for row in rows]
        marks = {r"$^{\dagger}$": "†", r"$^{\downarrow}$": "↓", "--": "–", "\\_": "_"}
        for old, new in marks.items():
            table_rows = [[cell.replace(old, new) for cell in row] for row in table_rows]
    else:
        table = text[text.index("<table") : text.index("</table>")]
        rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
        rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]
        table_rows = [[re.sub(r"<strong>(.*)</strong>", r"*\1", cell) for cell in row] for row in rows]
    return [row[1:] for row in table_rows]


def test_nine_datasets_make_one_table_with_the_same_figures_in_every_form():
    results = nine_datasets()
    tex = latex(results)
    assert tex.count("{") == tex.count("}")
    first = tex[: tex.index(r"\end{table*}")]
    assert first.count(r"\begin{tabular}{l" + "r" * 10 + "}") == first.count(r"\caption{") == 1
    figures = cells_of(first, latex)
    assert figures[0] == [*(f"set_{number}" for number in range(9)), "mean"]
    assert figures[1][:5] == ["0.000", "0.100", "0.200", "0.300", "0.400"]
    assert figures[1][8:] == ["*0.800", "*0.400"]
    assert (figures[2][0], figures[2][8:]) == ("*0.500†", ["–", "–"])
    assert cells_of(html("x", [results]), html) == figures
    assert cells_of(markdown(results), markdown)[: len(figures)] == figures
    assert "9 datasets with bm25" in caption(results)
    assert "Holm-corrected over all comparisons of this table" in caption(results)


def test_what_is_written_and_what_it_costs_stand_beside_each_other():
    texts = [("text of q0",), ("other",), ("other",), ("q9",)]
    rows = [record(ONE, f"q{n}", 0.5, rewrites=text, cut=n < 2) for n, text in enumerate(texts)]
    results = evaluated([*rows, *(record(RAW, f"q{n}", 0.25) for n in range(4))])
    table = written_table(results)
    assert list(table.columns[1:]) == [
        "n", "cut at limit", "in format", "repeats the question", "with fall-back", "LLM calls", "tokens read",
        "tokens written", "retrievals", "seconds",
    ]  # fmt: skip
    assert list(table.iloc[1]) == [
        "prompted, turn 1",
        "4",
        "50.0%",
        "100.0%",
        "25.0%",
        "0.500",
        "1",
        "7",
        "5.0",
        "1.00",
        "0.000",
    ]
    assert "| raw question | 4 | – | – | – | – | 0 | 7 | 0.0 | 1.00 | 0.000 |" in markdown(results)
    assert r"prompted, turn 1 & 4 & 50.0\% & 100.0\% & 25.0\% & 0.500 & 1 & 7" in latex(results)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex (Debian: texlive-latex-recommended)")
def test_latex_compiles_a_table_of_nine_datasets_within_the_page(tmp_path):
    results = nine_datasets(("bm25", "minilm"), "collection-of-field_{}")
    head = r"\documentclass[twocolumn]{article}\usepackage{booktabs,graphicx}"
    (tmp_path / "paper.tex").write_text(f"{head}\\begin{{document}}\n{latex(results)}\\end{{document}}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout
    assert "Overfull" not in done.stdout


@pytest.fixture
def matrix():
    columns = {
        (RAW, "bm25"): [0.25] * 4, (TWO, "bm25"): [0.75] * 4, (TRAINED, "bm25"): [0.5] * 4,
        (RAW, "minilm"): [0.5] * 4, (TWO, "minilm"): [0.25] * 4, (TRAINED, "minilm"): [1.0] * 4,
        (ONE, "bm25"): [0.0] * 4,
    }  # fmt: skip
    results = evaluated(records(columns))
    results.trained_in = {"prompted": "bm25", "trained": "minilm"}
    return results


def test_the_transfer_matrix_is_that_of_the_last_turns_in_every_form(matrix):
    assert transfer(matrix).to_numpy().tolist() == [
        ["prompted (bm25)", "**0.750 (+0.500)**", "0.250 (−0.250)"],
        ["trained (minilm)", "0.500 (+0.250)", "**1.000 (+0.500)**"],
    ]
    assert "| prompted (bm25) | **0.750 (+0.500)** | 0.250 (−0.250) |" in markdown(matrix)
    assert r"prompted (bm25) & \textbf{0.750 (+0.500)} & 0.250 ($-$0.250) \\" in latex(matrix)
    assert "<td><strong>0.750 (+0.500)</strong></td><td>0.250 (−0.250)</td>" in html("a & b", [matrix])


@pytest.mark.parametrize("trained_in", [{"prompted": "bm25", "trained": "bm25"}, {"trained": "bm25", "gone": "x"}])
def test_there_is_no_matrix_of_policies_with_one_training_environment(matrix, trained_in):
    matrix.trained_in = trained_in
    assert transfer(matrix).empty


def test_the_files_hold_every_figure_and_results_are_read_back(tmp_path):
    columns = {(RAW, "bm25"): [0.0, 0.5] * 20, (ONE, "bm25"): [0.5, 1.0] * 20}
    results = evaluated([*records(columns), *records(columns, "two")], spec(systems=BOTH))
    write_results(tmp_path, results)
    assert read_results(tmp_path) == results
    scores = pandas.read_csv(tmp_path / "scores.csv", keep_default_na=False)
    assert list(scores.dataset) == ["one", "two", "mean"] * 2
    prompted = scores[(scores.dataset == "one") & (scores.system == "prompted")].iloc[0]
    assert (prompted["ndcg@10"], prompted.n, prompted.marks, prompted.turn) == (0.75, 40, "†", 1)
    assert (prompted["ndcg@10 low"], prompted["ndcg@10 high"]) == results.score(ONE, "one").interval
    compared = pandas.read_csv(StringIO((tmp_path / "comparisons.csv").read_text()), keep_default_na=False)
    first, expected = compared.iloc[0], results.comparisons[0]
    assert list(compared.dataset) == ["one", "two", "mean"]
    assert (first.difference, first.wins, first.p, first.p_holm) == (0.5, 40, expected.p, expected.p_holm)
    assert (first.system, first.against, bool(first.significant)) == ("prompted", "raw", True)
    (tmp_path / "results.json").write_text('{"name": "old"}')
    with refused(DataError, tmp_path / "results.json"):
        read_results(tmp_path)
