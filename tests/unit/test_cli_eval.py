"""`querylect eval`: spec or run as its argument, its flags, and its exit codes."""

from pathlib import Path

import pytest
from querylect.configs.spec_files import load_spec
from querylect.errors import BaselineError, IncompleteError
from querylect.eval.spec_tables import label
from querylect.eval.table import Arm

from ..command import end, mistake
from ..service.test_cli import replace_function  # noqa: F401 (a fixture)

SPEC = "datasets: {hpo: {kind: hpo}}\nenvironments: {bm25: {}}\n"


@pytest.fixture(autouse=True)
def _summaries(monkeypatch):
    """What is printed of results, which no evaluation of this file writes; and the index of `tiny` is there."""
    monkeypatch.setattr("querylect.rollouts.preflight.check_run", lambda config, name=None: None)
    monkeypatch.setattr("querylect.eval.results.summary", lambda path: "the table of a run")
    monkeypatch.setattr("querylect.eval.results.spec_summary", lambda path: "the tables of a spec")


@pytest.fixture
def path(tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC)
    return str(tmp_path / "spec.yaml")


def test_a_spec_is_carried_out_and_a_run_is_not_taken_for_one(replace_function, path, capsys):  # noqa: F811
    spec_calls = replace_function("eval.spec", "evaluate_spec", (Path("out/tables.md"), None))
    run_calls = replace_function("eval.run", "evaluate_each", [Path("report.html")])
    assert end("eval", path, "limit=3", "-o", "out") == 0
    assert end("eval", "grid", "--trust") == 0
    assert end("eval", "tiny", "--overwrite") == 0
    assert run_calls[0][0][-1] is True
    assert spec_calls == [
        ((load_spec(path, ["limit=3"]), Path("out"), None, False, False), {}),
        ((load_spec("grid"), None, None, False, True), {}),
    ]
    assert len(run_calls) == 1
    assert capsys.readouterr().out == "out/tables.md\nout/tables.md\nreport.html\n"


def test_failed_cells_make_the_exit_code_one_after_the_tables_are_told(replace_function, path, capsys):  # noqa: F811
    replace_function("eval.spec", "evaluate_spec", (Path("tables.md"), IncompleteError("2 of 3 cells failed")))
    assert end("eval", path) == 1
    captured = capsys.readouterr()
    assert captured.out == "tables.md\n"
    assert "incomplete: 2 of 3 cells failed" in captured.err


def test_flags_stand_for_a_spec(replace_function):  # noqa: F811
    spec_calls = replace_function("eval.spec", "evaluate_spec", (Path("tables.md"), None))
    flags = ["--dataset", "hpo", "--retriever", "bm25", "--rewriter", "small", "--run", "mine=runs/demo"]
    assert end("eval", "limit=4", *flags, "--turns", "2", "--model", "m") == 0
    (((spec, output, check, overwrite, trust), _),) = spec_calls
    assert (output, check, overwrite, trust) == (None, None, False, False)
    assert list(spec.systems) == ["first_titles", "rm3", "weighted_words", "small", "mine"]
    assert (spec.limit, spec.systems["mine"].turns) == (4, 2)


def test_baselines_are_told_on_the_standard_error_and_a_wrong_one_is_exit_code_one(replace_function, path, capsys):  # noqa: F811
    spec_calls = replace_function(
        "eval.spec", "evaluate_spec", (Path("tables.md"), BaselineError("bm25 on hpo is wrong"))
    )
    run_calls = replace_function("eval.run", "evaluate_each", [Path("report.html")])
    assert end("eval", path, "--check-baselines") == 1
    assert end("eval", "tiny", "--check-baselines") == 0
    for check in (spec_calls[0][0][2], run_calls[0][0][-2]):
        check("bm25: right")
    captured = capsys.readouterr()
    assert captured.out == "tables.md\nreport.html\n"
    assert "error: bm25 on hpo is wrong" in captured.err
    assert captured.err.count("bm25: right") == 2
    assert "the table of a run" in captured.err
    assert "the tables of a spec" in captured.err


def test_an_endpoint_stands_for_the_model_of_all_rewriters(replace_function):  # noqa: F811
    spec_calls = replace_function("eval.spec", "evaluate_spec", (Path("tables.md"), None))
    flags = ["--rewriter", "hyde", "--model", "m", "--endpoint", "http://h/v1"]
    assert end("eval", "--dataset", "hpo", "--retriever", "bm25", *flags) == 0
    llm = spec_calls[0][0][0].systems["hyde"].llm
    assert (llm.model, llm.base_url) == ("m", "http://h/v1")


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ([], ["--dataset", "--retriever"]),
        (["SPEC", "--dataset", "hpo"], ["SPEC"]),
        (["SPEC", "--endpoint", "http://h"], ["SPEC"]),
        (["tiny", "--turns", "3"], ["'tiny'"]),
        (["SPEC", "--checkpoint", "best"], ["--checkpoint", "systems.NAME.checkpoint"]),
        (["SPEC", "limt=3"], ["'limt=3'", "limit"]),
    ],
)
def test_what_does_not_go_together_is_refused(arguments, facts, path, capsys):
    mistake("eval", *(path if word == "SPEC" else word for word in arguments))
    stderr = capsys.readouterr().err
    assert all((path if fact == "SPEC" else fact) in stderr for fact in facts), stderr


def test_a_dry_run_prints_a_spec_that_can_be_given_again(path, tmp_path, capsys):
    assert end("eval", path, "limit=3", "--dry-run") == 0
    (tmp_path / "again.yaml").write_text(capsys.readouterr().out)
    assert load_spec(str(tmp_path / "again.yaml")) == load_spec(path, ["limit=3"])


def test_a_dry_run_shows_the_rows_of_warm_starts_and_baselines(path, tmp_path, capsys):
    (tmp_path / "run" / "warm_start").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text("rollout: {branching: [1, 1], max_new_tokens: 6}\n")
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "run" / "warm_start" / name).write_text("{}")
    systems = ["systems.other={run: elsewhere}", f"systems.mine={{run: {tmp_path / 'run'}, turns: 2}}"]
    assert end("eval", path, *systems, "training_free=[]", "--dry-run") == 0
    (tmp_path / "again.yaml").write_text(capsys.readouterr().out)
    spec = load_spec(str(tmp_path / "again.yaml"))
    assert list(spec.systems) == ["other", "mine-untrained", "mine-hyde", "mine-warm-start", "mine"]
    assert spec.systems["mine-hyde"].rollout.max_new_tokens == 12
    assert (spec.systems["mine-warm-start"].checkpoint, spec.systems["mine-warm-start"].turns) == ("warm_start", 2)
    assert label(spec, Arm("mine-warm-start", 2)) == "mine, warm start, turn 2"
