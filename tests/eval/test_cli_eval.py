"""`querylect eval`: spec or run as its argument, its flags, and its exit codes."""

from pathlib import Path

import pytest
from querylect.configs.evaluation import load_spec
from querylect.configs.load import load_config
from querylect.eval.run import spec_of_run

from ..command import end

SPEC = "datasets: {hpo: {path: hpo}}\nenvironments: {bm25: {}}\n"


@pytest.fixture
def report(tmp_path):
    """The report of an evaluation, beside its tables."""
    (tmp_path / "tables.md").write_text("the tables")
    return tmp_path / "report.html"


@pytest.fixture
def path(tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC)
    return str(tmp_path / "spec.yaml")


def test_a_spec_is_carried_out_and_a_run_is_made_one(replace_function, path, report, capsys):
    calls = replace_function("eval.spec", "evaluate_spec", (report, None))
    assert end("eval", path, "limit=3", "-o", "out") == 0
    assert end("eval", "grid", "--trust") == 0
    assert end("eval", "tiny", "--overwrite") == 0
    tiny = load_config("tiny")
    assert calls == [
        ((load_spec(path, ["limit=3"]), Path("out"), False, False), {"run": None}),
        ((load_spec("grid"), None, False, True), {"run": None}),
        ((spec_of_run(tiny, None), Path("runs/tiny-untrained"), True, False), {"run": tiny}),
    ]
    captured = capsys.readouterr()
    assert captured.out.split() == [str(report)] * 3
    assert captured.err.count("the tables") == 3


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
