"""Where curves go besides metrics.jsonl, by the real clients: W&B against a stand-in of its server, and the others.

A child process (tests/forked.py) runs each W&B client, since a process keeps the login that it has found.
"""

import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from querylect.configs.schema import RunConfig
from querylect.errors import ConfigError, TrackingError
from querylect.train import sync as syncing
from querylect.train.arguments import check_report_to, grpo_config
from querylect.train.final_evaluation import track_evaluation
from querylect.train.tracking import (
    CLOSING_SECONDS,
    SENDING_SECONDS,
    STOPPING_SECONDS,
    GuardedCallback,
    Trackers,
    open_trackers,
    wandb_mode,
)
from transformers import TrainerCallback, TrainerState

from ..forked import forked
from ..lessons import change, records, without_seconds
from ..raising import logged, refused
from ..wandb_server import KEY, WandbServer, wandb_server
from .test_train_validation import ASKED, served  # noqa: F401 (fixture)

TRACKED = """
import json, logging, sys
from pathlib import Path
logging.basicConfig(level=logging.WARNING, format="%(message)s")
from querylect.configs.schema import RunConfig
from querylect.train.arguments import grpo_config
from querylect.train.run_folder import RunFolder
from querylect.train.tracking import open_trackers
from transformers import TrainerState
folder, settings, first, last = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
config = RunConfig.model_validate({"name": "walk", "tracking": settings})
provenance = {"step": first - 1, "git": {"directory": {"commit": "c0ffee", "dirty": True}}}
trackers = open_trackers(config, folder, provenance)
trackers.begin(grpo_config(config, folder), TrainerState(global_step=first - 1))
if first == 1:
    trackers.log_warm_start(RunFolder(folder).read(folder / "warm_start.jsonl"))
for step in range(first, last + 1):
    table = [[step, *["triptan"] * 9]] if step == 2 and config.tracking.table_steps else ()
    trackers.log({"step": step, "reward/turn1": step / 10}, table)
    trackers.log({"step": step, "reward/turn1": step / 20}, prefix="eval_")
trackers.close()
"""


@pytest.fixture
def server():
    with wandb_server() as running:
        yield running


