"""kill -9 in the middle of `index build`, `train` or `eval`, then the same command again: nothing is lost.

A command is killed as it is about to change a file for the n-th time, n drawn at random: these are the moments at which
something half-written could stay behind. What the second command leaves must equal the result of one that nobody
disturbed. `QUERYLECT_KILLS=50` asks for more than twelve.
"""

import json
import os
import random
import shutil
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml
from querylect.data.beir import load_beir, save_beir
from querylect.data.types import Question, Split
from querylect.envs.environment import Environment
from querylect.envs.server.app import create_app

from ..forked import Forked
from ..lessons import change, contents, lesson_settings, without_seconds

pytestmark = [pytest.mark.model, pytest.mark.slow]

KILLS = int(os.environ.get("QUERYLECT_KILLS", "12"))
COMMANDS = {"index": ("index", "build", "--overwrite"), "train": ("train",), "eval": ("eval",)}
RUN_IT = """
import os, signal, sys, threading

count, fatal, folder = 0, int(sys.argv[1]), sys.argv[2]
changes = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate", "shutil.rmtree"}
lock = threading.Lock()

def hook(event, arguments):
    global count
    written = event in changes or (event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR))
    if written and str(arguments[0]).startswith(folder + "/"):
        with lock:
            count += 1
            if count == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(hook)
from querylect.cli import main
try:
    main(sys.argv[3:])
finally:
    print(count, file=open(sys.argv[2] + ".changes", "w"))
"""


@dataclass
class Place:
    """A folder with the settings of a small index, run and evaluation; commands are run in it."""

    folder: Path
    config: object

    @classmethod
    def new(cls, folder: Path, config) -> "Place":
        folder.mkdir()
        values = {"output": str(folder / "runs"), "env.index": str(folder / "index"), "train.validate_steps": 2}
        config = change(config, **values, **{"train.save_steps": 1, "eval.permutations": 50, "eval.bootstrap": 50})
        (folder / "run.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
        return cls(folder, config)

    @property
    def run(self) -> Path:
        return self.folder / "runs" / self.config.name

    def start(self, name: str, *flags: str, fatal: int = 0) -> int:
        """Run a command to its end; its exit code."""
        target = self.run if name == "eval" else self.folder / "run.yaml"
        arguments = [str(fatal), str(self.folder), *COMMANDS[name], str(target), *flags]
        outputs = self.folder.parent / f"{self.folder.name}.out", self.folder.parent / f"{self.folder.name}.err"
        return Forked(arguments, *outputs, code=RUN_IT).wait(600)

    def stderr(self) -> str:
        return (self.folder.parent / f"{self.folder.name}.err").read_text()

    def result(self, name: str) -> object:
        """What a command has left, without times and folders."""
        if name == "index":
            return contents(self.folder / "index")
        if name == "train":
            logs = [
                without_seconds(self.run / file) for file in ("metrics.jsonl", "rollouts.jsonl", "validation.jsonl")
            ]
            return [*logs, contents(self.run / "final")["adapter_model.safetensors"]]
        (records,) = self.run.glob("**/eval.jsonl")
        return sorted(json.dumps(line, sort_keys=True) for line in without_seconds(records))


@pytest.fixture(scope="module")
def undisturbed(lessons, speaking, run_app, tmp_path_factory):
    """A place in which every command has run, and the number of changes to files that each made; a copy of the place
    before each command is beside it. The questions are those of `lessons` with a validation split."""
    base = tmp_path_factory.mktemp("kills")
    dataset = load_beir(Path(lessons.dataset.path))
    held_out = [
        Question(f"v-{question.id}", f"tell me: {question.text}") for question in dataset.splits["train"].questions
    ]
    qrels = {f"v-{name}": grades for name, grades in dataset.splits["train"].qrels.items()}
    save_beir(replace(dataset, splits={**dataset.splits, "validation": Split(held_out, qrels)}), base / "data")
    env = lessons.model_copy(update={"dataset": lessons.dataset.model_copy(update={"path": str(base / "data")})})
    changes = {}
    with run_app(create_app(Environment.open(env))) as url:
        place = Place.new(base / "straight", lesson_settings(env, url, speaking, base))
        for name in COMMANDS:
            shutil.copytree(place.folder, base / f"before-{name}")
            assert place.start(name) == 0, place.stderr()
            changes[name] = int((base / "straight.changes").read_text())
        yield place, changes


@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_command_given_again_leaves_what_an_undisturbed_one_does(undisturbed, number, tmp_path):
    straight, changes = undisturbed
    name = list(COMMANDS)[number % len(COMMANDS)]
    expected = straight.result(name)
    kept = straight.folder.with_name("kept")
    straight.folder.rename(kept)  # runs name their folder: each try has the same one
    try:
        shutil.copytree(kept.with_name(f"before-{name}"), straight.folder)
        fatal = random.Random(number).randint(1, changes[name])
        assert straight.start(name, fatal=fatal) == -signal.SIGKILL, straight.stderr()
        resume = ["--resume"] if name == "train" and (straight.run / "config.yaml").exists() else []
        assert straight.start(name, *resume) == 0, f"{name} after change {fatal}: {straight.stderr()}"
        assert straight.result(name) == expected, f"{name} after change {fatal}"
        assert not list(straight.folder.rglob("*.tmp")), "nothing half-written stays"
    finally:
        shutil.rmtree(straight.folder)
        kept.rename(straight.folder)
