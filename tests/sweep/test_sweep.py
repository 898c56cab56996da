"""`querylect sweep`: combinations, names, refusals, the array, the table of run folders, and real runs."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from querylect.cli import main
from querylect.configs.load import dump_config, load_config
from querylect.configs.section import Name
from querylect.errors import ConfigError, StoppedError
from querylect.eval.results import EvalResults, write_json
from querylect.eval.table import Score
from querylect.sweep import runs as sweep_runs
from querylect.sweep.runs import plan_sweep, run_names, run_process

from ..command import end, programs
from ..forked import Forked
from ..lessons import change, records, without_seconds
from ..raising import refused
from ..waiting import PATIENCE, until

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("workdir")]
GRID = ("train.learning_rate=1e-4,1e-3", "rollout.branching=[2,2],[4]")


def plan(*values, overrides=()):
    return plan_sweep("tiny", overrides, values)


def command(*arguments):
    """The exit code of `querylect sweep ARGUMENTS`."""
    return end("sweep", *arguments)


def test_a_grid_has_every_combination_in_the_order_of_its_values():
    runs = plan(*GRID, overrides=["seed=3"]).runs
    assert [run.overrides for run in runs] == [
        {"train.learning_rate": rate, "rollout.branching": tree} for rate in (1e-4, 1e-3) for tree in ([2, 2], [4])
    ]
    for run in runs:
        assert run.config.train.learning_rate == run.overrides["train.learning_rate"]
        assert run.config.rollout.branching == run.overrides["rollout.branching"]
        assert run.config.seed == 3
        assert run.folder == Path("runs/tiny-sweep") / run.name
    assert [run.name for run in runs][:2] == ["learning_rate-0.0001-branching-2-2", "learning_rate-0.0001-branching-4"]


@given(st.lists(st.fixed_dictionaries({"a.model": st.text(max_size=150), "b.model": st.integers()}), max_size=8))
def test_names_are_safe_and_differ_as_the_combinations_do(combinations):
    names = run_names(combinations)
    for name in names:
        assert TypeAdapter(Name).validate_python(name) == name
        assert len(name) <= 120
    distinct = {json.dumps(combination) for combination in combinations}
    assert len(set(names)) == len(distinct)


def test_nothing_starts_where_one_combination_is_invalid(workdir, capsys):
    assert command("tiny", "--set", "train.steps=2,0", "--set", "seed=1,2") == 2
    assert "train.steps" in capsys.readouterr().err
    assert list(workdir.iterdir()) == []
    with refused(ConfigError, "train.stps", "train.steps"):
        plan("train.stps=1,2")
    with refused(ConfigError, "--set"):
        plan("seed=0,1", "seed=2")
    for text in ("seed", "=1", "seed=[1", "name=a,b"):
        with refused(ConfigError, repr(text)):
            plan(text)


def test_the_table_is_read_from_the_run_folders(capsys):
    runs = plan("seed=0,1,2").runs
    for run, value in zip(runs, (0.25, 0.5), strict=False):
        started(run, final=True)
        (run.folder / "best").mkdir()
        record = {"step": 2, "questions": 5, "ndcg/turn1": value, "ndcg/turn2": value / 2, "turn": 1}
        (run.folder / "best" / "best.json").write_text(json.dumps(record))
    scores = [
        Score(
            dataset="hpo", part="", environment="bm25", system=system, turn=turn, label=system, n=5, of=5,
            metrics={"ndcg@10": mean, "recall@10": 1}, intervals={"ndcg@10": (mean - 0.1, 0.9)},
        )
        for system, turn, mean in (("raw", 0, 0.2), ("trained", 1, 0.3), ("trained", 2, 0.4))
    ]  # fmt: skip
    results = EvalResults(
        name="x", split="test", metrics=["ndcg@10", "recall@10"], scores=scores, comparisons=[], turn=1
    )
    write_json(runs[1].folder / "results.json", results)
    started(runs[2])
    assert command("tiny", "--set", "seed=0,1,2", "--table") == 0
    captured = capsys.readouterr()
    assert captured.out == "runs/tiny-sweep/sweep.csv\n"
    steps = runs[2].config.train.steps
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in captured.err.splitlines()[2:]]
    assert cells == [
        ["seed-0", "0", "trained", "0.250", "2", "2.000", "–", "–", "–", "–"],
        ["**seed-1**", "1", "evaluated", "0.500", "2", "2.000", "0.300", "0.200", "0.900", "0.200"],
        ["seed-2", "2", f"step 2 of {steps}", "–", "–", "2.000", "–", "–", "–", "–"],
    ]
    (first, second, _) = csv.DictReader(Path("runs/tiny-sweep/sweep.csv").read_text().splitlines())
    assert (second["seed"], second["best validation ndcg@10"], second["test ndcg@10"]) == ("1", "0.5", "0.3")
    assert first["test ndcg@10"] == ""


def test_a_finished_run_is_left_out_and_a_started_one_goes_on(workdir, capsys):
    runs = plan("seed=0,1,2").runs
    started(runs[0], final=True)
    started(runs[1])
    assert [run.commands(evaluate=True) for run in runs] == [
        [["eval", "runs/tiny-sweep/seed-0"]],
        [["train", "runs/tiny-sweep/configs/seed-1.yaml", "--resume"], ["eval", "runs/tiny-sweep/seed-1"]],
        [["train", "runs/tiny-sweep/configs/seed-2.yaml"], ["eval", "runs/tiny-sweep/seed-2"]],
    ]
    incomplete = runs[0].folder / "results.json"
    incomplete.write_text('{"failed": [{"system": "hyde"}]}')
    assert runs[0].commands(evaluate=True) == [["eval", "runs/tiny-sweep/seed-0"]]
    incomplete.write_text('{"failed": []}')
    assert runs[0].commands(evaluate=True) == []
    incomplete.unlink()
    assert command("tiny", "--set", "seed=0,1,2", "--dry-run") == 0
    assert capsys.readouterr().out.splitlines()[0] == "seed-0: finished"
    with refused(ConfigError, "runs/tiny-sweep/seed-0", "train.learning_rate"):
        plan("seed=0,1", overrides=["train.learning_rate=0.1"])
    plan("seed=0,1", overrides=["eval.limit=3"])  # which changes nothing that was learned


def started(run, final=False):
    run.folder.mkdir(parents=True)
    (run.folder / "config.yaml").write_text(dump_config(run.config))
    (run.folder / "metrics.jsonl").write_text('{"step": 1, "seconds/step": 90}\n{"step": 2, "seconds/step": 30}\n{"st')
    if final:
        (run.folder / "final").mkdir()


def test_an_array_is_submitted_for_runs_of_equal_needs_that_are_left(workdir, tmp_path, monkeypatch):
    programs(tmp_path / "bin", sbatch='echo "$*" >>calls\necho $((11 + $(wc -l <calls)))')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert command("tiny", "--set", "seed=0,1", "--slurm", "--eval") == 0
    first, second = (workdir / "calls").read_text().splitlines()
    assert "--dependency=aftercorr:12 --kill-on-invalid-dep=yes" in second
    assert second.endswith("eval_array.sh runs/tiny-sweep/seed-0 runs/tiny-sweep/seed-1")
    assert " --array=1-2 " in first
    assert load_config("runs/tiny-sweep/configs/seed-1.yaml").seed == 1
    assert command("tiny", "--set", "env.retriever=bm25,contriever", "--slurm") == 2
    for run in plan("seed=0,1").runs:
        started(run, final=True)
    assert command("tiny", "--set", "seed=0,1", "--slurm") == 2
    assert len((workdir / "calls").read_text().splitlines()) == 2


RUN = """#!/usr/bin/env bash
trap 'echo TERM >>received; exit 75' TERM
trap 'echo INT >>received; exit 130' INT
[ "$5" != fails ] || exit 7
touch started
while [ -p pipe ]; do read -t 0.1 <>pipe; done
"""
"""What runs in the place of `python -P -m querylect train CONFIG`."""


def test_a_signal_to_the_sweep_alone_ends_its_run_and_the_sweep(workdir, monkeypatch):
    programs(workdir, python=RUN)
    os.mkfifo(workdir / "pipe")
    monkeypatch.setattr(sys, "executable", str(workdir / "python"))
    assert run_process(["train", "fails"], {}) == 7

    def stop_it():
        until((workdir / "started").exists)
        os.kill(os.getpid(), signal.SIGTERM)

    previous = signal.getsignal(signal.SIGTERM)
    stopper = threading.Thread(target=stop_it)
    stopper.start()
    with pytest.raises(StoppedError):
        run_process(["train", "endless"], {})
    stopper.join()
    assert (workdir / "received").read_text() == "TERM\n"
    assert signal.getsignal(signal.SIGTERM) is previous


@pytest.mark.server
def test_ctrl_c_in_a_terminal_reaches_the_run_once_and_no_other_one_starts(workdir):
    programs(workdir, python=RUN)
    os.mkfifo(workdir / "pipe")
    code = "import sys; from querylect.cli import main; sys.executable = sys.argv[1]; main(sys.argv[2:])"
    arguments = [str(workdir / "python"), "sweep", "tiny", "--set", "seed=0,1"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    until((workdir / "started").exists, lambda: f"no run has started: {process.poll()}")
    os.killpg(process.pid, signal.SIGINT)
    _, printed = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert (workdir / "received").read_text() == "INT\n"
    assert printed.splitlines()[1:] == ["Interrupted. Repeat the command to go on (train and optimize: with --resume)."]


def test_a_run_that_fails_keeps_no_other_one_from_running(workdir, monkeypatch, capsys):
    calls = []

    def run(arguments, variables):
        assert variables == {"WANDB_RUN_GROUP": "tiny-sweep"}
        calls.append(arguments)
        return 1 if "seed-1" in arguments[1] else 0

    monkeypatch.setattr(sweep_runs, "run_process", run)
    assert command("tiny", "--set", "seed=0,1,2", "--eval") == 1
    assert [(call[0], Path(call[1]).stem) for call in calls] == [
        ("train", "seed-0"), ("eval", "seed-0"), ("train", "seed-1"), ("train", "seed-2"), ("eval", "seed-2"),
    ]  # fmt: skip
    captured = capsys.readouterr()
    assert captured.out == "runs/tiny-sweep/sweep.csv\n"
    assert "1 of 3 runs failed: seed-1 (exit code 1)" in captured.err
    assert "failed (exit code 1)" in Path("runs/tiny-sweep/sweep.csv").read_text()


@pytest.fixture
def sweep(settings, tmp_path, monkeypatch):
    """`querylect sweep` of two seeds, each command forked; gives the commands."""
    done = []

    def run(arguments, _):
        done.append([arguments[0], *arguments[2:]])
        outputs = (tmp_path / "stdout", tmp_path / "stderr")
        code = Forked(arguments, *outputs).wait(600)
        sys.stderr.write(outputs[1].read_text())
        return code

    monkeypatch.setattr(sweep_runs, "run_process", run)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    small = {
        "train.steps": 2,
        "train.save_steps": 1,
        "eval.bootstrap": 20,
        "eval.permutations": 20,
        "eval.run_baselines": [],
    }
    config = change(settings, **small, **{"tracking.wandb": "offline", "eval.training_free": []})
    (tmp_path / "base.yaml").write_text(dump_config(config))

    def give(*arguments):
        done.clear()
        with pytest.raises(SystemExit) as ended:
            main(["sweep", str(tmp_path / "base.yaml"), "--set", "seed=0,1", "--name", "seeds", *arguments])
        assert ended.value.code in (0, None)
        return list(done)

    return give


@pytest.mark.slow
def test_runs_are_trained_evaluated_and_continued(sweep, tmp_path, capsys):
    """Slow, since five processes train or evaluate, each with its tracker, as in a user's sweep."""
    assert sweep("--eval") == [["train"], ["eval"]] * 2
    folder = tmp_path / "runs" / "seeds"
    assert capsys.readouterr().out == f"{folder / 'sweep.csv'}\n"
    rows = list(csv.DictReader((folder / "sweep.csv").read_text().splitlines()))
    assert [(row["run"], row["seed"], row["state"]) for row in rows] == [
        ("seed-0", "0", "evaluated"), ("seed-1", "1", "evaluated"),
    ]  # fmt: skip
    for row in rows:
        results = json.loads((folder / row["run"] / "results.json").read_text())
        means = {
            entry["turn"]: entry["metrics"]["ndcg@10"] for entry in results["scores"] if entry["system"] == "trained"
        }
        assert float(row["test ndcg@10"]) == means[2], "without validation the last turn counts"
        steps = records(folder / row["run"] / "metrics.jsonl")
        assert float(row["minutes"]) == pytest.approx(sum(step["seconds/step"] for step in steps) / 60)
        offline = list((folder / row["run"]).glob("wandb/offline-run-*"))
        assert len(offline) == 1, "that of the training"

    stopped = folder / "seed-1"
    metrics = without_seconds(stopped / "metrics.jsonl")
    shutil.rmtree(stopped / "final")
    shutil.rmtree(stopped / "checkpoints" / "checkpoint-2")
    assert sweep() == [["train", "--resume"]]
    assert without_seconds(stopped / "metrics.jsonl") == metrics
    assert (stopped / "final").is_dir()
    assert sweep() == []
