"""Publishing on a Hub: a round trip with the real client, interrupted uploads, and the Hub's error responses."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from querylect.errors import HubRefusedError, HubUnavailableError
from querylect.export.export import ExportOptions, export_to_hub
from querylect.export.exported import FILE, Exported, read_exported
from querylect.export.upload import SAFE, HubRepository

from ..command import end
from ..exported import snippet
from ..hub_models import Hub, serving, use_endpoint
from ..raising import logged, refused

NAME = "acme/rewriter"
MERGED = ExportOptions(merge_lora=True, licence="mit")
TOKEN = "hf_writer"


@pytest.fixture
def hub(monkeypatch):
    """An empty Hub, and a user who is logged in to it. Large files are uploaded to the Hub itself."""
    import huggingface_hub.constants as constants

    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    hub = Hub(token=TOKEN)
    with serving(hub):
        yield hub


def publish(hub, run, wishes=MERGED, name=NAME):
    return list(export_to_hub(run, name, wishes, endpoint=hub.url))


def exported_at(hub, revision="main") -> Exported:
    return Exported.model_validate_json(hub.at(NAME, revision)[FILE])


def test_an_adapter_and_every_checkpoint_go_up_and_come_down_as_they_were(
    hub, evaluated_run, tmp_path, monkeypatch, capsys
):
    """The whole way, with the base model on the same Hub; the card's code needs nothing of this package."""
    from huggingface_hub import HfApi, constants, snapshot_download

    api = HfApi(endpoint=hub.url)
    api.create_repo("acme/base")
    api.upload_folder(repo_id="acme/base", folder_path=evaluated_run.parent.parent / "base")
    wishes = ExportOptions(base_model="acme/base", every_checkpoint=True)
    page = f"{hub.url}/{NAME}"
    branches = ["checkpoint-1", "checkpoint-2"]
    assert publish(hub, evaluated_run, wishes) == [page, *(f"{page}/tree/{branch}" for branch in branches)]
    assert hub.repositories[NAME].private
    assert set(hub.repositories[NAME].branches) == {"main", *branches}
    main, first = exported_at(hub), exported_at(hub, "checkpoint-1")
    assert (main.run.checkpoint, main.member().results is not None) == ("final", True)
    assert (first.run.step, first.member().results) == (1, None)
    assert 'revision="checkpoint-1"' in hub.at(NAME, "checkpoint-1")["README.md"].decode()
    titles = [commit.title for commit in (hub.repositories[NAME].branches[name] for name in ("main", branches[0]))]
    assert titles == ["Export final of the run run, after 2 steps", "Export checkpoint-1 of the run run, after 1 steps"]
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
    chat = main.member().chat
    assert capsys.readouterr().out == f"{chat.opening}{chat.answer.text}\n"


def test_what_is_there_already_is_neither_made_nor_sent_again(hub, evaluated_run):
    publish(hub, evaluated_run)
    file_count, hub.requests[:] = len(hub.repositories[NAME].branches["main"].files), []
    publish(hub, evaluated_run)
    assert not [request for request in hub.requests if request.startswith(("PUT", "POST"))]
    publish(hub, evaluated_run, replace(MERGED, example="another question"))
    assert len(hub.stored) == len(set(hub.stored))
    assert exported_at(hub).member().chat.question == "another question"
    assert len(hub.at(NAME)) == file_count


def test_an_interrupted_upload_goes_on_with_what_is_missing(hub, evaluated_run):
    wishes, files = replace(MERGED, every_checkpoint=True), set(evaluated_run.rglob("*"))
    hub.refuse = lambda method, path: 500 if path.endswith("/commit/checkpoint-2") else None
    upload = export_to_hub(evaluated_run, NAME, wishes, endpoint=hub.url)
    assert [next(upload), next(upload)] == [f"{hub.url}/{NAME}", f"{hub.url}/{NAME}/tree/checkpoint-1"]
    with refused(HubUnavailableError, NAME, "checkpoint-2", "HTTP 500"):
        next(upload)
    assert set(evaluated_run.rglob("*")) == files
    assert hub.at(NAME, "checkpoint-2") == {".gitattributes": b"*.safetensors filter=lfs\n"}
    hub.refuse = lambda method, path: None
    hub.requests[:] = []
    stored = list(hub.stored)
    assert len(publish(hub, evaluated_run, wishes)) == 3
    commits = [request for request in hub.requests if "/commit/" in request]
    assert commits == [f"POST /api/models/{NAME}/commit/checkpoint-2"]
    assert hub.stored == stored
    assert exported_at(hub, "checkpoint-2").run.step == 2


ANSWERS = [
    (401, HubRefusedError, ["HTTP 401", "HF_TOKEN", "hf auth login"]),
    (403, HubRefusedError, ["HTTP 403", "acme,"]),
    (404, HubRefusedError, ["HTTP 404", "'acme'"]),
    (409, HubRefusedError, ["HTTP 409"]),
    (418, HubRefusedError, ["HTTP 418", "made to fail"]),
    (429, HubUnavailableError, ["HTTP 429", SAFE]),
    (500, HubUnavailableError, ["HTTP 500", SAFE]),
    (0, HubUnavailableError, [SAFE]),
]


