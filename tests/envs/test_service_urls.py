"""Services that a cluster job has started are used by the runs of their environment."""

import pytest
from querylect.configs.load import load_config
from querylect.configs.schema import ClientConfig
from querylect.envs.client.connect import open_environment
from querylect.envs.client.services import source_address_for
from querylect.errors import ConfigError

from ..forked import Piped
from ..raising import refused

pytestmark = pytest.mark.server


@pytest.fixture
def services(tmp_path, monkeypatch):
    """The folder that the variable names."""
    folder = tmp_path / "services"
    folder.mkdir()
    monkeypatch.setenv("QUERYLECT_SERVICES", str(folder))
    return folder


def test_a_served_environment_is_found_by_a_run_that_starts_none(small_environment, services, tmp_path, monkeypatch):
    settings = [f"env.index={small_environment.index}"]
    settings += [f"env.dataset.path={small_environment.dataset.path}"]
    config = load_config("tiny", settings).env
    command = ["serve", "tiny", *settings, "--tell", str(services / "it.json"), "--facing", "127.0.0.1"]
    monkeypatch.setenv("QUERYLECT_TOKEN", "s3cret")
    with Piped(command, tmp_path) as process:
        url = process.stdout.readline().strip()
        with open_environment(config, ClientConfig()) as client:
            assert url in repr(client)
            assert client.info().corpus_size == 6
        other = config.model_copy(update={"engine": "rank_bm25"})
        with refused(ConfigError, services), open_environment(other, ClientConfig()):
            pass


def test_the_address_that_another_machine_reaches():
    assert source_address_for("127.0.0.1") == "127.0.0.1"