def surroundings(url: str | None, home: Path, key: str | None = KEY) -> dict[str, str]:
    """The environment of a child that has only this login."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    login = {"WANDB_BASE_URL": url or "http://127.0.0.1:9", "HOME": str(home), "NETRC": str(home / ".netrc")}
    return inherited | login | ({"WANDB_API_KEY": key} if key else {})


def tracked(
    folder: Path, environment: dict[str, str], first: int, last: int, before: str = "", after: str = "", **tracking
) -> str:
    """Track steps `first` to `last` in a child; what it prints to stderr. Its stdout stays empty."""
    folder.mkdir(exist_ok=True)
    arguments = [str(folder), json.dumps(tracking), str(first), str(last)]
    done = forked(arguments, folder.with_name("child"), environment, code=before + TRACKED + after)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return done.stderr


@pytest.fixture
def sync(tmp_path):
    """`querylect sync ARGUMENTS` in a child, with this environment."""

    def run(*arguments: object, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return forked(["sync", *map(str, arguments)], tmp_path / "sync", environment)

    return run


def test_offline_unless_somebody_says_otherwise(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    default = RunConfig().tracking
    assert wandb_mode(default) == "offline"
    modes = {"online": "online", "disabled": "disabled", "offline": "offline", "dryrun": "offline"}
    for mode, expected in modes.items():
        monkeypatch.setenv("WANDB_MODE", mode)
        assert wandb_mode(default) == expected
        assert wandb_mode(change(RunConfig(), **{"tracking.wandb": "offline"}).tracking) == "offline"


def test_an_offline_run_resumed_and_evaluated_is_uploaded_under_one_id_once(server, sync, tmp_path):
    """With a warm start and another run open beside it, whatever the user's W&B variables say."""
    run = tmp_path / "walk"
    environment = surroundings(server.url, tmp_path)
    environment |= {"WANDB_WATCH": "all", "WANDB_LOG_MODEL": "end", "WANDB_SILENT": "true"}
    run.mkdir()
    (run / "warm_start.jsonl").write_text("".join(f'{{"step": {step}, "loss": {3 - step}}}\n' for step in (1, 2)))
    grouped = {"group": "rates", "tags": ["hpo", "tiny"]}
    beside = {"before": BEFORE.format(folder=str(tmp_path)), "after": AFTER}
    assert "wandb failed" not in tracked(run, environment, 1, 2, **beside, **grouped)
    assert "wandb failed" not in tracked(run, environment, 3, 3, **grouped)
    rewards = "".join(f'{{"step": {step}, "reward/turn1": {step / 10}}}\n' for step in (1, 2, 3))
    (run / "metrics.jsonl").write_text(rewards)
    start = {"git": {"directory": {"commit": "c0ffee"}}}
    (run / "provenance.json").write_text(json.dumps({"starts": [{}, start]}))
    rows = [{"system": "raw", "turn": 0}, {"system": "trained", "turn": 1}, {"system": "trained", "turn": 2}]
    systems = [{**row, "metrics": {"ndcg@10": number / 8}} for number, row in enumerate(rows)]
    results = json.dumps({"split": "test", "questions": 9, "systems": systems})
    for folder in (run, run / "evaluations" / "test-3"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.json").write_text(results)
        assert evaluated(run, folder, environment) == ""
    assert len(list(run.glob("wandb/offline-run-*"))) == 3, "nothing is said of other questions"
    assert server.operations == [], "nothing was asked of the server while it trained"

    done = sync(run, environment=environment)
    assert done.returncode == 0, done.stderr
    id = (run / "tracking_id").read_text().strip()
    assert done.stdout == f"{run}: uploaded to {server.url}/me/querylect/runs/{id}\n"
    assert {bucket["name"] for bucket in server.buckets} == {id}
    lines = [line for line in server.history[id] if "train/global_step" in line]
    names = ("_step", "train/global_step", "train/warm_start/loss", "train/reward/turn1", "eval/reward/turn1")
    assert [tuple(line.get(name) for name in names) for line in lines] == [
        (1, -1, 2, None, None), (2, 0, 1, None, None),
        (3, 1, None, 0.1, 0.05), (4, 2, None, 0.2, 0.1), (5, 3, None, 0.3, 0.15),
    ]  # fmt: skip
    assert ["rollouts" in line for line in lines] == [False] * 3 + [True, False], "the table is in the curves"
    assert any("rollouts" in name for name in server.uploads), "and its rows were uploaded"
    assert not any("model" in name for name in server.uploads)
    configs = [json.loads(bucket["config"]) for bucket in server.buckets if bucket["config"]]
    for config in configs[0], configs[-1]:
        assert config["provenance"]["value"]["git"]["directory"]["commit"] == "c0ffee"
    assert configs[0]["tracking"]["value"]["project"] == "querylect"
    opened = [bucket for bucket in server.buckets if bucket["tags"]]
    assert {(bucket["groupName"], *bucket["tags"]) for bucket in opened} == {("rates", "hpo", "tiny")}
    final = {name: value for name, value in server.summary[id].items() if name.startswith("final/")}
    assert final == {
        "final/split": "test", "final/questions": 9, "final/raw/ndcg@10": 0,
        "final/trained/turn1/ndcg@10": 0.125, "final/trained/turn2/ndcg@10": 0.25,
    }  # fmt: skip
    assert server.summary[id]["train/reward/turn1"] == 0.3, "what training had put there"

    operation_count = len(server.operations)
    assert sync(run, environment=environment).stdout == f"{run}: everything has been uploaded before\n"
    assert sync(run, environment=surroundings(server.url, tmp_path, key=None)).returncode == 0, "no login is needed"
    assert len(server.operations) == operation_count


def test_an_evaluation_of_an_untracked_run_opens_nothing(tmp_path):
    (tmp_path / "results.json").write_text("{}")
    for mode, tracked_before in (("offline", False), ("disabled", True)):
        if tracked_before:
            (tmp_path / "tracking_id").write_text("abcd\n")
        track_evaluation(change(RunConfig(), **{"tracking.wandb": mode}), tmp_path, tmp_path / "report.html")
        assert not (tmp_path / "wandb").exists()


EVALUATED = """
import logging, sys
from pathlib import Path
logging.basicConfig(level=logging.WARNING, format="%(message)s")
from querylect.configs.schema import RunConfig
from querylect.train.final_evaluation import track_evaluation
config = RunConfig.model_validate({"name": "walk"})
track_evaluation(config, Path(sys.argv[1]), Path(sys.argv[2]) / "report.html")
"""


def evaluated(run: Path, folder: Path, environment: dict[str, str]) -> str:
    """Track an evaluation in a child; what it prints."""
    done = forked([str(run), str(folder)], run.with_name("child"), environment, code=EVALUATED)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return done.stderr


BEFORE = """
import wandb
other_run = wandb.init(mode="offline", dir={folder!r})
"""
AFTER = """
assert wandb.run is other_run
other_run.log({"mine": 1})
assert "mine" in dict(other_run.summary)
assert "train/reward/turn1" not in dict(other_run.summary)
other_run.finish()
"""


def test_a_run_refused_midway_continues_offline_and_is_uploaded_whole(server, sync, tmp_path):
    def answer_until_the_run_is_open(operation, variables):
        answer = WandbServer.answer(server, operation, variables)
        if operation == "UpsertBucket":
            server.mood = "401"
        return answer

    run, environment = tmp_path / "walk", surroundings(server.url, tmp_path)
    server.answer = answer_until_the_run_is_open
    beside = {"before": BEFORE.format(folder=str(tmp_path)), "after": AFTER}
    warned = tracked(run, environment, 1, 3, **beside, wandb="online")
    assert warned.count("refused this run") == 1
    assert f"querylect sync {run} --include-online" in warned
    del server.answer
    server.mood = "well"
    assert sync(run, "--include-online", environment=environment).returncode == 0
    (lines,) = server.history.values()
    assert [(line["_step"], line["eval/reward/turn1"]) for line in lines if "eval/reward/turn1" in line] == [
        (1, 0.05), (2, 0.1), (3, 0.15),
    ]  # fmt: skip
    assert any("rollouts" in name for name in server.uploads), "the table that was refused"


def test_an_upload_that_is_unfinished_at_the_end_says_how_to_upload_the_rest(tmp_path, monkeypatch, caplog):
    class Run:
        def define_metric(self, *_, **__):
            pass

        def finish(self):
            raise TimeoutError

    monkeypatch.setattr("wandb.init", lambda **_: Run())
    config = change(RunConfig(), **{"tracking.wandb": "offline"})
    trackers = open_trackers(config, tmp_path, {})
    trackers.begin(grpo_config(config, tmp_path), TrainerState())
    trackers.close()
    assert f"querylect sync {tmp_path} --include-online" in caplog.text


def sync_with(monkeypatch, client) -> None:
    monkeypatch.setattr(syncing, "check_login", lambda: None)
    monkeypatch.setattr(syncing.subprocess, "run", client)


def offline_file(folder: Path, second: int) -> Path:
    file = folder / "wandb" / f"offline-run-20260101_00000{second}-abcd" / "run-abcd.wandb"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x")
    return file


def test_only_a_whole_upload_is_marked(tmp_path, monkeypatch):
    first, second = (offline_file(tmp_path, number) for number in (1, 2))
    outcome, files = "", []

    def client(command, **_):
        file = Path(command[-1])
        files.append(file)
        if file == second and outcome == "timeout":
            raise subprocess.TimeoutExpired(command, 1)
        if not (file == second and outcome == "no mark"):
            file.with_name("run-abcd.wandb.synced").touch()
        if file == second and outcome == "growth":
            with file.open("ab") as grown:
                grown.write(b"y")
            os.utime(file, (0, 0))  # before the mark
        return subprocess.CompletedProcess(command, 0, "wandb: Not authenticated.\n")

    sync_with(monkeypatch, client)
    for outcome in ("timeout", "no mark", "growth"):
        with pytest.raises(TrackingError):
            syncing.sync([tmp_path])
        assert [mark.parent for mark in tmp_path.rglob("*.synced")] == [first.parent], outcome
    outcome = "well"
    syncing.sync([tmp_path])
    assert {mark.parent for mark in tmp_path.rglob("*.synced")} == {first.parent, second.parent}
    files.clear()
    syncing.sync([tmp_path])
    later = second.with_name("run-abcd.wandb.synced").stat().st_mtime + 1
    os.utime(second, (later, later))
    syncing.sync([tmp_path])
    assert files == [second], "it has grown since"


def test_a_sync_that_fails_leaves_the_run_to_the_next(server, sync, tmp_path):
    run = tmp_path / "walk"
    environment = surroundings(server.url, tmp_path)
    tracked(run, environment, 1, 1)
    original = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.suffix != ".log"}
    assert sync(tmp_path, environment=environment).returncode == 2, "no offline run"
    assert sync(run, environment=surroundings(server.url, tmp_path, key=None)).returncode == 2, "nobody is logged in"
    for mood, code in (("401", 2), ("stream 401", 1)):  # W&B's own client exits with 0, and marks the second as synced
        server.mood = mood
        done = sync(run, environment=environment)
        assert done.returncode == code, done.stderr
        if code == 2:
            assert "`wandb login --relogin`" in done.stderr.replace("\n", " ")
        assert KEY not in done.stderr
        assert original == {path: path.read_bytes() for path in original}
        assert not list(run.rglob("*.synced"))
    server.mood = "well"
    assert sync(run, environment=environment).returncode == 0


