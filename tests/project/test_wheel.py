"""What `pip install` puts where: the wheel is built here, listed, installed into a folder and used from there."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from querylect.configs.load import dump_config

from ..chat_server import ChatServer, serving

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[2]
DATA = (".yaml", ".json", ".j2", ".html", ".js", ".sh", ".env")
"""Endings of the files besides modules that the package reads or hands out."""


def run(*command: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, env=environment or None
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    """The files of this repository, as they are committed or about to be."""
    if not (ROOT / ".git").exists():
        pytest.skip("no git checkout: what belongs into the wheel is read from git")
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    return [name for name in run(*command, cwd=ROOT).stdout.splitlines() if (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tracked, tmp_path_factory) -> Path:
    """The wheel of a copy of this checkout, built without isolation and without network."""
    pytest.importorskip("setuptools")
    source, folder = tmp_path_factory.mktemp("source") / "checkout", tmp_path_factory.mktemp("wheel")
    for name in tracked:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    run(*pip, "--wheel-dir", folder, source, cwd=folder)
    (built,) = folder.glob("querylect-*.whl")
    return built


def test_the_wheel_holds_every_module_and_all_data_and_nothing_else(wheel, tracked):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {name.split(".")[1] for name in listed if "." in name}
    folders |= {name.split("/")[0] for name in tracked if name.endswith("/__init__.py")} - {"tests", "benchmarks"}
    expected = {
        name
        for name in tracked
        if (name.endswith((".py", *DATA)) or name == "py.typed") and ("/" not in name or name.split("/")[0] in folders)
    }
    assert names == {f"querylect/{name}" for name in expected}


def test_an_installed_wheel_runs_from_anywhere(wheel, tmp_path):
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "-q", "--target", site, wheel, cwd=elsewhere)
    (script,) = (site / "bin").glob("querylect*")
    path = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(site), "HOME": str(elsewhere)}
    stdout = run(sys.executable, "-c", "import querylect; print(querylect.__file__)", cwd=elsewhere, **path).stdout
    assert Path(stdout.strip()).is_relative_to(site)
    assert "drift" in run(sys.executable, script, "--help", cwd=elsewhere, **path).stdout
    assert "name: tiny" in run(sys.executable, script, "train", "tiny", "--dry-run", cwd=elsewhere, **path).stdout
    code = "from querylect.sources import known_extras; print(*known_extras())"
    extras = run(sys.executable, "-c", code, cwd=elsewhere, **path).stdout.split()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert sorted(extras) == sorted(project["optional-dependencies"]), "by its metadata, without a checkout"
    assert list(elsewhere.iterdir()) == [], "nothing was written beside the user"


LIGHT = """
import sys

import querylect

assert not {"openai", "httpx", "pydantic"} & sys.modules.keys()
from querylect.configs.schema import ClientConfig
from querylect.envs.client.client import EnvironmentClient
from querylect.envs.plan import SearchPlan
from querylect.envs.schemas import Step
from querylect.rewards.metrics import measure

config, service, endpoint = sys.argv[1:]
assert measure("recall@1")(["a", "b"], {"a": 1, "b": 1}) == 0.5
with EnvironmentClient(ClientConfig(urls=[service])) as client:
    (question, *_) = client.questions("train")
    (step,) = client.step([Step(question_id=question.id, plan=SearchPlan.of("triptan"))])
    with querylect.Rewriter.from_pretrained(config, endpoint=endpoint, model="m") as rewriter:
        result = rewriter.search(question, client, turns=2)
print(question.id, round(step.reward, 4), result.rewrite.text, len(result.ranking), "torch" in sys.modules)
"""


@pytest.mark.slow  # it installs from the package index
def test_the_package_alone_is_a_client_with_metrics_and_rewriting(wheel, settings, run_app, tmp_path):
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        pytest.skip("no uv: pip install -c constraints.txt -e '.[verifiers]'")
    run(uv, "venv", "--quiet", "--python", sys.executable, tmp_path / "venv", cwd=tmp_path, **os.environ)
    python = tmp_path / "venv" / "bin" / "python"
    command = (uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", python)
    pinned = ("-c", ROOT / "constraints.txt", wheel)
    done = subprocess.run([*map(str, (*command, *pinned))], capture_output=True, text=True)
    if "Failed to fetch" in done.stderr:
        pytest.skip("no package index answers")
    assert done.returncode == 0, done.stderr
    (site,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < 60 * 10**6
    (tmp_path / "mine.yaml").write_text(dump_config(settings), encoding="utf-8")
    with serving(run_app, ChatServer(lambda body: "<think>so</think><rewrite>triptan headache</rewrite>")) as endpoint:
        (url,) = settings.client.urls
        stdout = run(python, "-c", LIGHT, "mine.yaml", url, endpoint, cwd=tmp_path, **os.environ).stdout
        arguments = ("rewrite", "mine.yaml", "--endpoint", endpoint, "--model", "m", "-q", "my head")
        script = tmp_path / "venv" / "bin" / "querylect"
        assert "triptan headache" in run(script, *arguments, cwd=tmp_path, **os.environ).stdout
    assert stdout == "head 0.7602 triptan headache 2 False\n", "2 / (2 + 1 / log2(3)), without the grade 1"
    for command, extra in (("train demo", "train"), ("index build demo", "serve"), ("rewrite demo -q x", None)):
        done = subprocess.run([script, *command.split()], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2
        assert extra is None or f"'.[{extra}]'" in done.stderr, done.stderr
