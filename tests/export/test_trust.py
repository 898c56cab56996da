"""A run folder of another user, or an export from the Hub, runs no code without --trust in any command; with it, it
does."""

import json
import shutil
from contextlib import suppress

import pytest
from querylect.cli import main
from querylect.configs import load
from querylect.configs.environment import EnvironmentConfig
from querylect.configs.load import load_run_config
from querylect.configs.schema import RunConfig
from querylect.envs.build import build_index
from querylect.errors import CheckpointError, ConfigError
from querylect.train import run_folder
from querylect.train.run_folder import RunFolder

from ..lessons import change
from ..raising import refused
from ..used import select_turn

pytestmark = pytest.mark.model

ASKING = ["-q", "my head hurts"]


@pytest.fixture(autouse=True)
def of_another_user(monkeypatch):
    for module in (load, run_folder):
        monkeypatch.setattr(module, "is_own", lambda folder: False)


def retriever_code(folder):
    """A retriever in Python, with the index that belongs to it."""
    body = "class Retriever:\n    def __init__(self, documents): pass\n    def rank(self, probes, limits): return []\n"
    (folder / "evil.py").write_text(f"open({str(folder.parent / 'marker')!r}, 'w')\n{body}")
    changes = {"env.retriever": f"python:{folder / 'evil.py'}", "env.index": str(folder / "own-index")}
    dataset = {"path": str(folder / "data")}
    env = {"dataset": dataset, **{key.removeprefix("env."): value for key, value in changes.items()}}
    build_index(EnvironmentConfig.model_validate(env))
    (folder.parent / "marker").unlink()
    return changes


@pytest.fixture
def stranger(trained_run, speaking, lessons, tmp_path):
    """A run folder of another user whose retriever is a file of Python."""
    config, run = trained_run
    folder = tmp_path / "of-another" / "run"
    shutil.copytree(run, folder)
    select_turn(folder, 2)  # it searches
    shutil.copytree(speaking, folder / "model")
    shutil.copytree(lessons.index, folder / "index")
    shutil.copytree(lessons.dataset.path, folder / "data")
    (folder / "eval.jsonl").touch()  # `answers` reads what was found
    paths = {"env.index": "index", "env.dataset.path": "data", "policy.model": "model"}
    paths = {key: str(folder / name) for key, name in paths.items()}
    config = change(config, **{"client.urls": "local", **paths, **retriever_code(folder)})
    (folder / "config.yaml").write_text(json.dumps(config.model_dump(mode="json", exclude_defaults=True)))
    return folder


@pytest.mark.parametrize("name", ["rewrite", "eval", "eval of a spec", "answers", "export", "serve"])
def test_without_trust_no_command_runs_code_of_another_user(name, stranger, lessons, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = stranger
    (tmp_path / "mine.yaml").write_text(json.dumps({"env": lessons.model_dump(mode="json")}))
    out = str(tmp_path / "out")
    spec = {
        "datasets": {"lessons": lessons.dataset.model_dump(mode="json")},
        "environments": {"bm25": {}},
        "systems": {"run": {"run": str(folder)}},
    }
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    command = {
        "rewrite": ["rewrite", str(folder), *ASKING],
        "eval": ["eval", str(folder)],
        "eval of a spec": ["eval", str(tmp_path / "spec.yaml"), "training_free=[]", "-o", out],
        "answers": ["answers", str(folder)],
        "export": ["export", str(folder), "--to", out, "--merge-lora", "--without-evaluation"],
        "serve": ["serve", str(tmp_path / "mine.yaml"), "--rewriter", str(folder)],
    }[name]
    with pytest.raises(SystemExit) as stop:
        main(command)
    stderr = capfd.readouterr().err
    assert stop.value.code in (1, 2), stderr
    assert "env.retriever" in stderr
    assert "--trust" in stderr
    assert not (folder.parent / "marker").exists()


def test_trust_on_the_very_call_runs_it(stranger, capfd):
    with suppress(SystemExit, Exception):  # the code is of no use
        main(["rewrite", str(stranger), *ASKING, "--trust"])
    assert (stranger.parent / "marker").exists(), capfd.readouterr()


def test_what_the_user_sets_is_not_the_folders_word(tmp_path):
    (tmp_path / "config.yaml").write_text("env: {retriever: 'python:theirs.py'}\n")
    with refused(ConfigError, "env.retriever=python:theirs.py", "--trust"):
        load_run_config(tmp_path)
    assert load_run_config(tmp_path, ["env.retriever=python:mine.py"]).env.retriever == "python:mine.py"
    assert load_run_config(tmp_path, trust=True).env.retriever == "python:theirs.py"


def test_to_resume_the_run_of_another_user_reads_no_pickle(tmp_path, monkeypatch):
    """DeepSpeed's checkpoints are pickles."""
    config = change(RunConfig(), output=str(tmp_path), name="run")
    folder = RunFolder(config.run_folder)
    folder.create(config.model_dump(mode="json"))
    (folder.checkpoints / "checkpoint-1" / "global_step1").mkdir(parents=True)
    (folder.checkpoints / "checkpoint-1" / "global_step1" / "x_optim_states.pt").touch()
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with refused(CheckpointError, tmp_path / "run", "--trust"):
        folder.reopen(config)
    folder.reopen(config, trust=True)
    monkeypatch.setattr(run_folder, "is_own", lambda path: True)
    folder.reopen(config)
