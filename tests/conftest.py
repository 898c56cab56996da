"""Fixtures that several folders share: real collections, a small real environment and real HTTP servers."""

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from querylect.configs.schema import DatasetConfig, EnvironmentConfig
from querylect.data.beir import save_beir
from querylect.data.types import Dataset, Document, Question, Split

from .lessons import TEXTS, lesson_url, lessons, settings, speaking  # noqa: F401 (fixtures)
from .tiny import tiny_policy, tiny_qwen3  # noqa: F401 (fixtures)
from .waiting import until

# The same examples in every run; --hypothesis-profile=explore looks for new ones. How long an example takes, or is
# drawn, says how busy the machine is.
UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
hypothesis_settings.register_profile("same", derandomize=True, **UNTIMED)
hypothesis_settings.register_profile("explore", **UNTIMED)
hypothesis_settings.load_profile("same")

# A shell that starts the tests in the background makes them ignore Ctrl-C, and the commands that they start inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    """Keep de-quantised models with pytest's own cache, or in a temporary folder, not in the user's; quiet others.

    The Hub is never asked: an id that is in no cache fails at once."""
    kept = getattr(config, "cache", None)  # None with -p no:cacheprovider
    scratch = TemporaryDirectory(prefix="querylect-tests-")
    config.add_cleanup(scratch.cleanup)
    os.environ["XDG_CACHE_HOME"] = scratch.name if kept is None else str(kept.mkdir("querylect"))
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # as every command does
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # else an embedded Milvus on a busy machine writes between the dots
    # DeepSpeed offers pytest-randomly to seed PyTorch: imported for that alone, it costs each process ten seconds, and
    # writes between the dots that it has no GPU. _as_if_alone seeds PyTorch.
    if randomly := config.pluginmanager.getplugin("randomly"):
        randomly.entrypoint_reseeds = []
    # What collecting imports stays: to search it for garbage, again and again, took a third of that time. _paid_once
    # enables it.
    gc.disable()


@pytest.fixture(scope="session", autouse=True)
def _paid_once():
    """Four costs that would come back in hundreds of tests: a new client of httpx reads all authorities (30 ms),
    Accelerate reads the metadata of a package whenever it asks whether that is there (6 ms, thirty times a run), peft
    compiles the template of its model card whenever it saves an adapter (50 ms, three times a run), and gc.collect(),
    which an evaluation calls for each model, looks through all that was imported (300 ms)."""
    from importlib import metadata

    from httpx._transports import default
    from jinja2 import Environment

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(default, "create_ssl_context", cache(default.create_ssl_context))
        patch.setattr(metadata, "metadata", cache(metadata.metadata))
        patch.setattr(Environment, "compile", lru_cache(maxsize=64)(Environment.compile))
        gc.collect()
        gc.freeze()
        gc.enable()
        yield


@pytest.fixture(scope="session", autouse=True)
def _patient():
    """What a test asks of a server without a timeout of its own is waited for, however busy the machine is."""
    from httpx._config import DEFAULT_TIMEOUT_CONFIG

    with pytest.MonkeyPatch.context() as patch:
        for part in ("connect", "read", "write", "pool"):  # five seconds each
            patch.setattr(DEFAULT_TIMEOUT_CONFIG, part, 60.0)
        yield


@pytest.fixture(autouse=True)
def _as_if_alone():
    """No test sees what one before it, or a fixture of many tests, has left in this process: what a command run here
    sets up for its logging and for other libraries' (handlers, levels, variables) goes with it, and PyTorch's random
    numbers begin anew."""
    root, ours = logging.getLogger(), logging.getLogger("querylect")
    handlers, names = root.handlers[:], set(os.environ)
    root.setLevel(logging.WARNING)
    ours.setLevel(logging.NOTSET)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
    yield
    root.handlers[:] = handlers
    for name in set(os.environ) - names:
        del os.environ[name]


def pytest_collection_modifyitems(items):
    """Begin with the files that have slow tests, so that no worker ends long before the other."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


SMALL = {**TEXTS, "withheld-judgement": "nothing asks for this"}


@pytest.fixture(scope="session")
def realdata() -> Path:
    """The folder with real collections, one subfolder each; the test is skipped where there is none."""
    folder = os.environ.get("QUERYLECT_REALDATA")
    if not folder:
        pytest.skip("QUERYLECT_REALDATA is unset: it names the folder with the real collections")
    if not Path(folder).is_dir():
        pytest.fail(f"QUERYLECT_REALDATA is {folder!r}, which is no folder")
    return Path(folder)


