"""The provenance of a run: git, versions, the GPU file."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from querylect import provenance
from querylect.sources import known_extras

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[2]


def git(folder: Path, *arguments: str) -> str:
    settings = ("-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", "-C", folder, *settings, *arguments], check=True, capture_output=True, text=True
    ).stdout


def test_git_says_commit_and_whether_files_that_it_knows_differ(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert provenance.git_state() is None
    git(tmp_path, "init", "-q", "-b", "work")
    assert provenance.git_state() is None, "no commit yet"
    (tmp_path / "notes").write_text("one")
    git(tmp_path, "add", "notes")
    git(tmp_path, "commit", "-q", "-m", "first")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "metrics.jsonl").write_text("{}")
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    assert provenance.git_state() == {"commit": commit, "branch": "work", "dirty": False}
    (tmp_path / "notes").write_text("two")
    assert provenance.git_state()["dirty"]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_the_versions_for_gpus_are_within_the_bounds(python):
    """That they also exist together is checked against the package index by `.ci/resolve_gpu`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = dict(line.split("==") for line in (ROOT / "constraints-gpu.txt").read_text().split())
    pins = {normal(name): version for name, version in pins.items()}
    for requirement in [*map(Requirement, project["dependencies"]), *known_extras()["gpu"]]:
        if requirement.marker is None or requirement.marker.evaluate({"python_version": python}):
            assert pins[normal(requirement.name)] in requirement.specifier, requirement
