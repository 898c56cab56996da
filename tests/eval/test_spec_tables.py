"""Tables, averages, marks and the transfer matrix of a grid, by hand; metrics and tests against other programs."""

import re
import shutil
import subprocess
from dataclasses import replace
from io import StringIO

import pandas
import pytest
from querylect.configs.evaluation import SpecConfig
from querylect.eval import tabulate as under_test
from querylect.eval.csv_tables import comparisons_csv, scores_csv
from querylect.eval.records import EvalRecord
from querylect.eval.spec_tables import spec_of_tables, wide_table_of
from querylect.eval.statistics import Stratum, compare_strata, mean_cis
from querylect.eval.table import Answers, Arm, QuestionSet
from querylect.eval.tabulate import answers_of, split_by_part
from querylect.eval.text import Page, html, latex, markdown
from querylect.eval.transfer import transfer

RAW, ONE, TWO = Arm("raw", 0), Arm("prompted", 1), Arm("prompted", 2)


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


def tabulate(settings, title, parts):
    return under_test.tabulate(spec_of_tables(settings), title, parts, dataset="" if len(parts) > 1 else title)


def record(question, value, turn=0, sample=0, **costs):
    metrics = {"ndcg@10": value}
    spent = {"tokens": 5 * turn, "prompt_tokens": 7, "searches": 1, "calls": turn, **costs}
    return EvalRecord("?", turn, question, question, "", (), (), metrics, format_ok=True, sample=sample, **spent)


def answered(rows, turn):
    """The answers of a turn, one record for each question."""
    return answers_of([row.question_id for row in rows], rows, 1)[turn]


def answers(values, turn=0, prefix="q"):
    return answered([record(f"{prefix}{number:03}", value, turn) for number, value in enumerate(values)], turn)


def part(title, **columns):
    """bm25_raw=[…], minilm_prompted2=[…]"""
    cells = {}
    for name, values in columns.items():
        environment, system = name.split("_")
        turn = int(system[-1]) if system[-1].isdigit() else 0
        arm = Arm(system.rstrip("0123456789"), turn)
        cells[arm, environment] = answers(values, turn)
    return QuestionSet(title, cells)


def table_of(settings=None, title="one", **columns):
    """The table of one dataset."""
    return tabulate(settings or spec(), title, [(1.0, part(title, **columns))])


def table_of_answers(cells, settings=None):
    """The table of answers by arm and environment."""
    return tabulate(settings or spec(), "one", [(1.0, QuestionSet("one", cells))])


BOTH = {"prompted": {}, "trained": {}}
"""Two systems of one turn."""


def page(tables, matrix=None, settings=None):
    settings = settings or spec()
    wide = wide_table_of(settings, tables)
    return Page(
        "a <plan> & more", "Headline.", "Family.", settings.metrics, tables, wide, matrix, ["note_1"], ["about"]
    )