@pytest.fixture(scope="module")
def importable_benchmarks():
    """The benchmarks, which are scripts beside each other, can be imported."""
    folder = str(Path(__file__).parents[1] / "benchmarks")
    sys.path.insert(0, folder)
    yield
    sys.path.remove(folder)


@pytest.fixture(scope="session")
def small_environment(tmp_path_factory) -> EnvironmentConfig:
    """Six documents, three test questions and one training question, with a real BM25 index."""
    from querylect.envs.build import build_index

    folder = tmp_path_factory.mktemp("small")
    corpus = [Document(name, f"About {name}", text) for name, text in SMALL.items()]
    test = Split(
        [
            Question("q-head", "what helps when my head hurts"),
            Question("q-sugar", "too much sugar in the blood"),
            Question("q-hidden", "a question whose document is never found"),
        ],
        {"q-head": {"triptan": 2, "aspirin": 1}, "q-sugar": {"insulin": 1}, "q-hidden": {"withheld-judgement": 1}},
    )
    train = Split([Question("q-gums", "bleeding gums")], {"q-gums": {"citrus": 1}})
    save_beir(Dataset("small", corpus, {"test": test, "train": train}), folder / "data")
    config = EnvironmentConfig(dataset=DatasetConfig(path=str(folder / "data")), index=str(folder / "index"))
    build_index(config)
    return config


@pytest.fixture(scope="module")
def environment(small_environment):
    """The small environment, opened."""
    from querylect.envs.environment import Environment

    return Environment.open(small_environment)


@pytest.fixture(scope="module")
def url(environment, small_environment, run_app):
    """The address of a service of the small environment."""
    from querylect.envs.server.app import create_app

    with run_app(create_app(environment)) as url:
        yield url


@pytest.fixture(scope="module")
def client(url):
    """A client of that service."""
    from querylect.configs.schema import ClientConfig
    from querylect.envs.client.client import EnvironmentClient

    with EnvironmentClient(ClientConfig(urls=[url])) as client:
        yield client


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    """An empty working folder, with a cluster file that changes nothing."""
    (tmp_path / "here").mkdir()
    (tmp_path / "cluster.sh").touch()
    monkeypatch.setenv("QUERYLECT_CLUSTER", str(tmp_path / "cluster.sh"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture(scope="module")
def service_in_thread(run_app):
    """The service that a command starts for itself (`client.urls: local`) runs in a thread, not in a child process;
    that of all tests of a module that has one which asks for this."""
    from querylect.envs.client.base import ServiceAddress
    from querylect.envs.environment import Environment
    from querylect.envs.server.app import create_app

    @contextmanager
    def serve(config: EnvironmentConfig) -> Iterator[ServiceAddress]:
        with run_app(create_app(Environment.open(config), "a token")) as url:
            yield ServiceAddress(url, "a token")

    with pytest.MonkeyPatch.context() as patch:
        for module in ("envs.client.connect", "train.processes"):
            patch.setattr(f"querylect.{module}.local_service", serve)
        yield


@pytest.fixture
def replace_function(monkeypatch):
    """Replace a function that a command imports when it runs; returns the list of its calls."""

    def put(module: str, name: str, answer):
        calls = []

        def stand_in(*args, **kwargs):
            calls.append((args, kwargs))
            return answer(*args, **kwargs) if callable(answer) else answer

        fake = ModuleType(f"querylect.{module}")
        setattr(fake, name, stand_in)
        monkeypatch.setitem(sys.modules, f"querylect.{module}", fake)
        return calls

    return put


@pytest.fixture
def own_clock(monkeypatch):
    """The client of a run measures its deadline by its own pauses, which end at once."""
    from .pauses import PausesOnly

    monkeypatch.setattr("querylect.envs.client.client.RetryClock", lambda: PausesOnly().clock)


@contextmanager
def _running(app) -> Iterator[str]:
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started or not thread.is_alive())
    assert server.started, "the server did not start"
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive(), "the server did not stop"


@pytest.fixture(scope="session")
def run_app() -> Callable:
    """`with run_app(asgi_app) as url`: the app under a real uvicorn on a free loopback port."""
    return _running
