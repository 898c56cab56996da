"""Where curves go besides metrics.jsonl, by the real clients: W&B against a stand-in of its server, and the others.

A child process runs each W&B client, since a process keeps the login that it has found; each takes two to ten seconds.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from querylect.configs.schema import RunConfig
from querylect.errors import ConfigError, TrackingError
from querylect.train import tracking as syncing
from querylect.train.tracking import (
    CLOSING_SECONDS,
    SENDING_SECONDS,
    STOPPING_SECONDS,
    Trackers,
    _Lane,
    check_report_to,
    open_trackers,
    segments,
    sync,
    wandb_mode,
)

from ..lessons import change, lesson_url, lessons, records, settings, speaking, without_seconds  # noqa: F401 (fixtures)
from ..wandb_server import KEY, wandb_server
from .test_train_validation import ASKED, served  # noqa: F401 (fixture)

CHILD = """
import json, logging, sys
from pathlib import Path
logging.basicConfig(level=logging.WARNING, format="%(message)s")
from querylect.configs.schema import RunConfig
from querylect.train.tracking import open_trackers
config = RunConfig.model_validate({"name": "walk", "tracking": json.loads(sys.argv[2])})
trackers = open_trackers(config, Path(sys.argv[1]), {"git": {"directory": {"commit": "c0ffee", "dirty": True}}})
for line in sys.stdin:
    kind, step = line.split()
    if kind == "log":
        trackers.log({"step": int(step), "reward/turn1": int(step) / 10}, int(step))
    else:
        trackers.table(["step", "said"], [[int(step), "triptan"]], int(step))
    print(kind, step, flush=True)
trackers.finish()
"""

SYNCING = """
import os, sys
from pathlib import Path
from querylect.errors import QuerylectError
from querylect.train.tracking import sync
for line in sys.stdin:
    os.environ["WANDB_API_KEY"] = line.strip()
    try:
        sync([Path(sys.argv[1])])
    except QuerylectError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
"""


@pytest.fixture
def server():
    with wandb_server() as running:
        yield running


def surroundings(url: str | None, home: Path, key: str | None = KEY) -> dict[str, str]:
    """The environment of a child that knows no other login than this one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    given = {"WANDB_BASE_URL": url or "http://127.0.0.1:9", "HOME": str(home), "NETRC": str(home / ".netrc")}
    return kept | given | ({"WANDB_API_KEY": key} if key else {})


@contextmanager
def walk(folder: Path, environment: dict[str, str], **tracking):
    """A child that tracks a run; `say("log 3")` has it log step 3."""
    folder.mkdir(exist_ok=True)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), json.dumps(tracking)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip

    def say(line: str) -> None:
        child.stdin.write(f"{line}\n")
        child.stdin.flush()
        assert child.stdout.readline().strip() == line, child.stderr.read()

    child.say = say
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def walked(folder: Path, environment: dict[str, str], *lines: str, **tracking) -> str:
    """What a child says on stderr that tracks these lines to its end."""
    with walk(folder, environment, **tracking) as child:
        for line in lines:
            child.say(line)
        _, said = child.communicate(timeout=120)
        assert child.returncode == 0, said
        return said


def until(what) -> None:
    """Wait for something that a child or a thread does."""
    patience, moment = time.monotonic() + 60, threading.Event()
    while not what():
        assert time.monotonic() < patience, "it did not come"
        moment.wait(0.05)


def querylect(*arguments: object, environment: dict[str, str]) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "querylect", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


