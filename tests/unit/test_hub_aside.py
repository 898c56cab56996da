"""What an export shows as its example, and names that are asked for on the Hub. No model is loaded."""

import huggingface_hub
import pytest
from querylect.errors import ConfigError, DownloadError
from querylect.export.source import EXAMPLE, example_question
from querylect.inference.load import open_trained

from ..raising import refused


def test_a_damaged_first_line_gives_no_example_question(tmp_path):
    (tmp_path / "eval.jsonl").write_bytes(b'{"question": "caf\xe9"}\n')
    assert example_question(tmp_path, "").text == EXAMPLE
    (tmp_path / "rollouts.jsonl").write_text('{"question": "Why?", "history": [{"role": "user", "text": "Hello."}]}\n')
    question = example_question(tmp_path, "")
    assert (question.text, [utterance.text for utterance in question.history]) == ("Why?", ["Hello."])


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two runs and an export in runs/ of the working directory; a request to the Hub fails the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: pytest.fail("asked the Hub"))
    for folder, file in (("demo", "config.yaml"), ("demo-1", "config.yaml"), ("shared", "querylect.json")):
        (tmp_path / "runs" / folder).mkdir(parents=True)
        (tmp_path / "runs" / folder / file).touch()


@pytest.mark.usefixtures("runs")
def test_a_name_beside_runs_is_a_misspelling_unless_a_revision_is_given(monkeypatch):
    with refused(ConfigError, "runs/demoo", "runs/demo, runs/demo-1", "--revision main"):
        open_trained("runs/demoo")

    def stopped(*_, **__):
        raise OSError("it was asked")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", stopped)
    for name, revision in (("runs/demoo", "main"), ("elsewhere/demo", None)):
        with refused(DownloadError, name, "it was asked"):
            open_trained(name, revision=revision)
