"""Folders that an export may not replace, one writer at a time, and failures of disk and Hub. No model is loaded."""

import sys

import huggingface_hub
import pytest
from huggingface_hub import errors
from querylect.errors import ConfigError, DownloadError, HubUnavailableError, StorageError
from querylect.export.replacement import only_export, refuse_the_run
from querylect.export.results import _questions
from querylect.export.source import EXAMPLE, example_question
from querylect.export.upload import SAFE, HubRepository
from querylect.inference.load import open_trained

from ..raising import refused

httpx = sys.modules[errors.HTTPError.__module__.partition(".")[0]]  # the one that the Hub's client uses


@pytest.mark.parametrize("subfolder", [".", "..", "../..", "best", "final", "checkpoints", "checkpoints/checkpoint-4"])
def test_an_export_never_takes_the_place_of_its_run(tmp_path, subfolder):
    run = tmp_path / "runs" / "demo"
    run.mkdir(parents=True)
    with refused(ConfigError, run / subfolder, "--to"):
        refuse_the_run(run / subfolder, run)
    (tmp_path / "link").symlink_to(run)
    with refused(ConfigError, "--to"):
        refuse_the_run(tmp_path / "link" / subfolder, run)
    for allowed in (tmp_path / "exports" / "demo", run / "export", tmp_path / "runs" / "other"):
        refuse_the_run(allowed, run)


def test_a_damaged_first_line_gives_no_example_question(tmp_path):
    (tmp_path / "eval.jsonl").write_bytes(b'{"question": "caf\xe9"}\n')
    assert example_question(tmp_path, "").text == EXAMPLE
    (tmp_path / "rollouts.jsonl").write_text('{"question": "Why?", "history": [{"role": "user", "text": "Hello."}]}\n')
    question = example_question(tmp_path, "")
    assert (question.text, [utterance.text for utterance in question.history]) == ("Why?", ["Hello."])


def test_a_damaged_line_of_a_log_is_left_out_of_the_questions_that_were_trained_on(tmp_path):
    log = tmp_path / "rollouts.jsonl"
    log.write_bytes(b'{"question": "caf\xe9"}\n{"question": "Why?"}\n{"quest')
    assert list(_questions(log)) == ["Why?"]


def test_one_export_of_a_run_at_a_time(tmp_path):
    with only_export(tmp_path), refused(StorageError, tmp_path), only_export(tmp_path):
        pytest.fail("both were let in")
    with only_export(tmp_path):
        pass


STORAGE = [
    PermissionError("CAS refused the token\nand more"),
    OSError("CAS is gone\nand more"),
    RuntimeError("CAS found bad data\nand more"),
    errors.XetDownloadError("CAS stopped\nand more"),
]


@pytest.mark.parametrize("error", STORAGE, ids=lambda error: type(error).__name__)
def test_what_the_storage_behind_the_hub_says_is_one_sentence(monkeypatch, error):
    monkeypatch.setenv("HF_TOKEN", "hf_writer")
    with (
        refused(HubUnavailableError, "acme/x", "main", "CAS", SAFE) as caught,
        HubRepository("acme/x")._asked("take main"),
    ):
        raise error
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("error", [*STORAGE[:2], STORAGE[3], None], ids=["permission", "system", "xet", "transport"])
def test_a_download_that_breaks_off_is_one_sentence(monkeypatch, tmp_path, error):
    def breaks_off(*_, **__):
        raise error or httpx.ReadError("CAS was cut\nand more")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", breaks_off)
    with refused(DownloadError, "acme/x", "CAS") as caught:
        open_trained("acme/x")
    assert "\n" not in str(caught.value)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two runs and an export in runs/ of the working directory; a request to the Hub fails the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: pytest.fail("asked the Hub"))
    for folder, file in (("demo", "config.yaml"), ("demo-1", "config.yaml"), ("shared", "querylect.json")):
        (tmp_path / "runs" / folder).mkdir(parents=True)
        (tmp_path / "runs" / folder / file).touch()


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("name", ["runs/demoo", "runs/dmo", "runs/demo_1"])
def test_a_misspelt_run_is_not_asked_for_on_the_hub(name):
    with refused(ConfigError, name, "meant: runs/demo", "--revision main"):
        open_trained(name)


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(("name", "revision"), [("runs/bm25-rewriter", None), ("runs/demoo", "main")])
def test_a_name_unlike_every_run_or_with_a_revision_is_asked_for_on_the_hub(monkeypatch, name, revision):
    def stopped(*_, **__):
        raise OSError("it was asked")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", stopped)
    with refused(DownloadError, "it was asked"):
        open_trained(name, revision=revision)


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("unavailable", ["no repository", "offline"])
def test_a_name_that_leads_nowhere_on_the_hub_is_answered_with_the_runs_there_are(monkeypatch, unavailable):
    def nothing(*_, **__):
        if unavailable == "offline":
            raise errors.OfflineModeIsEnabled("HF_HUB_OFFLINE is set")
        raise errors.RepositoryNotFoundError("404", response=httpx.Response(404, request=httpx.Request("GET", "x:")))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", nothing)
    with refused(ConfigError, "runs/zzzzzz", "Hub", "runs/demo", "runs/demo-1", "runs/shared"):
        open_trained("runs/zzzzzz")