def test_a_note_gives_the_queries_that_the_retriever_read_only_in_part():
    raw_records = [record(f"q{n}", 0.5, truncated=0) for n in range(8)]
    prompted_records = [record(f"q{n}", 0.5, 1, truncated=n // 4) for n in range(7)] + [
        record("q7", 0.5, 1, truncated=None)
    ]
    table = table_of_answers({(RAW, "bm25"): answered(raw_records, 0), (ONE, "bm25"): answered(prompted_records, 1)})
    (note,) = [note for note in table.notes if "query_max_length" in note]
    assert note.endswith("searched: prompted, turn 1 42.9%."), "3 of 7"


def test_a_table_by_hand():
    low, high = [0.0, 0.5] * 20, [0.5, 1.0] * 20
    table = table_of(bm25_raw=low, bm25_prompted1=high, bm25_prompted2=low)
    assert (table.environments, table.questions) == (["bm25"], 40)
    raw, first, second = (table.score(arm, "bm25") for arm in (RAW, ONE, TWO))
    assert (raw.metrics["ndcg@10"], first.metrics["ndcg@10"]) == (0.25, 0.75)
    assert (raw.marks, first.marks, second.marks) == ("", "†", "")
    assert (raw.best, first.best, second.best) == (False, True, False)
    assert [row.label for row in table.rows] == ["raw question", "prompted, turn 1", "prompted, turn 2"]
    assert [(row.costs.calls, row.costs.tokens_out) for row in table.rows] == [(0, 0), (1, 5), (2, 10)]
    better, same = table.comparisons
    assert (better.test.difference, better.test.wins, better.test.p) == (0.5, 40, 0.001)
    assert (better.p_holm, same.p_holm) == (0.002, 1.0)
    assert any("Only 40 questions" in note for note in table.notes)


def test_worse_is_marked_as_worse_and_a_second_baseline_has_marks_of_its_own():
    settings = spec(baselines=["raw", "prompted"])
    columns = {"bm25_raw": [0.5] * 30, "bm25_prompted2": [0.1] * 30, "bm25_trained1": [0.9] * 30}
    table = table_of(settings, **columns)
    assert table.score(TWO, "bm25").marks == "↓"
    assert table.score(Arm("trained", 1), "bm25").marks == "†‡"
    assert [(row.arm.system, row.baseline.system) for row in table.comparisons] == [
        ("prompted", "raw"),
        ("trained", "raw"),
        ("trained", "prompted"),
    ]


def test_a_mark_stands_in_its_own_environment_and_holm_runs_over_all_of_them():
    columns = {"bm25_raw": [0.0] * 30, "bm25_prompted1": [0.5] * 30, "minilm_raw": [0.5] * 30}
    table = table_of(**columns, minilm_prompted1=[0.5] * 30)
    assert [table.score(ONE, name).marks for name in ("bm25", "minilm")] == ["†", ""]
    assert [row.p_holm for row in table.comparisons] == [0.002, 1.0]
    cross = table_of(**columns, minilm_prompted1=[0.0] * 30)
    assert [cross.score(ONE, name).marks for name in ("bm25", "minilm")] == ["†", "↓"]


def test_a_question_without_a_score_is_left_out_and_told_and_never_zero():
    table = table_of(bm25_raw=[1.0, None, 0.5, 0.5], bm25_prompted1=[None] * 4)
    score = table.score(RAW, "bm25")
    assert (score.metrics["ndcg@10"], score.n, score.of) == (2 / 3, 3, 4)
    nothing = table.score(ONE, "bm25")
    assert (nothing.metrics["ndcg@10"], nothing.n, nothing.low) == (None, 0, None)
    assert table.comparisons == []
    assert any("raw question in bm25 has a score for 3 of 4 questions" in note for note in table.notes)
    assert "| prompted, turn 1 | – |" in markdown(page([table]))


def test_samples_count_by_their_mean_and_only_when_all_are_scored():
    values = {"a": [0.0, 1.0, 0.5], "b": [1.0, None, 1.0], "c": [1.0, 1.0]}
    rows = [record(q, value, 1, sample) for q, scores in values.items() for sample, value in enumerate(scores)]
    mean_answers = answers_of(["a", "b", "c", "d"], rows, 3)[1]
    assert mean_answers.values == {"a": {"ndcg@10": 0.5}, "b": {"ndcg@10": None}, "c": {}, "d": {}}
    settings = spec(systems={"prompted": {"samples": 3, "temperature": 0.7}})
    table = table_of_answers({(ONE, "bm25"): mean_answers}, settings)
    assert table.score(ONE, "bm25").metrics["ndcg@10"] == 0.5
    assert any("mean over 3 sampled answers" in note and "never the best" in note for note in table.notes)


def test_an_average_is_a_mean_of_means_and_lacks_what_a_part_lacks():
    small = part("one", bm25_raw=[1.0] * 2, bm25_prompted1=[1.0] * 2)
    large = part("two", bm25_raw=[0.0] * 8, minilm_raw=[0.5] * 8)
    table = tabulate(spec(), "Average", [(0.5, small), (0.5, large)])
    assert table.score(RAW, "bm25").metrics["ndcg@10"] == 0.5
    assert table.score(ONE, "bm25") is None
    assert table.score(RAW, "minilm") is None
    assert any("prompted, turn 1 in bm25 was not evaluated on every part" in note for note in table.notes)


def test_parts_are_told_by_their_question_ids():
    values = {"covid/1": {"ndcg@10": 1.0}, "covid/2": {"ndcg@10": 0.0}, "tech/1": {"ndcg@10": 0.25}}
    rows = [record(name, value["ndcg@10"]) for name, value in values.items()]
    question_set = QuestionSet("rag", {(RAW, "bm25"): Answers(list(values), values, rows)})
    covid, tech = split_by_part(question_set)
    assert [subset.title for subset in (covid, tech)] == ["rag: covid", "rag: tech"]
    tables = [tabulate(spec(), subset.title, [(1.0, subset)]) for subset in (covid, tech)]
    assert [table.score(RAW, "bm25").metrics["ndcg@10"] for table in tables] == [0.5, 0.25]
    both = tabulate(spec(), "average", [(0.5, covid), (0.5, tech)])
    assert both.score(RAW, "bm25").metrics["ndcg@10"] == 0.375


def test_metrics_that_share_their_draws_have_the_intervals_that_each_has_alone():
    strata = {
        "ndcg@10": [(0.5, [0.1, 0.5, 0.9, 0.4]), (0.5, [1.0, 0.0, 0.3])],
        "mrr@10": [(0.5, [1.0, 0.2, 0.0, 0.5]), (0.5, [0.5, 0.5, 1.0])],
        "recall@10": [(1.0, [0.0, 1.0, 1.0])],
    }
    alone = {name: mean_cis({name: values}, 200, 3)[name] for name, values in strata.items()}
    assert mean_cis(strata, 200, 3) == alone
    assert len(set(alone.values())) == 3


def test_the_test_of_an_average_weighs_parts_and_not_questions():
    """A gain on the two questions of one part weighs as much as an equal loss on the hundred of the other."""
    gain, loss = Stratum(0.5, [1.0, 1.0], [0.0, 0.0]), Stratum(0.5, [0.0] * 100, [1.0] * 100)
    comparison = compare_strata([gain, loss], resamples=50, permutations=2000, seed=0)
    assert comparison.difference == pytest.approx(0.0)
    assert comparison.p == 1.0
    assert (comparison.wins, comparison.losses) == (2, 100)
    assert compare_strata([gain, Stratum(0.5, [None], [1.0])], resamples=5, permutations=5, seed=0) is None


@pytest.fixture
def matrix():
    columns = {
        "bm25_raw": [0.25] * 4, "bm25_prompted1": [0.75] * 4, "bm25_trained1": [0.5] * 4,
        "minilm_raw": [0.5] * 4, "minilm_prompted1": [0.25] * 4, "minilm_trained1": [1.0] * 4,
    }  # fmt: skip
    table = table_of(**columns)
    return table, transfer(table, "ndcg@10", {"prompted": "bm25", "trained": "minilm"})


def test_the_transfer_matrix_by_hand(matrix):
    _, transfer_matrix = matrix
    at_bm25, at_minilm = transfer_matrix.policies
    assert (at_bm25.values, at_bm25.gains) == ({"bm25": 0.75, "minilm": 0.25}, {"bm25": 0.5, "minilm": -0.25})
    assert (at_minilm.values, at_minilm.gains) == ({"bm25": 0.5, "minilm": 1.0}, {"bm25": 0.25, "minilm": 0.5})
    assert at_bm25.at_home("bm25")
    assert not at_bm25.at_home("minilm")


def test_the_transfer_matrix_takes_the_last_turn():
    columns = {"bm25_raw": [0.5] * 3, "bm25_prompted1": [0.9] * 3, "bm25_prompted2": [0.75] * 3}
    table = table_of(**columns, bm25_trained1=[0.5] * 3)
    transfer_matrix = transfer(table, "ndcg@10", {"prompted": "bm25", "trained": "minilm"})
    assert [policy.gains["bm25"] for policy in transfer_matrix.policies] == [0.25, 0.0]


def test_there_is_no_matrix_of_policies_with_one_school(matrix):
    table, _ = matrix
    assert transfer(table, "ndcg@10", {"prompted": "bm25", "trained": "bm25"}) is None
    assert transfer(table, "ndcg@10", {"trained": "bm25"}) is None


def nine_datasets(settings, environments=("bm25",)):
    """Tables of nine datasets and their average; the prompted system lacks the last one."""
    parts = []
    for number in range(9):
        columns = {}
        for environment in environments:
            columns[f"{environment}_raw"] = [0.1 * number] * 30
            columns[f"{environment}_trained1"] = [0.05 * number + 0.2] * 30
            columns |= {f"{environment}_prompted1": [0.5] * 30} if number < 8 else {}
        parts.append(part(f"set_{number}", **columns))
    tables = [tabulate(settings, dataset.title, [(1.0, dataset)]) for dataset in parts]
    return [*tables, tabulate(settings, "Average", [(1 / 9, dataset) for dataset in parts])]


def cells_of(text, form):
    """Rows of cells without markup; a bold one begins with *."""
    if form is markdown:
        rows = [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")]
        table_rows = [[re.sub(r"\*\*(.*)\*\*", r"*\1", cell.strip()) for cell in row] for row in rows]
    elif form is latex:
        rows = [line.removesuffix(r" \\").split(" & ") for line in text.splitlines() if line.endswith(r"\\")]
        table_rows = [[re.sub(r"\\textbf\{(.*?)\}", r"*\1", cell) for cell in row] for row in rows]
        marks = {r"$^{\dagger}$": "†", r"$^{\downarrow}$": "↓", "--": "–"}
        for old, new in marks.items():
            table_rows = [[cell.replace(old, new).replace("\\_", "_") for cell in row] for row in table_rows]
    else:
        table = text[text.index("<table") : text.index("</table>")]
        rows = [
            re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
        ]
        table_rows = [[re.sub(r"<strong>(.*)</strong>", r"*\1", cell) for cell in row] for row in rows]
    return [row[1:] for row in table_rows]


def test_nine_datasets_make_one_table_with_the_same_figures_in_every_form():
    settings = spec(datasets={f"set_{number}": None for number in range(9)}, systems=BOTH)
    tables = nine_datasets(settings)
    results_page = page(tables, settings=settings)
    tex = latex(results_page)
    assert tex.count("{") == tex.count("}")
    first = tex[: tex.index(r"\end{table*}")]
    assert first.count(r"\begin{tabular}{l" + "r" * 10 + "}") == first.count(r"\caption{") == 1
    figures = cells_of(first, latex)
    assert figures[0] == [*(f"set_{number}" for number in range(9)), "mean"]
    assert figures[1][:5] == ["0.000", "0.100", "0.200", "0.300", "0.400"]
    assert figures[1][8:] == ["*0.800", "*0.400"]
    assert (figures[2][0], figures[2][8:]) == ("*0.500†", ["–", "–"])
    assert figures[3][0] == "0.200†"
    assert cells_of(html(results_page), html) == figures
    assert cells_of(markdown(results_page), markdown)[: len(figures)] == figures
    assert results_page.wide.caption == (
        "nDCG@10 on the test split of 9 datasets with bm25; bold: the best of a column; †: significantly better than "
        "the raw question, ↓: significantly worse (paired permutation tests, Holm-corrected, p < 0.05)."
    )


def test_what_is_written_and_what_it_costs_stand_beside_each_other():
    rewrites = [("q0",), ("other",), ("other",), ("q9",)]
    rows = [replace(record(f"q{n}", 0.5, 1), rewrites=words, cut=n < 2) for n, words in enumerate(rewrites)]
    raw = [record(f"q{n}", 0.25) for n in range(4)]
    results_page = page([table_of_answers({(ONE, "bm25"): answered(rows, 1), (RAW, "bm25"): answered(raw, 0)})])
    head, *_ = [line for line in markdown(results_page).splitlines() if "cut at limit" in line]
    assert [cell.strip() for cell in head.split("|")[2:-1]] == [
        "cut at limit", "in format", "repeats the question", "with fall-back", "LLM calls", "tokens read",
        "tokens written", "retrievals", "seconds",
    ]  # fmt: skip
    line = "| prompted, turn 1 | 50.0% | 100.0% | 25.0% | 0.500 | 1 | 7 | 5.0 | 1.00 | 0.000 |"
    assert line in markdown(results_page)
    assert "| raw question | – | – | – | – | 0 | 7 | 0.0 | 1.00 | 0.000 |" in markdown(results_page)
    assert r"prompted, turn 1 & 50.0\% & 100.0\% & 25.0\% & 0.500 & 1 & 7" in latex(results_page)


LONG_NAMES = [f"collection-of-field-{number}" for number in range(9)]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex (Debian: texlive-latex-recommended)")
def test_latex_compiles_a_table_of_nine_datasets_within_the_page(tmp_path):
    settings, environments = spec(systems=BOTH), ("bm25", "minilm")
    results_page = page(nine_datasets(settings, environments), settings=settings)
    wide = replace(results_page.wide, head=[*LONG_NAMES, "mean"] * len(environments))
    head = r"\documentclass[twocolumn]{article}\usepackage{booktabs,graphicx}"
    text = latex(replace(results_page, wide=wide))
    (tmp_path / "paper.tex").write_text(f"{head}\\begin{{document}}\n{text}\\end{{document}}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout
    assert "Overfull" not in done.stdout


def test_columns_are_named_by_dataset_and_environment_where_there_are_several():
    settings = spec(systems=BOTH)
    values = {"bm25_raw": [0.5] * 3, "minilm_raw": [0.25] * 3, "bm25_prompted1": [0.25] * 3}
    parts = [part(name, **values) for name in ("one", "two")]
    tables = [tabulate(settings, dataset.title, [(1.0, dataset)]) for dataset in parts]
    wide = wide_table_of(settings, [*tables, tabulate(settings, "Average", [(0.5, dataset) for dataset in parts])])
    assert wide.head == [f"{name} · {env}" for env in ("bm25", "minilm") for name in ("one", "two", "mean")]
    assert [cell.value for cell in wide.rows[1][1]] == ["0.250"] * 3 + ["–"] * 3
    assert wide_table_of(spec(), tables[:1]).head == ["bm25", "minilm"]


@pytest.mark.parametrize(("share", "warned"), [(0.2, ["prompted in bm25"]), (0.0, [])])
def test_a_warning_names_prompted_systems_that_are_often_cut_and_no_trained_one(share, warned):
    cut = answered([replace(record(f"q{n}", 0.5, 1), cut=n < 10 * share) for n in range(10)], 1)
    settings = spec(systems={"prompted": {}, "trained": {"run": "runs/x"}})
    table = table_of_answers({(Arm(name, 1), "bm25"): cut for name in ("prompted", "trained")}, settings)
    assert [note.partition(":")[0] for note in table.notes if "20.0% of its answers were cut" in note] == warned


def test_parts_have_no_column_and_their_average_has_one():
    settings = spec(datasets={"rag": None, "two": None})
    covid, tech = part("rag: covid", bm25_raw=[1.0] * 3), part("rag: tech", bm25_raw=[0.5] * 3)
    rag = under_test.tabulate(spec_of_tables(settings), "rag", [(0.5, covid), (0.5, tech)], dataset="rag")
    covid_table = under_test.tabulate(
        spec_of_tables(settings), "rag: covid", [(1.0, covid)], dataset="rag", part="covid"
    )
    wide = wide_table_of(settings, [covid_table, rag])
    assert (wide.head, [cell.value for cell in wide.rows[0][1]]) == (["rag"], ["0.750"])


def test_scores_and_comparisons_as_csv_hold_every_figure():
    settings = spec(systems=BOTH)
    values = {"bm25_raw": [0.0, 0.5] * 20, "bm25_prompted1": [0.5, 1.0] * 20}
    parts = [part("one", **values), part("two", **values)]
    tables = [tabulate(settings, dataset.title, [(1.0, dataset)]) for dataset in parts]
    tables.append(tabulate(settings, "Average", [(0.5, dataset) for dataset in parts]))
    scores = pandas.read_csv(StringIO(scores_csv(tables)), keep_default_na=False)
    ndcg = scores[scores.metric == "ndcg@10"]
    assert list(ndcg.dataset) == ["one", "one", "two", "two", "mean", "mean"]
    prompted = ndcg[(ndcg.dataset == "one") & (ndcg.system == "prompted")].iloc[0]
    assert (float(prompted["mean"]), prompted.n, prompted.marks, prompted.turn) == (0.75, 40, "†", 1)
    values = parts[0].answers[ONE, "bm25"].scored("ndcg@10")
    low, high = mean_cis({"": [(1.0, values)]}, 200, 0)[""]
    assert (float(prompted.low), float(prompted.high)) == (pytest.approx(low), pytest.approx(high))
    assert set(scores[scores.system == "prompted"].metric) == {
        "ndcg@10", "in format", "ndcg@10 with fall-back",
    }  # fmt: skip
    compared = pandas.read_csv(StringIO(comparisons_csv(tables, "ndcg@10")), keep_default_na=False)
    assert list(compared.dataset) == ["one", "two", "mean"]
    (first, expected) = compared.iloc[0], tables[0].comparisons[0]
    assert (first.difference, first.wins, first.ties, first.losses) == (0.5, 40, 0, 0)
    assert (first.p, first.p_holm, first.low, first.high) == (
        expected.test.p, expected.p_holm, expected.test.low, expected.test.high,
    )  # fmt: skip
    assert (first.system, first.against, bool(first.significant)) == ("prompted", "raw", True)


def test_the_transfer_matrix_is_the_same_in_every_form(matrix):
    table, transfer_matrix = matrix
    results_page = page([table], transfer_matrix)
    plain, web, tex = markdown(results_page), html(results_page), latex(results_page)
    assert "| prompted (bm25) | **0.750 (+0.500)** | 0.250 (−0.250) |" in plain
    assert r"prompted (bm25) & \textbf{0.750 (+0.500)} & 0.250 ($-$0.250) \\" in tex
    assert "<td><strong>0.750 (+0.500)</strong></td><td>0.250 (−0.250)</td>" in web
    assert "a &lt;plan&gt; &amp; more" in web


def test_latex_marks_are_commands():
    table = table_of(title="a_b & 1%", bm25_raw=[0.0] * 30, bm25_prompted1=[0.5] * 30)
    tex = latex(page([table]))
    assert r"\textbf{0.500}$^{\dagger}$" in tex
    assert r" & a\_b \& 1\% \\" in tex
    assert "†" not in tex
    assert "p $<$ 0.05" in tex
