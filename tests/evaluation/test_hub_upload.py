"""Publishing on a Hub: a round trip with the real client, interrupted uploads, and the Hub's error responses."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from querylect.errors import ConfigError, HubError
from querylect.export.export import ExportOptions, export_to_hub
from querylect.export.exported import FILE, Exported, read_exported
from querylect.export.upload import HubRepository

from ..exported import snippet
from ..hub_models import Hub, serving, use_endpoint
from ..raising import refused

NAME = "acme/rewriter"
MERGED = ExportOptions(merge_lora=True, licence="mit")
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


def publish(hub, run, wishes=MERGED, name=NAME):
    return export_to_hub(run, name, wishes, endpoint=hub.url)


def exported_at(hub) -> Exported:
    return Exported.model_validate_json(hub.at(NAME)[FILE])


def test_an_adapter_goes_up_and_comes_down_as_it_was(hub, evaluated_run, tmp_path, monkeypatch, capsys):
    """The whole way, with the base model on the same Hub; the card's code needs nothing of this package."""
    from huggingface_hub import HfApi, constants, snapshot_download

    api = HfApi(endpoint=hub.url)
    api.create_repo("acme/base")
    api.upload_folder(repo_id="acme/base", folder_path=evaluated_run.parent.parent / "base")
    assert publish(hub, evaluated_run, ExportOptions(base_model="acme/base")) == f"{hub.url}/{NAME}"
    assert hub.repositories[NAME].private
    assert set(hub.repositories[NAME].branches) == {"main"}
    main = exported_at(hub)
    assert (main.run.checkpoint, main.environments[""].results is not None) == ("final", True)
    assert hub.repositories[NAME].branches["main"].title == "Export final of the run run, after 2 steps"
    assert not [path for path, content in hub.at(NAME).items() if TOKEN.encode() in content]
    assert not [path for path in evaluated_run.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]

    down = Path(snapshot_download(NAME, endpoint=hub.url, local_dir=tmp_path / "down"))
    assert read_exported(down) == main
    code = snippet((down / "README.md").read_text(), "transformers")
    assert not re.search(r"(from|import)\s+querylect\b", code)
    use_endpoint(hub.url, monkeypatch)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    capsys.readouterr()
    exec(compile(code, "README.md", "exec"), {})
    chat = main.environments[""].chat
    assert capsys.readouterr().out == f"{chat.opening}{chat.answer.text}\n"


def test_an_interrupted_upload_goes_on_with_what_is_missing(hub, evaluated_run):
    files = set(evaluated_run.rglob("*"))
    hub.refuse = lambda method, path: 500 if "/commit/" in path else None
    with refused(HubError, NAME, "500"):
        publish(hub, evaluated_run)
    assert set(evaluated_run.rglob("*")) == files
    assert hub.at(NAME).keys() == {".gitattributes"}
    hub.refuse, stored = lambda method, path: None, list(hub.stored)
    publish(hub, evaluated_run)
    assert hub.stored == stored, "large files are not sent again"
    assert exported_at(hub).run.step == 2


def test_nothing_is_made_public_unless_told(hub, evaluated_run):
    publish(hub, evaluated_run, replace(MERGED, public=True))
    assert not hub.repositories[NAME].private
    with refused(ConfigError, NAME, "--public"):
        publish(hub, evaluated_run)
    publish(hub, evaluated_run, replace(MERGED, public=True))
    hub.repositories[NAME].private = True
    publish(hub, evaluated_run, replace(MERGED, public=True))
    assert hub.repositories[NAME].private


def test_another_model_is_replaced_only_when_told(hub, evaluated_run):
    from huggingface_hub import HfApi

    api = HfApi(endpoint=hub.url)
    api.create_repo(NAME, private=True)
    for name in ("config.json", "adapter_config.json", "photo.png"):
        api.upload_file(repo_id=NAME, path_in_repo=name, path_or_fileobj=b"{}")
    with refused(ConfigError, NAME, "--overwrite"):
        publish(hub, evaluated_run)
    publish(hub, evaluated_run, replace(MERGED, overwrite=True))
    assert "adapter_config.json" not in hub.at(NAME)
    assert "photo.png" in hub.at(NAME)
    values = json.loads(hub.at(NAME)[FILE])
    values["run"]["id"] = "another"
    hub.at(NAME)[FILE] = json.dumps(values).encode()
    with refused(ConfigError, NAME, "--overwrite"):
        publish(hub, evaluated_run)


@pytest.mark.parametrize(("status", "path"), [(403, "/api/repos/create"), (500, f"/api/models/{NAME}/commit/main")])
def test_what_the_hub_refuses_is_told_in_its_words_without_the_token(hub, evaluated_run, caplog, status, path):
    hub.refuse = lambda method, requested: status if requested == path else None
    with refused(HubError, NAME, status) as caught:
        publish(hub, evaluated_run)
    assert TOKEN not in f"{caught.value} {caplog.text}"


@pytest.mark.parametrize("name", ["rewriter", "a/b/c", ""])
def test_a_name_that_is_not_of_an_owner_is_refused(name):
    with refused(ConfigError, name, "OWNER/NAME"):
        HubRepository(name)
