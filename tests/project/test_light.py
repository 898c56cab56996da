"""`pip install .` without extras: a process in which other packages are blocked."""

import json
import subprocess
import sys
import textwrap
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

from querylect import sources
from querylect.sources import known_extras

ROOT = Path(__file__).parents[2]
BLOCKED = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {blocked!r} else self.finder.find_spec(name, path, target)

sys.meta_path = [Without(finder) for finder in sys.meta_path]
"""


def names(requirements) -> set[str]:
    return {sources._normal(requirement.name) for requirement in requirements}


_distributions = cache(packages_distributions)


def modules_of(packages: set[str]) -> set[str]:
    """The top-level modules that packages bring."""
    return {
        module
        for module, distributions in _distributions().items()
        if {sources._normal(name) for name in distributions} & packages
    }


def without(packages: set[str]) -> str:
    """Code that blocks these packages for what follows."""
    modules = modules_of(packages)
    assert modules
    return BLOCKED.format(blocked=modules)


OPTIONAL = names(known_extras()["cpu"])
"""Packages that `pip install .` does not install."""


def in_a_process(code: str, packages: set[str], **options) -> str:
    blocking = without(packages)
    command = [sys.executable, "-c", f"blocking = {blocking!r}\n{blocking}{textwrap.dedent(code)}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_everything_light_works_without_optional_packages():
    """The names of the package, metrics, the client, rewriting over an endpoint, and the commands that only read."""
    code = """
        from pathlib import Path

        import querylect
        from querylect import Rewriter

        heavy = {"openai", "httpx", "jinja2", "rich"}
        assert not heavy & sys.modules.keys()
        import querylect.doctor.commands, querylect.doctor.checks
        import querylect.envs.client.client, querylect.inference.adapters
        from querylect.cli import main
        from querylect.rewards.metrics import measure

        querylect.doctor.checks.PROBE = blocking + querylect.doctor.checks.PROBE  # a process of its own
        assert querylect.Rewriter is querylect.inference.rewriter.Rewriter
        names = set(querylect.__all__) - {"RetrievalEnv", "RetrievalTaskset"}  # which import the library verifiers
        assert {"train", "EnvironmentClient", "load_config"} < names
        assert all(getattr(querylect, name) for name in names)
        print(measure("ndcg@10")(["b", "a"], {"a": 1}), measure("mrr")(["b", "a"], {"a": 1}))
        for arguments in (["--help"], ["train", "demo", "--dry-run"], ["launch", "demo", "--dry-run"], ["doctor"]):
            try:
                main(arguments)
            except SystemExit as stop:
                assert not stop.code, (arguments, stop.code)
    """
    stdout = in_a_process(code, OPTIONAL)
    assert stdout.startswith(f"{1 / 1.584962500721156} 0.5\n")
    assert "name: demo" in stdout


COMMANDS = {
    "index build demo": "serve",
    "train demo": "train",
    "optimize demo": "train",
    "adapt {docs} --to none": "cpu",
    "report runs/none": "eval",
    "paper hcqr": "eval",
    "rewrite owner/name -q x": "local",
}


def test_a_command_names_the_extra_that_it_lacks(tmp_path, tmp_path_factory):
    docs = tmp_path_factory.mktemp("docs")
    (docs / "a.txt").write_text("Some words.")
    commands = {command.format(docs=docs): extra for command, extra in COMMANDS.items()}
    code = f"""
        import json
        from querylect.cli import main
        for command in {list(commands)!r}:
            try:
                main(command.split())
            except SystemExit as stop:
                error = stop.__context__
                print(json.dumps([command, stop.code, type(error).__name__, str(error)]))
    """
    outcomes = map(json.loads, in_a_process(code, OPTIONAL, cwd=tmp_path).splitlines())
    for command, exit_code, kind, message in outcomes:
        assert (command, exit_code, kind) == (command, 2, "MissingPackageError"), message
        assert f"pip install -c constraints.txt -e '.[{commands[command]}]'" in message
        assert message.count(". ") == 0, "one sentence"
    assert list(tmp_path.iterdir()) == []


def test_bm25_is_served_without_models_and_trainers(small_environment):
    """The extra `serve` alone: an index is built, opened and served over HTTP, and the client asks it."""
    code = f"""
        import threading
        from querylect.configs.environment import EnvironmentConfig
        from querylect.configs.schema import ClientConfig
        from querylect.envs.client.client import EnvironmentClient
        from querylect.envs.build import build_index
        from querylect.envs.plan import SearchPlan
        from querylect.envs.schemas import Step
        from querylect.envs.server.serve import serve

        env = EnvironmentConfig.model_validate_json({small_environment.model_dump_json()!r})
        build_index(env, overwrite=True)

        def ask(url):
            def run():
                with EnvironmentClient(ClientConfig(urls=[url])) as client:
                    step = Step(question_id="q-head", plan=SearchPlan.of("triptan headache"))
                    print(client.step([step], metrics=["map@10"])[0].metrics, flush=True)
                import os, signal
                os.kill(os.getpid(), signal.SIGINT)
            threading.Thread(target=run).start()

        try:
            serve(env.model_copy(update={{"port": 0}}), token=None, ready=ask)
        except KeyboardInterrupt:
            pass
    """
    assert "'ndcg@10': 1.0" in in_a_process(code, OPTIONAL - names(known_extras()["serve"]))