def test_offline_unless_somebody_says_otherwise(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    default = RunConfig().tracking
    assert wandb_mode(default) == "offline"
    for said, meant in {"online": "online", "disabled": "disabled", "offline": "offline", "dryrun": "offline"}.items():
        monkeypatch.setenv("WANDB_MODE", said)
        assert wandb_mode(default) == meant
        assert wandb_mode(change(RunConfig(), **{"tracking.wandb": "offline"}).tracking) == "offline"


def test_an_offline_run_and_its_resumption_are_uploaded_under_one_id_once(server, tmp_path):
    here = surroundings(server.url, tmp_path)
    run = tmp_path / "walk"
    assert walked(run, here, "log 1", "table 1", "log 2") == ""
    assert walked(run, here, "log 3") == ""
    assert server.operations == [], "nothing was asked of the server while it trained"
    done = querylect("sync", run, environment=here)
    assert done.returncode == 0, done.stderr
    id = (run / "tracking_id").read_text().strip()
    assert done.stdout == f"{run}: uploaded to {server.url}/me/querylect/runs/{id}\n"
    assert {bucket["name"] for bucket in server.buckets} == {id}
    lines = server.history[id]
    assert [(line["_step"], line["reward/turn1"]) for line in lines if "reward/turn1" in line] == [
        (1, 0.1), (2, 0.2), (3, 0.3),
    ]  # fmt: skip
    assert any("rollouts" in line for line in lines), "the table is in the curves"
    assert any("rollouts" in name for name in server.uploads), "and its rows were uploaded"
    config = json.loads(next(bucket["config"] for bucket in server.buckets if bucket["config"]))
    assert config["provenance"]["value"]["git"]["directory"]["commit"] == "c0ffee"
    assert config["tracking"]["value"]["project"] == "querylect"
    asked = len(server.operations)
    said: list[str] = []
    sync([run], told=said.append)
    assert said == [f"{run}: nothing to upload, Weights & Biases has all of it"]
    assert len(server.operations) == asked


def test_an_online_run_sends_its_figures_and_leaves_nothing_to_say(server, tmp_path):
    run = tmp_path / "walk"
    said = walked(run, surroundings(server.url, tmp_path), "log 1", "log 2", wandb="online")
    assert "Weights & Biases" not in said, said
    (lines,) = server.history.values()
    assert [line["reward/turn1"] for line in lines if "reward/turn1" in line] == [0.1, 0.2]
    assert not list(run.glob("wandb/offline-run-*"))


def test_what_a_sync_says_where_it_cannot(server, tmp_path):
    run = tmp_path / "walk"
    here = surroundings(server.url, tmp_path)
    walked(run, here, "log 1")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.suffix != ".log"}
    child = subprocess.Popen(
        [sys.executable, "-c", SYNCING, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=here
    )

    def fails(kind: str, words: str, mood: str = "well", key: str = KEY) -> None:
        server.mood = mood
        child.stdin.write(f"{key}\n")
        child.stdin.flush()
        said = child.stdout.readline()
        assert said.startswith(f"{kind}: ")
        assert words in said
        assert KEY not in said
        assert before == {path: path.read_bytes() for path in before}
        assert not list(run.rglob("*.synced"))

    with child:
        fails("UserError", "nobody is logged in", key="")
        fails("UserError", "has expired, or was revoked", mood="401")
        fails("TrackingError", "answers HTTP 500", mood="500")
        fails("TrackingError", "did not take all", mood="stream 401")  # which W&B's own client calls synced
        server.close()
        fails("TrackingError", "cannot be reached")
        child.stdin.close()
    assert before == {path: path.read_bytes() for path in before}


def test_an_upload_has_an_end(tmp_path, monkeypatch, caplog):
    left = tmp_path / "wandb" / "offline-run-20260102_000000-abcd" / "run-abcd.wandb"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"x" * 200_000)
    monkeypatch.setattr(syncing, "check_server", lambda: None)
    monkeypatch.setattr(syncing, "UPLOADING_SECONDS", 0.01)
    with caplog.at_level("INFO"), pytest.raises(TrackingError, match=r"had not taken .* after 0\.01 s"):
        sync([tmp_path])
    assert f"uploading {left}, 0.2 MB" in caplog.text
    assert not list(tmp_path.rglob("*.synced"))