def test_an_online_run_sends_its_figures_and_leaves_nothing_to_say(server, tmp_path):
    run = tmp_path / "walk"
    stderr = tracked(run, surroundings(server.url, tmp_path), 1, 2, wandb="online", table_steps=0)
    assert "wandb failed" not in stderr, stderr
    (lines,) = server.history.values()
    assert [line["train/reward/turn1"] for line in lines] == [0.1, 0.2]
    assert not list(run.glob("wandb/offline-run-*"))


@pytest.mark.parametrize(("key", "message"), [(KEY, "cannot be used online"), (None, "nobody is logged in")])
def test_a_login_that_is_refused_or_missing_is_told_and_the_run_is_tracked_offline(server, tmp_path, key, message):
    server.mood = "401"
    run = tmp_path / "a walk"
    warned = tracked(run, surroundings(server.url, tmp_path, key), 1, 1, wandb="online")
    assert warned.count(message) == 1
    assert f"querylect sync '{run}'" in warned
    assert KEY not in warned
    assert len(list(run.glob("wandb/offline-run-*/run-*.wandb"))) == 1


def test_a_login_that_is_refused_ends_no_other_run_of_the_process(server, tmp_path):
    server.mood = "401"
    run, environment = tmp_path / "walk", surroundings(server.url, tmp_path)
    warned = tracked(run, environment, 1, 1, before=BEFORE.format(folder=str(tmp_path)), after=AFTER, wandb="online")
    assert warned.count("wandb failed and gets no more of this run") == 1


