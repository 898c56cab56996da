"""How a run ends before its end: signals, a dead environment, a full disk. It always resumes exactly."""

import resource
import signal

import pytest
import yaml
from querylect.errors import EnvironmentUnavailableError, StorageError
from querylect.train.run import train
from querylect.train.run_folder import RunFolder

from ..forked import Forked
from ..lessons import ENDLESS, change, contents, lesson_settings, records, without_seconds
from ..raising import refused
from ..waiting import until

pytestmark = [pytest.mark.model, pytest.mark.slow]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, lessons, lesson_url, speaking):
    """The folder of four steps that nothing interrupted, with a checkpoint of each."""
    config = lesson_settings(lessons, lesson_url, speaking, tmp_path_factory.mktemp("straight"))
    return train(change(config, **EVERY_STEP))


@pytest.fixture(scope="module")
def straight(undisturbed):
    """Its log."""
    return without_seconds(undisturbed / "metrics.jsonl")


EVERY_STEP = {"train.save_steps": 1, "train.keep_checkpoints": 9}


def checkpoints(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def breaking(app, after, instead=None):
    """The service until it has answered `after` requests for steps; `instead`, if given, answers the later ones."""
    answered = 0

    async def wrapped(scope, receive, send):
        nonlocal answered
        if scope["type"] == "http" and scope["path"] == "/v1/step":
            answered += 1
            if answered > after and instead is not None:
                await instead(scope, receive, send)
                return
            if answered > after:
                await send({"type": "http.response.start", "status": 503, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        await app(scope, receive, send)

    return wrapped


@pytest.fixture
def dying(lessons, run_app):
    from querylect.envs.environment import Environment
    from querylect.envs.server.app import create_app

    return lambda after: run_app(breaking(create_app(Environment.open(lessons)), after))


@pytest.mark.usefixtures("own_clock")
def test_a_dead_environment_stops_the_run_with_a_checkpoint_and_it_goes_on_exactly(settings, straight, dying):
    """Every step sends two requests, one for each turn: the third is not answered."""
    config = change(settings, **{"train.save_steps": 100})
    with dying(after=4) as url, refused(EnvironmentUnavailableError, "step 3", "503", "--resume"):
        train(change(config, **{"client.urls": [url]}))
    folder = RunFolder(config.run_folder)
    assert checkpoints(folder.path) == ["checkpoint-2"]
    assert not folder.final.exists()
    assert without_seconds(folder.metrics) == straight[:2], "the step without rewards was neither trained nor logged"
    train(config, resume=True)
    assert without_seconds(folder.metrics) == straight


@pytest.fixture
def file_limit():
    """A function that lets no file grow beyond a number of bytes: what a full disk does to large files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_no_half_checkpoint_and_keeps_the_one_before(settings, straight, file_limit):
    config = change(settings, **{"train.save_steps": 1, "train.keep_checkpoints": 1, "train.steps": 1})
    folder = RunFolder(train(config))
    original = contents(folder.checkpoints)
    sizes = {path.name: path.stat().st_size for path in folder.checkpoints.rglob("*")}
    assert sizes["optimizer.pt"] > sizes["adapter_model.safetensors"] > 30_000
    for failing in ("adapter_model.safetensors", "optimizer.pt"):
        file_limit(sizes[failing] - 2000)
        with refused(StorageError, folder.checkpoints / "checkpoint-2", "--resume"):
            train(change(config, **{"train.steps": 2}), resume=True)
        file_limit(resource.RLIM_INFINITY)
        assert contents(folder.checkpoints) == original, failing
    train(change(config, **{"train.steps": 2}), resume=True)
    assert without_seconds(folder.metrics) == straight[:2]
    assert checkpoints(folder.path) == ["checkpoint-2"]


def querylect(folder, *arguments):
    """`querylect train` of the settings in a YAML file, with Ctrl-C as in a terminal."""
    return Forked(["train", str(folder / "run.yaml"), *arguments], folder / "stdout", folder / "stderr")


def wait_for_step(process, metrics, step):
    def logged():
        assert process.poll() is None, "it ended by itself"
        lines = len(metrics.read_bytes().splitlines()) if metrics.exists() else 0
        return lines if lines >= step else 0

    return until(logged)


def end(process):
    try:
        return process.wait(120)
    finally:
        process.kill()


def test_killed_terminated_and_interrupted_it_logs_every_step_once(settings, lessons, tmp_path):
    """The same run dies by SIGKILL, is ended by SIGTERM and by Ctrl-C, and is the run that was not."""
    endless = change(settings, **{"client.urls": "local", **ENDLESS, "train.keep_checkpoints": 3})
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(endless.model_dump(mode="json")))
    folder = RunFolder(endless.run_folder)

    process = querylect(tmp_path)
    reached = wait_for_step(process, folder.metrics, 3)
    process.kill()
    assert end(process) == -signal.SIGKILL
    assert folder.newest_checkpoint() is not None

    process = querylect(tmp_path, "--resume")
    wait_for_step(process, folder.metrics, reached + 3)
    process.send_signal(signal.SIGTERM)
    assert end(process) == 75, "its caller can tell it from a run that is done"
    assert (tmp_path / "stdout").read_text() == ""
    assert "stopped: SIGTERM " in (tmp_path / "stderr").read_text()
    steps = [line["step"] for line in records(folder.metrics)]
    assert steps == list(range(1, len(steps) + 1))
    assert folder.newest_checkpoint().name == f"checkpoint-{steps[-1]}"
    assert not folder.final.exists()

    process = querylect(tmp_path, "--resume")
    reached = wait_for_step(process, folder.metrics, len(steps) + 1)
    process.send_signal(signal.SIGINT)
    assert end(process) == 130
    steps = [line["step"] for line in records(folder.metrics)]
    assert steps == list(range(1, len(steps) + 1))
    assert folder.newest_checkpoint().name == f"checkpoint-{steps[-1]}"

    uninterrupted = change(endless, output=str(tmp_path / "whole"), **{"train.steps": len(steps)})
    assert without_seconds(train(uninterrupted) / "metrics.jsonl") == without_seconds(folder.metrics)