def test_a_folder_without_an_offline_run_is_told(tmp_path):
    with pytest.raises(ConfigError, match="holds no offline run"):
        segments(tmp_path)
    online = tmp_path / "wandb" / "run-20260101_000000-abcd"
    online.mkdir(parents=True)
    (online / "run-abcd.wandb").write_bytes(b"")
    with pytest.raises(ConfigError, match="--include-online"):
        segments(tmp_path)
    later = tmp_path / "wandb" / "offline-run-20260102_000000-abcd"
    later.mkdir()
    (later / "run-abcd.wandb").write_bytes(b"")
    (tmp_path / "wandb" / "latest-run").symlink_to(later)
    assert [one.path.parent for one in segments(tmp_path, include_online=True)] == [online, later], "each once, in time"


def test_a_login_that_is_refused_at_the_start_is_told_and_the_run_is_tracked_offline(server, tmp_path):
    server.mood = "401"
    run = tmp_path / "walk"
    said = walked(run, surroundings(server.url, tmp_path), "log 1", wandb="online")
    assert said.count("cannot be used online") == 1
    assert "querylect sync" in said
    assert KEY not in said
    assert len(list(run.glob("wandb/offline-run-*/run-*.wandb"))) == 1


def test_nobody_is_asked_for_a_key(tmp_path):
    said = walked(tmp_path / "walk", surroundings(None, tmp_path, key=None), "log 1", wandb="online")
    assert "nobody is logged in" in said
    assert list(tmp_path.glob("walk/wandb/offline-run-*"))


def test_a_login_that_expires_in_the_middle_ends_in_an_offline_run_of_the_same_id(server, tmp_path):
    run = tmp_path / "walk"
    with walk(run, surroundings(server.url, tmp_path), wandb="online") as child:
        child.say("log 1")
        until(lambda: server.buckets)
        server.mood = "401"
        for line in ("log 2", "table 2", "log 3"):
            child.say(line)
        _, said = child.communicate(timeout=120)
    assert said.count("refused this run") == 1
    id = (run / "tracking_id").read_text().strip()
    (offline,) = run.glob(f"wandb/offline-run-*-{id}")
    assert list(offline.glob("files/media/table/rollouts_*.json")), "the table that was refused"


def test_a_server_that_no_longer_answers_keeps_no_run_waiting():
    """The lane's own thread waits; nothing that the training calls does, and its end waits a set time."""
    stuck = threading.Event()

    class Stuck:
        name = "stuck"

        def log(self, figures, step):
            stuck.wait()

    trackers = Trackers([_Lane("stuck", Stuck)])
    started = time.monotonic()
    for step in range(1000):
        trackers.log({"loss": 1.0}, step)
    trackers.finish(seconds=0.2)
    assert time.monotonic() - started < 20
    stuck.set()


def test_all_trackers_have_one_deadline_together(monkeypatch):
    deadlines = []

    def ended(lane, until):
        deadlines.append(until)
        return lane.name == "quick"

    monkeypatch.setattr(_Lane, "ended", ended)
    trackers = Trackers([_Lane(name, lambda: None) for name in ("slow", "slower", "quick")])
    trackers.finish(seconds=7)
    assert len(deadlines) == 3
    assert len(set(deadlines)) == 1
    assert SENDING_SECONDS < STOPPING_SECONDS < CLOSING_SECONDS, "W&B's client has ended when a signal's time is over"


def test_trackers_are_closed_after_all_is_saved_and_where_nothing_could_begin(settings, monkeypatch):  # noqa: F811
    from querylect.train import run, tracking, trainer

    closed = []

    class Noted(Trackers):
        def finish(self, seconds=0.0):
            closed.append(sorted(path.name for path in folder.glob("final")))

    def fails(**_):
        raise ConfigError("no such loss")

    monkeypatch.setattr(tracking, "open_trackers", lambda *_: Noted([]))
    short = change(settings, **{"train.steps": 1})
    with monkeypatch.context() as broken:
        broken.setattr(trainer, "TreeTrainer", fails)
        failing = change(short, name="failing")
        folder = Path(failing.output) / failing.name
        with pytest.raises(ConfigError, match="no such loss"):
            run.train(failing)
    folder = Path(short.output) / short.name
    run.train(short)
    assert closed == [[], ["final"]]


