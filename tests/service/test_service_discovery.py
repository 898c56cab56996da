"""Addresses and tokens in files: permissions, discovery, and the errors if they cannot be used."""

import asyncio
import json
import os
import re
import signal
import stat
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest
from querylect.cli import main
from querylect.configs.schema import ClientConfig, RunConfig
from querylect.envs.client.base import ServiceAddress
from querylect.envs.client.connect import open_environment
from querylect.envs.client.discovery import discover_services, register_service
from querylect.envs.client.source_address import main as facing_command
from querylect.envs.client.source_address import source_address_for
from querylect.envs.client.transport import Transport
from querylect.envs.credentials import secret_in, token_of
from querylect.errors import ConfigError, StorageError
from querylect.slurm import ready

from ..forked import Piped
from ..raising import refused


@pytest.fixture
def token_file(tmp_path, monkeypatch):
    """A token file as it should be, named by MINE_FILE."""
    path = tmp_path / "token"
    path.write_text("s3cret\n")
    path.chmod(0o600)
    monkeypatch.delenv("MINE", raising=False)
    monkeypatch.setenv("MINE_FILE", str(path))
    return path


def test_a_token_stands_in_a_variable_or_in_a_file_of_its_owner(token_file, monkeypatch):
    assert token_of("OTHER") == ""
    assert token_of("MINE") == "s3cret"
    monkeypatch.setenv("MINE", "nearer")
    assert token_of("MINE") == "nearer"


@pytest.mark.parametrize("around", ["s3cret ", " s3cret", "s3cret\n", "s3cret\r\n"])
def test_white_space_around_a_token_is_none_of_it(token_file, monkeypatch, around):
    token_file.write_text(around)
    assert token_of("MINE") == "s3cret"
    monkeypatch.setenv("MINE", around)
    assert token_of("MINE") == secret_in("MINE") == "s3cret"


def test_a_token_of_white_space_alone_opens_no_service(token_file, monkeypatch):
    monkeypatch.setenv("MINE", " \n")
    with refused(ConfigError, "MINE"):
        token_of("MINE")


def test_a_token_file_that_cannot_be_used_is_one_sentence(token_file):
    def check(*facts):
        with refused(ConfigError, token_file, *facts) as error:
            token_of("MINE")
        assert "s3cret" not in str(error.value)
        assert "\n" not in str(error.value)

    token_file.chmod(0o640)
    check("mode 640", f"chmod 600 {token_file}")
    token_file.chmod(0o600)
    token_file.write_bytes(b"\xff\xfe")
    check("MINE_FILE", "not text")
    token_file.write_text(" \n")
    check("MINE_FILE")
    token_file.write_text("two\nlines")
    check()
    token_file.unlink()
    check("MINE_FILE", "No such file or directory")
    token_file.mkdir(mode=0o700)
    check("MINE_FILE", "Is a directory")


def test_a_run_and_a_service_end_with_that_sentence(token_file, small_environment, capsys):
    config = RunConfig.model_validate(
        {"env": small_environment.model_dump(), "client": {"urls": ["http://127.0.0.1:9"], "token_env": "MINE"}}
    )
    token_file.chmod(0o644)
    with refused(ConfigError, token_file, "644"), open_environment(config.env, config.client):
        pass
    with pytest.raises(SystemExit) as ended:
        main(["serve", "tiny", "client.token_env=MINE"])
    assert ended.value.code == 2
    assert f"chmod 600 {token_file}" in capsys.readouterr().err