class Stuck(TrainerCallback):
    """A tracker whose server takes a connection and no longer answers."""

    answer = threading.Event()

    def on_log(self, *_, **__):
        self.answer.wait()


def test_a_tracker_that_no_longer_answers_keeps_no_run_waiting(caplog):
    """Its thread waits; nothing that the training calls does, and the end of the run waits a set time."""
    trackers = Trackers({"stuck": Stuck})
    trackers.begin(None, TrainerState())
    started = time.monotonic()
    for step in range(1000):
        trackers.log({"step": step, "loss": 1.0})
    trackers.close(seconds=0.2)
    assert time.monotonic() - started < 20
    assert ("stuck", 0.2) in logged(caplog, "train.tracking")
    Stuck.answer.set()


def test_all_trackers_have_one_deadline_together(monkeypatch):
    deadlines = []

    def ended(guarded, until):
        deadlines.append(until)
        return guarded.name == "quick"

    monkeypatch.setattr(GuardedCallback, "ended", ended)
    trackers = Trackers(dict.fromkeys(("slow", "slower", "quick"), TrainerCallback))
    trackers.begin(None, TrainerState())
    trackers.close(seconds=7)
    assert len(deadlines) == 3
    assert len(set(deadlines)) == 1
    assert SENDING_SECONDS < STOPPING_SECONDS < CLOSING_SECONDS, "W&B's client has ended when a signal's time is over"