def test_a_tracker_that_fails_is_told_once_and_the_others_go_on(caplog):
    got = []

    class Full:
        name = "full"

        def log(self, figures, step):
            raise OSError(28, "No space left on device")

    class Well:
        name = "well"

        def log(self, figures, step):
            got.append((step, figures))

        def close(self):
            got.append("closed")

    trackers = Trackers([_Lane("full", Full), _Lane("well", Well)])
    trackers.log({"step": 1, "loss": 0.5}, 1)
    trackers.log({"step": 2, "loss": 0.4}, 2)
    trackers.finish()
    assert got == [(1, {"loss": 0.5}), (2, {"loss": 0.4}), "closed"]
    assert caplog.text.count("No space left on device") == 1


def test_a_package_that_is_missing_is_told_before_anything_is_loaded(monkeypatch):
    from querylect.train import tracking

    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"trackio is not installed.*pip install 'querylect\[trackio\]'"):
        check_report_to(change(RunConfig(), **{"tracking.report_to": ["trackio"]}))
    check_report_to(RunConfig())


def tensorboard_figures(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a folder: (step, value) by name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), purge_orphaned_data=True)
    read.Reload()
    return {name: [(one.step, one.value) for one in read.Scalars(name)] for name in read.Tags()["scalars"]}


def test_tensorboard_shows_metrics_jsonl_with_validation_and_a_resumed_run_once(settings, served):  # noqa: F811
    pytest.importorskip("tensorboard", reason="no TensorBoard: install querylect[tensorboard]")
    from querylect.train.run import train

    with served(ASKED) as url:
        validated = {"client.urls": [url], "train.validate_steps": 2, "train.validation_questions": 1}
        plain = change(settings, **validated, **{"train.steps": 3, "train.save_steps": 1})
        without = train(change(plain, name="without"))
        folder = train(change(plain, name="with", **{"tracking.report_to": ["tensorboard"]}))
        shutil.rmtree(folder / "checkpoints" / "checkpoint-3")
        shutil.rmtree(folder / "final")
        train(change(plain, name="with", **{"tracking.report_to": ["tensorboard"]}), resume=True)  # step 3 again
    for name in ("metrics.jsonl", "validation.jsonl"):
        assert without_seconds(folder / name) == without_seconds(without / name), "tracking changes no figure"
    wanted: dict[str, list[tuple[int, float]]] = {}
    for prefix, name in (("", "metrics.jsonl"), ("validation/", "validation.jsonl")):
        for record in records(folder / name):
            for key, value in record.items():
                if key != "step":
                    wanted.setdefault(prefix + key, []).append((record["step"], pytest.approx(value, rel=1e-5)))
    assert tensorboard_figures(folder / "tensorboard") == wanted


def test_trackio_has_the_figures_of_a_run_and_its_resumption(tmp_path):
    pytest.importorskip("trackio", reason="no trackio: install querylect[trackio]")
    here = os.environ | {"TRACKIO_DIR": str(tmp_path / "trackio"), "HOME": str(tmp_path)}
    run = tmp_path / "walk"
    for lines in (("log 1", "log 2"), ("log 3",)):
        with walk(run, here, wandb="disabled", report_to=["trackio"]) as child:
            for line in lines:
                child.say(line)
            out, said = child.communicate(timeout=120)
            assert (child.returncode, out) == (0, ""), said
    name = f"walk-{(run / 'tracking_id').read_text().strip()}"
    read = (
        "import json; from trackio.sqlite_storage import SQLiteStorage as S; "
        f"print(json.dumps([S.get_runs('querylect'), S.get_logs('querylect', {name!r})]))"
    )
    done = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, env=here, timeout=120)
    runs, logged = json.loads(done.stdout.splitlines()[-1])
    assert runs == [name], "one run"
    assert [(row["step"], row["reward/turn1"]) for row in logged] == [(1, 0.1), (2, 0.2), (3, 0.3)]


def test_trackers_are_none_where_nothing_is_asked_for(tmp_path):
    trackers = open_trackers(change(RunConfig(), **{"tracking.wandb": "disabled"}), tmp_path, {})
    trackers.log({"loss": 1.0}, 1)
    trackers.finish()
    assert list(tmp_path.iterdir()) == []
