"""Addresses and tokens in files: who may read them, who finds them, and what is said where they cannot be used."""

import json
import os
import signal
import stat
import subprocess
import sys
import time

import httpx
import pytest
from querylect.cli import main
from querylect.configs.schema import RunConfig
from querylect.envs.connect import open_environment
from querylect.envs.facing import facing
from querylect.envs.handed_over import handed_over, tell
from querylect.envs.tokens import token_of
from querylect.errors import ConfigError, StorageError
from querylect.slurm import ready


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


def test_a_token_file_that_cannot_be_used_is_one_sentence(token_file):
    def refused(what):
        with pytest.raises(ConfigError, match=what) as error:
            token_of("MINE")
        assert str(token_file) in str(error.value)
        assert "s3cret" not in str(error.value)
        assert "\n" not in str(error.value)

    token_file.chmod(0o640)
    refused(r"others may read the token file .* \(mode 640\): chmod 600")
    token_file.chmod(0o600)
    token_file.write_bytes(b"\xff\xfe")
    refused(r"named by MINE_FILE, cannot be read \(it is not text\)")
    token_file.write_text(" \n")
    refused(r"named by MINE_FILE, is empty")
    token_file.write_text("two\nlines")
    refused("characters that no header can carry")
    token_file.unlink()
    refused(r"named by MINE_FILE, cannot be read \(No such file or directory\)")
    token_file.mkdir(mode=0o700)
    refused(r"named by MINE_FILE, cannot be read \(Is a directory\)")


def test_a_run_and_a_service_end_with_that_sentence(token_file, small_environment, capsys):
    config = RunConfig.model_validate(
        {"env": small_environment.model_dump(), "client": {"urls": ["http://127.0.0.1:9"], "token_env": "MINE"}}
    )
    token_file.chmod(0o644)
    with pytest.raises(ConfigError, match="others may read"), open_environment(config):
        pass
    with pytest.raises(SystemExit) as ended:
        main(["serve", "tiny", "client.token_env=MINE"])
    assert ended.value.code == 2
    assert "others may read" in capsys.readouterr().err


def test_a_service_tells_its_address_and_a_run_that_starts_none_finds_it(small_environment, tmp_path, monkeypatch):
    """A real service as a job starts it: facing another machine, with its token in a file."""
    token = tmp_path / "token"
    token.write_text("s3cret")
    token.chmod(0o600)
    services = tmp_path / "services"
    services.mkdir()
    settings = [f"env.{key}={json.dumps(value)}" for key, value in small_environment.model_dump(mode="json").items()
                if key in ("dataset", "index", "name")]  # fmt: skip
    command = [sys.executable, "-m", "querylect", "serve", "tiny", *settings]
    command += ["--facing", "127.0.0.1", "--tell", str(services / "it.json")]
    monkeypatch.setenv("QUERYLECT_TOKEN_FILE", str(token))
    monkeypatch.delenv("QUERYLECT_TOKEN", raising=False)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as service:
        try:
            assert ready.wait(services, 1, 120) is None
            (path,) = services.iterdir()
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            url = json.loads(path.read_text())["url"]
            assert url.startswith("http://127.0.0.1:")
            assert httpx.get(f"{url}/v1/environment", trust_env=False).status_code == 401

            config = RunConfig.model_validate({"env": small_environment.model_dump()})
            monkeypatch.setenv("QUERYLECT_SERVICES", str(services))
            with open_environment(config) as client:
                assert client.environment().corpus_size == 6
            assert handed_over(config.env) == [url]
            other = config.env.model_copy(update={"index": "indexes/other"})
            with pytest.raises(ConfigError, match=r"no service of the index .*/indexes/other is handed over"):
                handed_over(other)
        finally:
            service.send_signal(signal.SIGTERM)
            said = "".join(service.communicate(timeout=60))
    assert url in said
    assert "s3cret" not in said


def test_an_address_that_cannot_be_written_or_read(small_environment, tmp_path, monkeypatch):
    with pytest.raises(StorageError, match=r"the address of the service could not be written to .* \(No such file"):
        tell(tmp_path / "none" / "it.json", "http://127.0.0.1:1", small_environment)
    (tmp_path / "it.json").write_text('{"url": 3}')
    monkeypatch.setenv("QUERYLECT_SERVICES", str(tmp_path))
    with pytest.raises(ConfigError, match=r"it\.json, named by QUERYLECT_SERVICES, cannot be read \(it holds no url"):
        handed_over(small_environment)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".it.json")]


def test_the_address_that_another_machine_reaches():
    assert facing("127.0.0.1") == "127.0.0.1"
    with pytest.raises(ConfigError, match=r"no way from .* to 'no\.such\.host\.invalid'"):
        facing("no.such.host.invalid")


def test_a_wait_in_vain_says_who_is_missing(tmp_path, small_environment):
    began = time.monotonic()
    assert "0 of 2 retrievers have told their address" in ready.wait(tmp_path, 2, 0)
    tell(tmp_path / "it.json", "http://127.0.0.1:1", small_environment)
    said = ready.wait(tmp_path, 1, 0)
    assert "1 of 1 retrievers have told their address; http://127.0.0.1:1 does not answer here (" in said
    assert time.monotonic() - began < 60
    assert ready.main([str(tmp_path), "1", "0"]) == 1
    assert os.listdir(tmp_path) == ["it.json"]
