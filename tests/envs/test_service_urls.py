"""Services that a cluster job has started are used by the runs of their environment."""

import pytest
from querylect.configs.load import load_config
from querylect.configs.schema import ClientConfig
from querylect.envs.client.connect import open_environment
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
    command = ["serve", "tiny", *settings, "--tell", str(services / "it.json")]
    monkeypatch.setenv("QUERYLECT_TOKEN", "s3cret")
    with Piped(command, tmp_path) as process:
        url = process.stdout.readline().strip()
        with open_environment(config, ClientConfig()) as client:
            assert url in repr(client)
            assert client.info().corpus_size == 6
        other = config.model_copy(update={"engine": "rank_bm25"})
        (services / "other.json").write_text('{"by": "somebody else"}')
        with refused(ConfigError, services), open_environment(other, ClientConfig()):
            pass
