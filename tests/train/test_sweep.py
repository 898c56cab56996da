"""`querylect sweep` with real runs: trained, evaluated, in one table, and continued where one was stopped."""

import csv
import json
import shutil
import sys

import pytest
from querylect.cli import main
from querylect.configs.load import dump_config
from querylect.sweep import local

from ..forked import Forked
from ..lessons import change, records, without_seconds


@pytest.fixture
def sweep(settings, tmp_path, monkeypatch):
    """`querylect sweep` of two seeds, each command forked; gives the commands."""
    done = []

    def run(arguments):
        done.append([arguments[0], *arguments[2:]])
        outputs = (tmp_path / "stdout", tmp_path / "stderr")
        code = Forked(arguments, *outputs).wait(600)
        sys.stderr.write(outputs[1].read_text())
        return code

    monkeypatch.setattr(local, "run_process", run)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    small = {"train.steps": 2, "train.save_steps": 1, "eval.bootstrap": 20, "eval.permutations": 20, "eval.hyde": False}
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
    assert capsys.readouterr().out == f"{folder / 'sweep.md'}\n"
    rows = list(csv.DictReader((folder / "sweep.csv").read_text().splitlines()))
    assert [(row["run"], row["seed"], row["state"]) for row in rows] == [
        ("seed-0", "0", "evaluated"), ("seed-1", "1", "evaluated"),
    ]  # fmt: skip
    for row in rows:
        results = json.loads((folder / row["run"] / "results.json").read_text())
        means = {
            entry["turn"]: entry["metrics"]["ndcg@10"] for entry in results["systems"] if "trained" in entry["system"]
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
