"""The page of `querylect report`: kinds of folders, words and figures by hand, and escaping of hostile text."""

import html
import json
import re
import shlex
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from querylect.configs.evaluation import SpecConfig
from querylect.configs.spec_files import load_spec
from querylect.envs.index.open import open_index
from querylect.errors import ConfigError, DataError, StorageError
from querylect.eval.drift.report import write_files
from querylect.eval.drift.results import DriftSettings
from querylect.eval.drift.run import measure
from querylect.eval.identity import judgements_identity
from querylect.eval.records import EvalRecord
from querylect.eval.report import folder_report as under_test
from querylect.eval.report.browse import DatasetEnvironment, KnownDocuments, as_data, choose, plan_lines
from querylect.eval.report.documents import judgements, titles
from querylect.eval.report.folder_report import render, write_report
from querylect.eval.report.forest import draw_table
from querylect.eval.report.lengths import Lengths, lengths_by_turn, totals
from querylect.eval.report.sources import EvaluationFolder, read_folders, read_source
from querylect.eval.report.verdicts import headline, verdicts
from querylect.eval.results import EnvironmentEntry, SpecResults, table_json, table_of
from querylect.rewriters.card import RetrieverCard

from ..command import end
from ..evaluated import HOSTILE, LONG
from ..lessons import ASKED
from ..raising import refused
from ..unit.test_eval_curves import run
from ..unit.test_eval_drift_words import KEYWORDS, SENTENCES, plain
from ..unit.test_eval_spec_tables import part, spec, tabulate
from .test_eval_drift import embed
from .test_eval_report import Reader


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A real folder of drift between two retrievers; not to be changed."""
    questions = [f"why symptom{n}?" for n in range(30)]
    systems = [plain("lay $a$", KEYWORDS, questions), plain("dense", SENTENCES, questions)]
    settings = DriftSettings(permutations=99, bootstrap=99, success="all", shared=True)
    folder = tmp_path_factory.mktemp("measured")
    write_files(measure(systems, settings, embed, "hash"), folder, "now")
    return folder


@pytest.fixture
def drift(measured, tmp_path):
    """A copy of it."""
    return shutil.copytree(measured, tmp_path / "some drift")


def browse_data(page):
    return json.loads(Reader(page).scripts[0])


def test_a_table_is_read_back_as_it_was_written():
    columns = {"bm25_raw": [0.5] * 30, "bm25_prompted1": [0.1] * 29 + [None], "minilm_raw": [None] * 30}
    for parts in ([(1.0, part("one", **columns))], [(0.5, part("one", **columns)), (0.5, part("two", **columns))]):
        table = tabulate(spec(), "one", parts)
        assert table_of(json.loads(json.dumps(table_json(table)))) == table


def test_the_figures_of_the_page_are_those_of_the_results(evaluated, tmp_path):
    page = write_report([evaluated], tmp_path / "page.html", 3).read_text()
    results = json.loads((evaluated / "results.json").read_text())
    cells = re.findall(r"<tr><th scope=\"row\">(.*?)</th>(.*?)</tr>", page)
    for row in results["tables"][0]["rows"]:
        score = row["scores"]["bm25"]
        mean, (low, high) = score["metrics"]["ndcg@10"], score["intervals"]["ndcg@10"]
        wide, narrow = [row_cells for label, row_cells in cells if label == row["label"]][:2]
        assert f"{mean:.3f}" in wide
        assert f"{mean:.3f}" in narrow
        assert f"<small>{low:.3f} to {high:.3f}</small>" in narrow
        assert f"{row['label']} {mean:.3f} ({low:.3f} to {high:.3f})" in page
    for row in results["tables"][0]["comparisons"]:
        assert f"{row['mean_a']:.3f} against {row['mean_b']:.3f}" in page or not row["significant"]
    dropped = "with leaks=drop: questions that a run was trained on, by id or words, are left out"
    for text in ("Nothing beats the raw question on lessons in bm25.", "Only 5 questions", "bm25 (bm25)", dropped):
        assert text in page
    environment = results["places"][0]
    assert environment["documents"] == 5
    assert all(environment[key][:12] in page for key in ("corpus",))
    assert all(environment["identity"][key][:12] in page for key in ("index", "judgements"))
    assert f"querylect {results['versions']['querylect']}" in page


def test_the_page_stands_alone_and_allows_only_its_own_script(hostile, drift, tmp_path):
    training = run(tmp_path / "runs" / "a", rows=[{"step": 1, "think_tokens/turn1": 5.0, "reward/turn1": 0.5}])
    page = write_report([hostile, drift, training], tmp_path / "page.html", 3).read_text()
    reader = Reader(page)
    addresses, ids = reader.values("href", "src", "xlink:href", "action"), reader.values("id")
    downloads = [address for address in addresses if address.startswith("data:")]
    assert len(downloads) == 4
    inside = [address for address in addresses if address not in downloads]
    assert all(address.startswith("#") for address in inside)
    assert {address[1:] for address in inside} <= set(ids)
    assert len(ids) == len(set(ids))
    assert not [name for _, name, _ in reader.attributes if name.startswith("on")]
    assert len(reader.scripts) == 2
    assert page.count("<script") == 2
    assert "window.hurt" not in reader.scripts[1]
    texts = [question["text"] for question in json.loads(reader.scripts[0])["questions"]]
    assert {HOSTILE, LONG} <= set(texts)
    assert "Length of thinking" in page
    assert "lay $a$ and dense" in page


def test_folders_are_told_apart_and_others_are_named(evaluated, drift, tmp_path):
    kinds = [type(read_source(folder)).__name__ for folder in (evaluated, drift, run(tmp_path / "run"))]
    assert kinds == ["EvaluationFolder", "DriftFolder", "TrainingRun"]
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "notes.txt").write_text("")
    (tmp_path / "begun" / "cells").mkdir(parents=True)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "eval.jsonl").write_text("")
    expected = ("results.json", "drift.json", "config.yaml")
    for name, facts in (
        ("odd", ("notes.txt", *expected)),
        ("missing", expected),
        ("odd/notes.txt", expected),
        ("begun", ("querylect eval",)),
        ("one", ("report.html",)),
    ):
        with refused(ConfigError, tmp_path / name, *facts):
            read_source(tmp_path / name)
    original = (drift / "drift.json").read_text()
    (drift / "drift.json").write_text(original.replace("0.", "1.", 1))
    with refused(StorageError, drift / "drift.json", "querylect drift"):
        read_source(drift)
    (drift / "drift.json").write_text('{"systems": []}', encoding="utf-8")
    with refused(DataError, drift / "drift.json", "created", "querylect drift"):
        read_source(drift)


def test_where_the_page_goes(drift, tmp_path, monkeypatch):
    monkeypatch.setattr(under_test, "render", lambda *_: "page")
    curves = run(tmp_path / "runs" / "a")
    assert write_report([drift, curves, drift], None, 3) == drift / "report.html"
    assert write_report([curves], None, 3) == curves.resolve() / "training.html"
    folder = tmp_path / "deep" / "er"
    folder.mkdir(parents=True)
    (folder / "drift.json").write_bytes((drift / "drift.json").read_bytes())
    assert write_report([drift, folder], None, 3) == tmp_path.resolve() / "report.html"
    assert write_report([drift], folder, 3) == folder / "report.html"
    assert write_report([drift], folder / "x.html", 3).read_text() == "page"


def test_a_verdict_by_hand():
    low, high = [0.0, 0.5] * 60, [0.5, 1.0] * 60
    table = tabulate(
        spec(), "one", [(1.0, part("one", bm25_raw=low, bm25_prompted1=high, bm25_prompted2=low, minilm_raw=high,
                                  minilm_prompted1=low))]
    )  # fmt: skip
    better, worse = verdicts(spec(), [table])
    assert (better.environment, better.mood, worse.mood) == ("bm25", "good", "bad")
    (first, (gain,)), (second, (same,)) = better.statements
    assert (first, second) == ("Better than the raw question:", "One other does not differ significantly:")
    assert gain.startswith(
        "prompted, turn 1: 0.750 against 0.250 for the raw question (difference +0.500, 95% interval "
    )
    assert gain.endswith("p = 0.001, Holm-adjusted p = 0.003), n = 120")
    assert same.startswith("prompted, turn 2: 0.250 against 0.250")
    assert [(heading, len(rows)) for heading, rows in worse.statements] == [
        ("Nothing beats the raw question.", 0),
        ("Worse than the raw question:", 1),
    ]
    assert headline([better, worse], spec(), [table]) == (
        "Something beats the raw question in 1 of 2 combinations of dataset and environment.",
        "mixed",
    )
    assert headline([worse], spec(), [table]) == ("Nothing beats the raw question on one in minilm.", "bad")
    assert headline([], spec(), [table])[0] == "No system could be compared with the raw question."


def test_the_verdict_is_about_raw_whatever_stands_first_among_the_baselines():
    settings = spec(baselines=["prompted", "raw"])
    columns = {"bm25_raw": [0.5] * 30, "bm25_prompted2": [0.1] * 30, "bm25_trained1": [0.3] * 30}
    (verdict,) = verdicts(settings, [tabulate(settings, "one", [(1.0, part("one", **columns))])])
    assert (verdict.beaten, verdict.undercut) == (False, True)
    assert verdict.statements[0][0] == "Nothing beats the raw question."
    assert "Better than prompted, turn 2:" in [statement for statement, _ in verdict.statements]


def test_the_plot_marks_what_is_significant():
    worse = {"bm25_raw": [0.5] * 30, "bm25_prompted1": [0.1] * 30}
    better = {"minilm_raw": [0.5] * 30, "minilm_prompted1": [0.9] * 30, "minilm_prompted2": [0.5] * 30}
    table = tabulate(spec(), "one", [(1.0, part("one", **worse, **better))])
    first, second = draw_table(table, "ndcg@10", "raw", "forest").svgs
    assert "prompted, turn 1 0.100 (0.100 to 0.100)" in first
    assert ("var(--series-1)" in first, "var(--series-2)" in first) == (False, True)
    assert ("var(--series-1)" in second, "var(--series-2)" in second) == (True, False)
    empty = tabulate(spec(), "one", [(1.0, part("one", bm25_raw=[None]))])
    assert draw_table(empty, "ndcg@10", "raw", "forest") is None


def answer(question, value, turn=1, sample=0, **changes):
    values = {"think": "", "rewrites": ("a b",), "ranking": ("d1",), "tokens": 5 * turn, "prompt_tokens": 10 * turn,
              "searches": turn, "calls": turn, "format_ok": True, "seconds": 0.5 * turn, "sample": sample,
              **changes}  # fmt: skip
    return EvalRecord("s", turn, question, f"text of {question}", metrics={"ndcg@10": value}, **values)


def chosen(raw, scored, limit=2):
    environment = DatasetEnvironment("", "set", "bm25", {name: answer(name, value, 0) for name, value in raw.items()})
    records = [answer(name, value) for name, value in scored.items()]
    (group,) = choose(environment, "s", records, 1, "ndcg@10", limit)
    return group


def test_the_questions_are_chosen_by_the_rule():
    raw = dict.fromkeys("abcdefgh", 0.5) | {"i": None}
    scored = {"a": 0.6, "b": 0.9, "c": 0.9, "d": 0.1, "e": 0.0, "f": 0.5, "g": 0.5, "h": None, "i": 1.0}
    group = chosen(raw, scored)
    assert group.counts == {"helped": 3, "hurt": 2, "unchanged": 2}
    picks = {kind: [pick.question_id for pick in picks] for kind, picks in group.picks.items()}
    assert picks == {"helped": ["b", "c"], "hurt": ["e", "d"], "unchanged": ["f"]}
    data = as_data([group], {("", "set"): KnownDocuments({}, None)}, 1, True)
    assert [data["questions"][item["question"]]["id"] for item in data["items"]] == ["b", "e", "f"]
    assert [item["change"] for item in data["items"]] == [0.4, -0.5, 0.0]


def test_of_several_samples_the_mean_counts_and_the_nearest_is_shown():
    environment = DatasetEnvironment("", "set", "bm25", {"q": answer("q", 0.2, 0)})
    records = [answer("q", value, sample=number) for number, value in enumerate([0.0, 0.5, 0.4])]
    (group,) = choose(environment, "s", records, 3, "ndcg@10", 2)
    (pick,) = group.picks["helped"]
    assert (pick.score, pick.record.sample, pick.samples) == (pytest.approx(0.3), 2, 3)


def test_data_name_relevant_documents_and_those_that_nobody_found():
    group = chosen({"a": 0.0}, {"a": 1.0})
    documents = KnownDocuments({"d1": "Title"}, {"a": {"d1": 1, "far": 2, "near": 2, "x": 1, "y": 1, "z": 1, "zz": 1}})
    data = as_data([group], {("", "set"): documents}, 2, True)
    names = [entry[0] for entry in data["documents"]]
    assert data["documents"][0] == ["d1", "Title"]
    relevant = [(names[number], grade) for number, grade in data["questions"][0]["relevant"]]
    assert relevant == [("d1", 1), ("far", 2), ("near", 2), ("x", 1), ("y", 1), ("z", 1)]
    assert data["questions"][0]["judged"] == 7
    unknown = as_data([group], {("", "set"): KnownDocuments({}, None)}, 2, True)
    assert unknown["questions"][0]["relevant"] is None


def test_a_plan_is_told_where_it_is_more_than_the_rewrites():
    def lines_of(**plan):
        return plan_lines(answer("q", 1.0, rewrites=("x", "y"), plan=plan))

    both = [{"terms": [{"text": "x"}]}, {"terms": [{"text": "y"}]}]
    assert lines_of(probes=both, fuse="max") is None
    assert plan_lines(answer("q", 1.0)) is None
    weighed = [{"terms": [{"text": "x", "weight": 0.5}, {"text": "y", "weight": -1}], "k": 5}, both[1]]
    assert lines_of(probes=weighed, fuse="rrf") == ["0.5 × x  +  -1 × y  (first 5)", "1 × y", "fused by rrf"]


def test_a_page_that_would_be_too_large_shows_fewer_questions_and_says_so(evaluated, monkeypatch):
    material = read_folders([evaluated])
    part = under_test.parts.evaluation_part(0, "plan", material.evaluations[0])
    monkeypatch.setattr(under_test.parts, "evaluation_part", lambda *_: part)  # drawn once
    full_page = render(material, 4, "command", "now")
    data = browse_data(full_page)
    assert {group["turn"] for group in data["groups"]} == {0, 1, 2}
    pages = [full_page]
    while "none is shown" not in pages[-1]:
        pages.append(render(material, 4, "command", "now", len(pages[-1].encode()) - 1))
        assert len(pages[-1].encode()) < len(pages[-2].encode())
        assert "To keep the page small" in pages[-1] or "none is shown" in pages[-1]
    assert {group["turn"] for group in browse_data(pages[-2])["groups"] if group["system"] == "prompted"} == {2}
    assert "only the last turn" in pages[-2]
    assert 'id="browse-data"' not in pages[-1]


def test_lengths_and_costs_by_hand():
    rows = [
        answer("q", 1.0, 1, think="one two", rewrites=("a b", "c")),
        answer("q", 1.0, 2, think="one", rewrites=("d",)),
        answer("r", 0.0, 1, think="lost in thought", rewrites=("never sent",), format_ok=False),
        answer("r", 0.0, 2, rewrites=("e f",)),
    ]
    assert lengths_by_turn(rows) == {1: Lengths(2, 5, 1, 3), 2: Lengths(2, 1, 2, 3)}
    assert (Lengths(2, 5, 1, 3).think_mean, Lengths(2, 5, 1, 3).rewrite_mean) == (2.5, 3.0)
    assert (Lengths().think_mean, Lengths(1, 4).rewrite_mean) == (None, None)
    cost_totals = asdict(totals(rows))
    assert cost_totals == {"answers": 2, "calls": 4, "tokens_in": 60, "tokens_out": 20, "searches": 4, "seconds": 2.0}
    assert totals([*rows, answer("s", 1.0, calls=None)]).calls is None, "as in records of earlier versions"
    unsaid = totals([*rows, answer("s", 1.0, tokens=None, prompt_tokens=None)])
    assert (unsaid.tokens_in, unsaid.tokens_out, unsaid.searches) == (None, None, 5)
    assert totals([answer("q", 1.0, 0, tokens=0, prompt_tokens=0, searches=1, seconds=0.25)]).calls == 0


def test_titles_come_from_the_index_that_was_searched_and_else_from_the_corpus(lessons, tmp_path, monkeypatch):
    values = {
        "datasets": {"lessons": lessons.dataset.model_dump()},
        "environments": {"here": {"env": {"index": lessons.index}}},
    }
    settings = SpecConfig.model_validate(values)
    grades = {f"t-{name}": relevant for name, (_, relevant) in ASKED.items()}

    def evaluation(**identity):
        entry = EnvironmentEntry("lessons", "here", RetrieverCard("bm25", "bm25"), identity)
        return EvaluationFolder(tmp_path, settings, SpecResults("now", "x", "", [], [], [entry], [], {}), [])

    right = evaluation(index=open_index(lessons.index).manifest.index_hash, judgements=judgements_identity(grades))
    assert titles(right, "lessons", {"statin", "nowhere"}) == {"statin": "About statin"}
    assert judgements(right, "lessons") == grades
    wrong = evaluation(index="other", judgements="other")
    assert titles(wrong, "lessons", {"statin"}) == {"statin": "About statin"}
    assert judgements(wrong, "lessons") is None

    def missing_corpus(_):
        raise DataError("the dataset is gone")

    monkeypatch.setattr("querylect.eval.report.documents.open_corpus", missing_corpus)
    assert titles(wrong, "lessons", {"statin"}) == {}
    assert titles(right, "lessons", {"fat", "statin"}) == {"statin": "About statin"}


def test_the_commands_are_quoted_and_are_those_of_the_folders(
    evaluated, drift, tmp_path, replace_function, monkeypatch
):
    training = run(tmp_path / "runs" / "mine").rename(tmp_path / "runs" / "my run")
    page = write_report([training, drift, evaluated], tmp_path / "my page.html", 4).read_text()
    commands = re.findall(r"<dd><pre tabindex=\"0\">(.*?)</pre>", page)
    eval_, drift_, train_, report_ = (shlex.split(html.unescape(command)) for command in commands)
    assert eval_ == ["querylect", "eval", str(evaluated / "plan.yaml"), "--output", str(evaluated)]
    assert load_spec(eval_[2]).name == "plan"
    measured = []
    monkeypatch.setattr("querylect.eval.drift.run.write_drift", lambda *arguments: measured.append(arguments))
    assert end(*drift_[1:]) == 0
    ((sources, settings, output, overwrite),) = measured
    assert (list(sources), output, overwrite) == (["lay $a$", "dense"], drift, False)
    assert settings == DriftSettings(permutations=99, bootstrap=99, success="all", shared=True)
    trained = replace_function("train.run", "train", training)
    assert end(*train_[1:]) == 0
    assert trained[0][0][0].name == "my-run-again"
    again = replace_function("eval.report.folder_report", "write_report", Path("x"))
    assert end(*report_[1:]) == 0
    assert again == [(([evaluated, drift, training], tmp_path / "my page.html", 4), {})]