def test_a_tracker_that_fails_is_told_once_and_training_and_the_others_go_on(settings, monkeypatch, caplog):
    from querylect.train import run, tracking

    got = []

    class Full(TrainerCallback):
        def on_log(self, *_, **__):
            raise OSError(28, "No space left on device")

    class Well(TrainerCallback):
        def on_log(self, args, state, control, logs, table):
            got.append((state.global_step, logs["loss"], bool(table)))

        def on_train_end(self, *_, **__):
            got.append(sorted(path.name for path in folder.glob("final")))

    monkeypatch.setattr(tracking, "open_trackers", lambda *_: Trackers({"full": Full, "well": Well}))
    folder = Path(settings.output) / settings.name
    run.train(change(settings, **{"train.steps": 2, "train.log_rollouts": 1}))
    losses = [record["loss"] for record in records(folder / "metrics.jsonl")]
    assert got == [(1, losses[0], True), (2, losses[1], False), ["final"]], "it is closed after all is saved"
    assert caplog.text.count("No space left on device") == 1


def test_trackers_are_closed_where_nothing_could_begin(settings, monkeypatch):
    from querylect.train import run, tracking, trainer

    closed = []

    class Noted(Trackers):
        def close(self, seconds=0.0):
            super().close(seconds)
            closed.append(seconds)

    def fails(**_):
        raise ConfigError()

    monkeypatch.setattr(tracking, "open_trackers", lambda *_: Noted({"none": TrainerCallback}))
    monkeypatch.setattr(trainer, "TreeTrainer", fails)
    with refused(ConfigError):
        run.train(change(settings, **{"train.steps": 1}))
    assert closed == [CLOSING_SECONDS]


def test_a_package_that_is_missing_is_told_before_anything_is_loaded(monkeypatch):
    from querylect.train import arguments

    monkeypatch.setattr(arguments, "find_spec", lambda name: None)
    with refused(ConfigError, "tracking.report_to", "-e '.[trackio]'"):
        check_report_to(change(RunConfig(), **{"tracking.report_to": ["trackio"]}).tracking)
    check_report_to(RunConfig().tracking)


def tensorboard_figures(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a folder: (step, value) by name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), purge_orphaned_data=True)
    accumulator.Reload()
    names = accumulator.Tags()["scalars"]
    return {name: [(event.step, event.value) for event in accumulator.Scalars(name)] for name in names}


def test_a_removed_run_folder_costs_tensorboard_one_sentence(tmp_path, caplog, monkeypatch):
    pytest.importorskip("tensorboard", reason="no TensorBoard: pip install -e '.[tensorboard]'")
    reported = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    folder, config = tmp_path / "walk", RunConfig(tracking={"wandb": "disabled", "report_to": ["tensorboard"]})
    folder.mkdir()
    trackers = open_trackers(config, folder, {"step": 0, "git": {}})
    trackers.begin(grpo_config(config, folder), TrainerState())
    (guarded,) = trackers._guarded
    until = time.monotonic() + 60
    while not list(folder.glob("tensorboard/*")) and time.monotonic() < until:
        time.sleep(0.01)
    shutil.rmtree(folder)
    step = 0
    while not guarded.ended(time.monotonic() + 0.05) and time.monotonic() < until:
        step += 1
        trackers.log({"step": step, "reward/turn1": 0.5})
    assert guarded.ended(0)
    assert [name for name, _ in logged(caplog, "train.tracking")] == ["tensorboard"]
    assert reported == []
    threading.excepthook(SimpleNamespace(thread=threading.current_thread()))
    assert len(reported) == 1, "other threads are reported as before"


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


def test_nothing_is_opened_where_no_tracker_is_asked_for(tmp_path):
    trackers = open_trackers(change(RunConfig(), **{"tracking.wandb": "disabled"}), tmp_path, {})
    trackers.begin(None, TrainerState())
    trackers.log({"step": 1, "loss": 1.0})
    trackers.close()
    assert list(tmp_path.iterdir()) == []