@pytest.mark.parametrize(("status", "error", "facts"), ANSWERS)
def test_what_the_hub_answers_becomes_an_error(hub, tmp_path, status, error, facts, caplog):
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# A card")
    repository, paths = HubRepository(NAME, hub.url), {"/api/repos/create", f"/api/models/{NAME}/commit/main"}
    hub.refuse = lambda method, path: status if path in paths else None
    with refused(error, NAME, *facts) as caught:
        repository.open(public=False, run_id="", overwrite=False)
    paths.remove("/api/repos/create")
    repository.open(public=False, run_id="", overwrite=False)
    with refused(error, NAME, *facts) as also:
        repository.put(tmp_path, "main", "a commit")
    assert TOKEN not in f"{caught.value} {also.value} {caplog.text}"


def test_a_hub_that_does_not_answer_in_time_is_told(hub, monkeypatch):
    from huggingface_hub import errors

    httpx = sys.modules[errors.HTTPError.__module__.partition(".")[0]]

    def hang(*_):
        raise httpx.ReadTimeout("timed out")

    repository = HubRepository(NAME, hub.url)
    monkeypatch.setattr(repository.api, "repo_exists", hang)
    with refused(HubUnavailableError, NAME, hub.url, SAFE):
        repository.open(public=False, run_id="", overwrite=False)


def test_a_surrounding_that_forbids_the_network_is_told(hub, monkeypatch):
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with refused(HubRefusedError, "HF_HUB_OFFLINE"):
        HubRepository(NAME, hub.url).open(public=False, run_id="", overwrite=False)
    assert hub.requests == []


def test_a_token_that_the_hub_does_not_know_is_told(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    with refused(HubRefusedError, "HTTP 401") as caught:
        HubRepository(NAME, hub.url).open(public=False, run_id="", overwrite=False)
    assert "hf_expired" not in str(caught.value)


def test_nothing_is_made_public_unless_told(hub, evaluated_run, caplog):
    publish(hub, evaluated_run, replace(MERGED, public=True))
    assert not hub.repositories[NAME].private
    with refused(HubRefusedError, NAME, "--public"):
        publish(hub, evaluated_run)
    publish(hub, evaluated_run, replace(MERGED, public=True))
    hub.repositories[NAME].private = True
    publish(hub, evaluated_run, replace(MERGED, public=True))
    assert (NAME,) in logged(caplog, "export.upload")
    assert hub.repositories[NAME].private


def test_another_model_is_replaced_only_when_told(hub, evaluated_run):
    from huggingface_hub import HfApi

    api = HfApi(endpoint=hub.url)
    api.create_repo(NAME, private=True)
    for name in ("config.json", "adapter_config.json", "photo.png"):
        api.upload_file(repo_id=NAME, path_in_repo=name, path_or_fileobj=b"{}")
    with refused(HubRefusedError, NAME, "--overwrite"):
        publish(hub, evaluated_run)
    publish(hub, evaluated_run, replace(MERGED, overwrite=True))
    assert "adapter_config.json" not in hub.at(NAME)
    assert "photo.png" in hub.at(NAME)
    values = json.loads(hub.at(NAME)[FILE])
    values["run"]["id"] = "another"
    hub.at(NAME)[FILE] = json.dumps(values).encode()
    with refused(HubRefusedError, NAME, "--overwrite"):
        publish(hub, evaluated_run)


def test_a_licence_that_the_hub_does_not_know_is_told_before_anything_is_sent(hub, evaluated_run):
    with refused(HubRefusedError, NAME, '"license"', "--license"):
        publish(hub, evaluated_run, replace(MERGED, licence="my own"))
    assert hub.stored == []


@pytest.mark.parametrize("name", ["rewriter", "acme/re writer", "a/b/c", ""])
def test_a_name_that_cannot_be_a_repository_is_refused(hub, name):
    with refused(HubRefusedError, name, "OWNER/NAME"):
        HubRepository(name, hub.url)


def test_nobody_logged_in_is_told_before_a_model_is_loaded(hub, evaluated_run, monkeypatch, tmp_path):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    monkeypatch.setattr("querylect.export.export.load", lambda *_: pytest.fail("a model was loaded"))
    with refused(HubRefusedError, NAME, "HF_TOKEN"):
        publish(hub, evaluated_run)
    assert hub.requests == []


def test_the_command_prints_where_it_is_and_ends_with_one_sentence(hub, evaluated_run, tmp_path, monkeypatch, capsys):
    calls = []

    def to_folder(run, target, wishes):
        calls.append((run, target, wishes))
        return [str(target)]

    def to_hub(run, name, wishes):
        calls.append((run, name, wishes))
        yield f"https://huggingface.co/{name}"
        raise HubUnavailableError("acme/rewriter could not take checkpoint-2")

    monkeypatch.setattr("querylect.export.export.export_to_folder", to_folder)
    monkeypatch.setattr("querylect.export.export.export_to_hub", to_hub)

    export = ("export", evaluated_run, "--to")
    assert end(*export, tmp_path / "out", "--merge-lora", "--license", "mit", "--checkpoint", "best") == 0
    assert end(*export, f"hub:{NAME}", "--every-checkpoint", "--public") == 1
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path / 'out'}\nhttps://huggingface.co/{NAME}\n"
    assert re.search("error: acme/rewriter could not take checkpoint-2", captured.err)
    assert calls == [
        (evaluated_run, tmp_path / "out", ExportOptions(merge_lora=True, licence="mit", checkpoint="best")),
        (evaluated_run, NAME, ExportOptions(every_checkpoint=True, public=True)),
    ]
