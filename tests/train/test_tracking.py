"""Where curves go besides metrics.jsonl, by the real clients: W&B against a stand-in of its server, and the others.

A child process (tests/forked.py) runs each W&B client, since a process keeps the login that it has found.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..forked import forked
from ..lessons import change, records, without_seconds
from ..wandb_server import KEY, WandbServer
from .test_validation import ASKED, served  # noqa: F401 (fixture)

pytestmark = [pytest.mark.model, pytest.mark.slow]

TRACKED = """
import json, sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from querylect.configs.schema import RunConfig
from querylect.train.arguments import grpo_config
from querylect.train.run_folder import RunFolder
from querylect.train.tracking import tracker_callbacks
from transformers import TrainerControl, TrainerState
folder, settings = RunFolder(Path(sys.argv[1])), json.loads(sys.argv[2])
first, last = int(sys.argv[3]), int(sys.argv[4])
config = RunConfig.model_validate({"name": "walk", "tracking": settings})
provenance = {"step": first - 1, "git": {"commit": "c0ffee", "dirty": True}}
args = grpo_config(config, folder.path)
state, control = TrainerState(global_step=first - 1), TrainerControl()
cleanup = ExitStack()
callbacks = tracker_callbacks(SimpleNamespace(run=config, folder=folder, args=args), provenance, cleanup)
for callback in callbacks:
    callback.on_train_begin(args, state, control, model=None)
for step in range(first, last + 1):
    state.global_step = step
    for callback in callbacks:
        callback.on_log(args, state, control, logs={"loss": 1.0, "reward/turn1": step / 10})
        callback.on_log(args, state, control, logs={"eval_reward/turn1": step / 20})
for callback in callbacks:
    callback.on_train_end(args, state, control)
cleanup.close()
"""


@pytest.fixture
def server(run_app):
    running = WandbServer()
    with run_app(running.app) as running.url:
        yield running


def surroundings(url: str, home: Path) -> dict[str, str]:
    """The environment of a child that has only this login."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    return inherited | {"WANDB_BASE_URL": url, "HOME": str(home), "NETRC": str(home / ".netrc"), "WANDB_API_KEY": KEY}


def tensorboard_figures(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a folder: (step, value) by name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), purge_orphaned_data=True)
    accumulator.Reload()
    names = accumulator.Tags()["scalars"]
    return {name: [(event.step, event.value) for event in accumulator.Scalars(name)] for name in names}


def test_tensorboard_shows_metrics_jsonl_with_validation_and_a_resumed_run_once(settings, served):  # noqa: F811
    pytest.importorskip("tensorboard", reason="no TensorBoard: pip install -e '.[tensorboard]'")
    from querylect.train.run import train

    with served(ASKED) as url:
        validated = {"client.urls": [url], "train.validate_steps": 1, "train.validation_questions": 1}
        plain = change(settings, **validated, **{"train.steps": 2, "train.save_steps": 1})
        without = train(change(plain, name="without"))
        folder = train(change(plain, name="with", **{"tracking.report_to": ["tensorboard"]}))
        shutil.rmtree(folder / "checkpoints" / "checkpoint-2")
        shutil.rmtree(folder / "final")
        train(change(plain, name="with", **{"tracking.report_to": ["tensorboard"]}), resume=True)  # step 2 again
    for name in ("metrics.jsonl", "validation.jsonl"):
        assert without_seconds(folder / name) == without_seconds(without / name), "tracking changes no figure"
    expected: dict[str, list[tuple[int, float]]] = {}
    for prefix, name in (("train/", "metrics.jsonl"), ("eval/", "validation.jsonl")):
        for record in records(folder / name):
            for key, value in record.items():
                if key != "step":
                    expected.setdefault(prefix + key, []).append((record["step"], pytest.approx(value, rel=1e-5)))
    assert tensorboard_figures(folder / "tensorboard") == expected


def test_trackio_has_the_figures_of_a_run_and_its_resumption(tmp_path):
    pytest.importorskip("trackio", reason="no trackio: pip install -e '.[trackio]'")
    environment = os.environ | {"TRACKIO_DIR": str(tmp_path / "trackio"), "HOME": str(tmp_path)}
    run = tmp_path / "walk"
    for first, last in ((1, 2), (3, 3)):
        tracked(run, environment, first, last, wandb="disabled", report_to=["trackio"])
    name = f"walk-{(run / 'tracking_id').read_text().strip()}"
    program = (
        "import json; from trackio.sqlite_storage import SQLiteStorage as S; "
        f"print(json.dumps([S.get_runs('querylect'), S.get_logs('querylect', {name!r})]))"
    )
    done = forked([], tmp_path / "read", environment, code=program)
    runs, logged = json.loads(done.stdout.splitlines()[-1])
    assert runs == [name], "one run"
    trained = [row for row in logged if "train/reward/turn1" in row]
    assert [(row["train/global_step"], row["train/reward/turn1"]) for row in trained] == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert [row["eval/reward/turn1"] for row in logged if "eval/reward/turn1" in row] == [0.05, 0.1, 0.15]


def tracked(folder: Path, environment: dict[str, str], first: int, last: int, **tracking) -> str:
    """Track steps `first` to `last` in a child; what it prints to stderr. Its stdout stays empty."""
    folder.mkdir(exist_ok=True)
    arguments = [str(folder), json.dumps(tracking), str(first), str(last)]
    done = forked(arguments, folder.with_name("child"), environment, code=TRACKED)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_an_offline_run_that_was_resumed_is_uploaded_as_one_curve(server, tmp_path):
    run = tmp_path / "walk"
    environment = surroundings(server.url, tmp_path) | {"WANDB_RUN_GROUP": "rates"}
    tracked(run, environment, 1, 2)
    tracked(run, environment, 3, 3)
    assert server.operations == [], "nothing was asked of the server while it trained"

    command = [sys.executable, "-P", "-m", "wandb", "sync", *sorted(map(str, run.glob("wandb/offline-run-*")))]
    subprocess.run(command, env=environment | {"WANDB_DIR": str(tmp_path)}, check=True, timeout=300)
    id = (run / "tracking_id").read_text().strip()
    assert {bucket["name"] for bucket in server.buckets} == {id}
    lines = [line for line in server.history[id] if "train/global_step" in line]
    names = ("_step", "train/global_step", "train/reward/turn1", "eval/reward/turn1")
    assert [tuple(line.get(name) for name in names) for line in lines] == [
        (1, 1, 0.1, 0.05), (2, 2, 0.2, 0.1), (3, 3, 0.3, 0.15),
    ]  # fmt: skip
    configs = [json.loads(bucket["config"]) for bucket in server.buckets if bucket["config"]]
    assert configs[0]["provenance"]["value"]["git"]["commit"] == "c0ffee"
    assert "rates" in {bucket.get("groupName") for bucket in server.buckets}


def test_an_online_run_without_a_login_is_refused_in_a_sentence(server, tmp_path):
    environment = surroundings(server.url, tmp_path) | {"WANDB_API_KEY": ""}
    arguments = [str(tmp_path), json.dumps({"wandb": "online"}), "1", "1"]
    done = forked(arguments, tmp_path / "child", environment, code=TRACKED)
    assert done.returncode
    assert "ConfigError: " in done.stderr.splitlines()[-1]
    assert "tracking.wandb=offline" in done.stderr.splitlines()[-1]
