"""The services of a run: a child process that has always ended afterwards, or those that a cluster job has started."""

import json
import os
import signal
import textwrap
from contextlib import suppress

import httpx
import psutil
import pytest
from querylect.configs.load import load_config
from querylect.configs.schema import ClientConfig, ServedConfig
from querylect.envs.client.child_process import local_service
from querylect.envs.client.client import EnvironmentClient, Step
from querylect.envs.client.connect import open_environment
from querylect.envs.environment import Environment
from querylect.envs.plan import SearchPlan
from querylect.errors import ConfigError, IndexFolderError
from querylect.train.processes import shared_environment

from ..forked import Piped
from ..raising import refused
from ..several import side_by_side

pytestmark = pytest.mark.server


def children():
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_only_the_run_itself_can_ask_its_services_which_are_gone_after_the_block(small_environment, monkeypatch):
    """Every user of the machine can connect to the port; the token of another service is refused, too."""
    monkeypatch.setenv("QUERYLECT_TOKEN", "known-to-others")
    earlier = children()
    with suppress(KeyboardInterrupt), local_service(small_environment) as service:
        assert service.url.startswith("http://127.0.0.1:")
        assert len(service.token) >= 32
        for headers in ({}, {"Authorization": "Bearer known-to-others"}):
            answer = httpx.get(f"{service.url}/v1/questions?split=test", headers=headers, trust_env=False)
            assert answer.status_code == 401
        started = children() - earlier
        assert len(started) == 1
        for child in map(psutil.Process, started):
            assert service.token not in {*child.cmdline(), *child.environ().values()}
            assert os.getpgid(child.pid) != os.getpgid(0), "Ctrl-C in a terminal must reach the parent alone"
        with EnvironmentClient(ClientConfig(), [service]) as client:
            (result,) = client.step([Step(question_id="q-sugar", plan=SearchPlan.of("glucose"))])
            assert result.reward == 1.0
        assert service.token not in repr(service)
        raise KeyboardInterrupt
    assert not [child for child in started if psutil.pid_exists(child)]
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{service.url}/healthz", trust_env=False)


def test_what_the_service_cannot_open_is_the_users_error_here(small_environment):
    earlier = children()
    missing = small_environment.model_copy(update={"index": "/nonexistent/index"})
    with pytest.raises(IndexFolderError):
        Environment.open(missing)
    facts = "/nonexistent/index", "querylect index build"
    with refused(IndexFolderError, *facts) as failed, local_service(missing):
        pass
    assert failed.value.exit_code == 2
    assert children() <= earlier


PARENT = textwrap.dedent(
    """
    import json, os, sys, time
    os.setsid()
    from querylect.configs.schema import EnvironmentConfig
    from querylect.envs.client.child_process import local_service

    with local_service(EnvironmentConfig.model_validate_json(sys.argv[1])) as service:
        if os.fork() == 0:
            os.setsid()
            time.sleep(60)
            os._exit(0)
        print(json.dumps(service.url), flush=True)
        sys.stdin.read()
    """
)


def test_the_service_is_gone_after_its_parent_was_killed(small_environment, tmp_path):
    with Piped([small_environment.model_dump_json()], tmp_path, code=PARENT) as parent:
        url = json.loads(parent.stdout.readline())
        assert httpx.get(f"{url}/readyz", trust_env=False).status_code == 200
        processes = psutil.Process(parent.pid).children()
        (child,) = [process for process in processes if "querylect.envs.client.child_process" in process.cmdline()]
        forked = [process for process in processes if process != child]
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait(60)
    ended, alive = psutil.wait_procs([child], timeout=60)
    for process in [*alive, *forked]:
        with suppress(psutil.NoSuchProcess):  # it may have ended meanwhile
            process.kill()
    assert ended == [child]


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


def test_every_process_asks_the_service_that_one_of_them_started(small_environment, monkeypatch):
    monkeypatch.setenv("QUERYLECT_TOKEN", "of-another-service")
    members = {"": ServedConfig(env=small_environment)}

    def corpus_size(processes):
        with shared_environment(members, processes) as client:
            size = client.info().corpus_size
            processes.all_gather(None)  # the service ends with the process that started it
            return size

    assert side_by_side(2, corpus_size) == [6, 6]