@pytest.fixture
def start_service(small_environment, tmp_path, monkeypatch):
    """`with start_service(*arguments) as (service, address)`: `querylect serve` with further arguments, and the address
    that it registered in a file of the folder QUERYLECT_SERVICES."""
    services = tmp_path / "services"
    services.mkdir()
    settings = [f"env.{key}={json.dumps(value)}" for key, value in small_environment.model_dump(mode="json").items()
                if key in ("dataset", "index", "name")]  # fmt: skip

    @contextmanager
    def start(*arguments):
        command = ["serve", "tiny", *settings, "--tell", str(services / "it.json"), *arguments]
        with Piped(command, tmp_path) as service:
            assert ready.wait(services, 1, 120) is None
            monkeypatch.setenv("QUERYLECT_SERVICES", str(services))
            (path,) = services.iterdir()
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            yield service, json.loads(path.read_text())

    for name in ("QUERYLECT_TOKEN", "QUERYLECT_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    return start


def output_at_exit(service):
    service.send_signal(signal.SIGTERM)
    return service.stdout.read() + service.stderr.read()


def test_a_service_tells_its_address_and_a_run_that_starts_none_finds_it(
    start_service, small_environment, tmp_path, monkeypatch
):
    """A real service as a job starts it: facing another machine, with its token in a file."""
    token = tmp_path / "token"
    token.write_text("s3cret")
    token.chmod(0o600)
    monkeypatch.setenv("QUERYLECT_TOKEN_FILE", str(token))
    as_no_run_has_it = ["env.host=0.0.0.0", "env.port=1", "env.playground=true"]
    with start_service("--facing", "127.0.0.1", *as_no_run_has_it) as (service, address):
        url = address["url"]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d{2,}", url)
        judgements, token = f"{url}/page/judgements?question_id=q-head", {"Authorization": "Bearer s3cret"}
        assert httpx.get(judgements, headers=token, trust_env=False).status_code == 403
        assert httpx.get(f"{url}/v1/environment", trust_env=False).status_code == 401

        config = RunConfig.model_validate({"env": small_environment.model_dump()})
        with open_environment(config.env, config.client) as client:
            assert client.environment().corpus_size == 6
        assert discover_services(config.env) == [ServiceAddress(url, "s3cret")]
        other_environment = config.env.model_copy(update={"index": "indexes/other"})
        with refused(ConfigError, "/indexes/other", tmp_path / "services"):
            discover_services(other_environment)
        output = output_at_exit(service)
    assert url in output
    assert "s3cret" not in output


def test_a_service_that_tells_its_address_has_a_token_where_none_is_set(start_service, small_environment):
    with start_service() as (service, address):
        assert len(address["token"]) >= 32
        assert httpx.get(f"{address['url']}/v1/environment", trust_env=False).status_code == 401
        with open_environment(small_environment, ClientConfig()) as client:
            assert client.environment().corpus_size == 6
        assert address["token"] not in output_at_exit(service)


def test_of_two_environments_over_one_index_each_finds_its_own_service(small_environment, tmp_path, monkeypatch):
    exponential = small_environment.model_copy(update={"gain": "exponential"})
    register_service(tmp_path / "a.json", "http://127.0.0.1:1", small_environment)
    register_service(tmp_path / "b.json", "http://127.0.0.1:2", exponential)
    monkeypatch.setenv("QUERYLECT_SERVICES", str(tmp_path))
    assert discover_services(small_environment) == [ServiceAddress("http://127.0.0.1:1")]
    moved = exponential.model_copy(update={"host": "10.0.0.1", "port": 80})
    assert discover_services(moved) == [ServiceAddress("http://127.0.0.1:2")]
    with refused(ConfigError, small_environment.index, tmp_path):
        discover_services(small_environment.model_copy(update={"engine": "rank_bm25"}))


def test_no_proxy_stands_between_a_run_and_a_service_of_its_own(monkeypatch):
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"here")

        def log_message(self, *_):
            pass

    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with HTTPServer(("127.0.0.2", 0), Answer) as server:  # an address that is not taken for this machine
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.2:{server.server_port}"

        async def answer_with(config):
            transport = Transport(config, [url])
            try:
                return await transport.text(transport.replicas[0], "/")
            finally:
                await transport.close()

        assert asyncio.run(answer_with(ClientConfig())) == "here"
        assert asyncio.run(answer_with(ClientConfig(urls=[url]))) is None, "the proxy, which is not there, was asked"
        server.shutdown()


def test_an_address_that_cannot_be_written_or_read(small_environment, tmp_path, monkeypatch):
    missing = tmp_path / "none" / "it.json"
    with refused(StorageError, missing, "No such file", "--tell"):
        register_service(missing, "http://127.0.0.1:1", small_environment)
    folder = tmp_path / "folder" / "it.json"  # in the way of the last step
    folder.mkdir(parents=True)
    with refused(StorageError, folder, "Is a directory", "--tell"):
        register_service(folder, "http://127.0.0.1:1", small_environment)
    assert os.listdir(tmp_path / "folder") == ["it.json"], "nothing half-written"
    (tmp_path / "it.json").write_text('{"url": 3}')
    monkeypatch.setenv("QUERYLECT_SERVICES", str(tmp_path))
    with refused(ConfigError, tmp_path / "it.json", "QUERYLECT_SERVICES", " url"):
        discover_services(small_environment)


def test_the_address_that_another_machine_reaches(capsys):
    assert source_address_for("127.0.0.1") == "127.0.0.1"
    assert facing_command("no.such.host.invalid") == 2
    assert re.match(r"error: .*'no\.such\.host\.invalid'.*\n$", capsys.readouterr().err)
    with refused(ConfigError, "'no.such.host.invalid'"):
        source_address_for("no.such.host.invalid")


def test_a_wait_in_vain_says_who_is_missing(tmp_path, small_environment, capsys):
    start = time.monotonic()
    assert "0 of 2" in ready.wait(tmp_path, 2, 0)
    register_service(tmp_path / "it.json", "http://127.0.0.1:1", small_environment)
    message = ready.wait(tmp_path, 1, 0)
    assert "1 of 1" in message
    assert "http://127.0.0.1:1" in message
    assert time.monotonic() - start < 60
    assert ready.main([str(tmp_path), "1", "0"]) == 1
    assert os.listdir(tmp_path) == ["it.json"]
    (tmp_path / "gone.json").symlink_to("nowhere")  # as one that goes while the folder is read
    assert "1 of 2" in ready.wait(tmp_path, 2, 0)
    for wrong in ("30m", "nan", "-1"):
        capsys.readouterr()
        assert ready.main([str(tmp_path), "1", wrong]) == 2
        assert capsys.readouterr().err.startswith(f"READY_SECONDS is {wrong!r}; ")
