"""Publishing on a Hub: a round trip with the real client, interrupted uploads, and the Hub's error responses."""

import re
from pathlib import Path

import pytest
from huggingface_hub.errors import HfHubHTTPError
from querylect.errors import ConfigError
from querylect.export.export import export_to_hub
from querylect.export.exported import FILE, Exported, read_exported

from ..command import end
from ..exported import snippet
from ..hub import Hub, serving, use_endpoint
from ..raising import refused

pytestmark = [pytest.mark.model, pytest.mark.slow]

NAME = "acme/rewriter"
MERGED = {"merge_lora": True, "licence": "mit"}
TOKEN = "hf_writer"


@pytest.fixture
def hub(monkeypatch):
    """An empty Hub, and a user who is logged in to it. Large files are uploaded to the Hub itself."""
    import huggingface_hub.constants as constants

    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub = Hub(token=TOKEN)
    with serving(hub):
        yield hub


def publish(hub, run, **options):
    return export_to_hub(run, NAME, endpoint=hub.url, **(options or MERGED))


def exported_at(hub) -> Exported:
    return Exported.model_validate_json(hub.at(NAME)[FILE])


def test_an_adapter_goes_up_and_comes_down_as_it_was(hub, evaluated_run, tmp_path, monkeypatch, capsys):
    """The whole way, with the base model on the same Hub; the card's code needs nothing of this package."""
    from huggingface_hub import HfApi, constants, snapshot_download

    api = HfApi(endpoint=hub.url)
    api.create_repo("acme/base")
    api.upload_folder(repo_id="acme/base", folder_path=evaluated_run.parent.parent / "base")
    assert publish(hub, evaluated_run, base_model="acme/base") == f"{hub.url}/{NAME}"
    assert hub.repositories[NAME].private
    assert set(hub.repositories[NAME].branches) == {"main"}
    main = exported_at(hub)
    assert (main.run.checkpoint, main.results[""] is not None) == ("final", True)
    assert hub.repositories[NAME].branches["main"].title == "Export final of the run run, after 2 steps"
    assert not [path for path, content in hub.at(NAME).items() if TOKEN.encode() in content]
    assert not [path for path in evaluated_run.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]

    down = Path(snapshot_download(NAME, endpoint=hub.url, local_dir=tmp_path / "down"))
    assert read_exported(down) == main
    code = snippet((down / "README.md").read_text())
    assert not re.search(r"(from|import)\s+querylect\b", code)
    use_endpoint(hub.url, monkeypatch)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    capsys.readouterr()
    exec(compile(code, "README.md", "exec"), {})
    chat = main.chats[""]
    assert capsys.readouterr().out == f"{chat.opening}{chat.answer}\n"


def test_an_interrupted_upload_goes_on_with_what_is_missing(hub, evaluated_run):
    from huggingface_hub import HfApi

    api, files = HfApi(endpoint=hub.url), set(evaluated_run.rglob("*"))
    api.create_repo(NAME, private=True)
    for name in ("adapter_config.json", "photo.png"):
        api.upload_file(repo_id=NAME, path_in_repo=name, path_or_fileobj=b"{}")
    before = hub.at(NAME).keys()
    hub.refuse = lambda method, path: 500 if "/commit/" in path else None
    with pytest.raises(HfHubHTTPError, match="500"):
        publish(hub, evaluated_run)
    assert set(evaluated_run.rglob("*")) == files
    assert hub.at(NAME).keys() == before
    hub.refuse, stored = lambda method, path: None, list(hub.stored)
    publish(hub, evaluated_run)
    assert hub.stored == stored, "large files are not sent again"
    assert exported_at(hub).run.step == 2
    assert "adapter_config.json" not in hub.at(NAME), "of an earlier export"
    assert "photo.png" in hub.at(NAME)


def test_nothing_is_made_public_unless_told(hub, evaluated_run):
    publish(hub, evaluated_run, **MERGED, public=True)
    assert not hub.repositories[NAME].private
    with refused(ConfigError, NAME, "--public"):
        publish(hub, evaluated_run)
    hub.repositories[NAME].private = True
    publish(hub, evaluated_run, **MERGED, public=True)
    assert hub.repositories[NAME].private


def test_the_command_says_what_the_hub_refuses_without_the_token(hub, evaluated_run, capsys, monkeypatch):
    hub.refuse = lambda method, path: 403 if path == "/api/repos/create" else None
    use_endpoint(hub.url, monkeypatch)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    assert end("export", evaluated_run, "--to", f"hub:{NAME}", "--merge-lora") == 1
    err = capsys.readouterr().err
    assert "403" in err
    assert "Traceback" not in err
    assert TOKEN not in err
