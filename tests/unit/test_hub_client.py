"""Requests of the real huggingface_hub to a Hub that is unreachable, fails for a while, or lacks the file."""

import socket

import pytest
from querylect.errors import DownloadError, ModelError
from querylect.hub_client import CONNECT_SECONDS, fail_fast_without_hub
from querylect.inference.load import open_trained

from ..hub_models import Hub, Repository, serving, use_endpoint
from ..raising import refused

huggingface_hub = pytest.importorskip("huggingface_hub", reason="no huggingface_hub: pip install -e '.[serve]'")
from huggingface_hub import constants, errors, hf_hub_download  # noqa: E402
from huggingface_hub.utils import _http  # noqa: E402

FILE = "querylect.json"


@pytest.fixture(autouse=True)
def pauses(monkeypatch, tmp_path):
    """The client as this package sets it up, an empty cache, and the pauses between attempts, which are skipped."""
    delays = []
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(_http.time, "sleep", delays.append)
    fail_fast_without_hub()
    yield delays
    huggingface_hub.set_client_factory(_http.default_client_factory)


@pytest.fixture
def closed(monkeypatch):
    """The Hub's address is a port where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: no other process gets it
        use_endpoint(f"http://127.0.0.1:{taken.getsockname()[1]}", monkeypatch)
        yield


@pytest.fixture
def hub(monkeypatch):
    stand_in = Hub()
    with serving(stand_in) as stand_in.url:
        use_endpoint(stand_in.url, monkeypatch)
        monkeypatch.setenv("HF_TOKEN", stand_in.token)
        yield stand_in


def test_a_hub_that_cannot_be_reached_is_asked_once(closed, pauses):
    with pytest.raises(errors.LocalEntryNotFoundError) as caught:
        hf_hub_download("nobody/nothing", FILE)
    assert pauses == []
    offline = caught.value.__cause__
    assert isinstance(offline, errors.OfflineModeIsEnabled)
    assert "no connection to 127.0.0.1" in str(offline)
    assert isinstance(offline.__cause__, _http.httpx2.ConnectError)


def test_a_name_that_is_nothing_is_told_without_a_pause(closed, pauses, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("nobody/nothing", "exports/mistyped"):
        with refused(DownloadError, name, "no connection to 127.0.0.1"):
            open_trained(name)
    assert pauses == []


def test_a_repository_that_is_not_there_is_told_without_a_pause(hub, pauses):
    with refused(ModelError, "nobody/nothing"):
        open_trained("nobody/nothing")
    assert pauses == []
    assert len(hub.requests) == 1


def test_a_server_error_is_tried_again(hub, pauses):
    hub.repositories["some/rewriter"] = Repository(private=False)
    hub.repositories["some/rewriter"].commit("main", "first", {FILE: b"{}"})
    statuses = [503, 503, 500]
    hub.refuse = lambda method, path: statuses.pop() if statuses else None
    with open(hf_hub_download("some/rewriter", FILE), "rb") as file:
        assert file.read() == b"{}"
    assert len(pauses) == 2, "the first attempt looks for a quick answer, the others take their time"


def test_no_connection_takes_longer_than_its_limit(hub, monkeypatch):
    timeouts, send = [], _http.httpx2.Client.send

    def note_and_send(client, request, **options):
        timeouts.append(request.extensions["timeout"])
        return send(client, request, **options)

    monkeypatch.setattr(_http.httpx2.Client, "send", note_and_send)
    huggingface_hub.set_client_factory(_http.default_client_factory)
    fail_fast_without_hub()
    with pytest.raises(errors.RepositoryNotFoundError):
        huggingface_hub.HfApi().model_info("nobody/nothing", timeout=9)
    assert [(limit["connect"], limit["read"]) for limit in timeouts] == [(CONNECT_SECONDS, 9)]


def test_a_client_that_the_caller_has_set_stays():
    def custom_factory():
        return _http.default_client_factory()

    huggingface_hub.set_client_factory(custom_factory)
    fail_fast_without_hub()
    assert _http._GLOBAL_CLIENT_FACTORY is custom_factory
