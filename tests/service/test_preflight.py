"""Mistakes in settings are reported before PyTorch is imported, a model opened or a search sent."""

import json
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml
from querylect.errors import StorageError
from querylect.storage import only_command

from ..raising import refused

READ_ONLY = "/sys/kernel"
"""A folder in which nobody makes a file, root neither."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, small_environment):
    """For each command line below, in one process: its exit code, the code of the error, and whether it had imported
    PyTorch or transformers when it ended."""
    folder = tmp_path_factory.mktemp("preflight")
    (folder / "there").mkdir()
    (folder / "there" / "config.yaml").touch()
    (folder / "run.yaml").write_text(
        yaml.safe_dump({"name": "there", "output": str(folder), "env": small_environment.model_dump(mode="json")})
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = f"env.port={taken.getsockname()[1]}"
        commands = {
            name: [part.format(run=folder / "run.yaml", folder=folder, port=port) for part in command.split()]
            for name, (command, _) in COMMANDS.items()
        }
        code = f"""
            import json, sys
            from querylect.cli import main
            for name, arguments in json.loads({json.dumps(commands)!r}).items():
                try:
                    main(arguments)
                except SystemExit as stop:
                    error = getattr(stop.__context__, "code", None)
                    heavy = sorted({{"torch", "transformers"}} & set(sys.modules))
                    print(json.dumps([name, error, heavy, str(stop.__context__)]))
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, cwd=folder, timeout=120
        )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["run.yaml", "there"], "nothing was made"
    return {name: outcome for name, *outcome in map(json.loads, done.stdout.splitlines())}


COMMANDS = {
    "train: retriever": ("train {run} name=new env.retriever=bm26", "unknown-retriever"),
    "train: rewriter": ("train {run} name=new rewriter.name=smal", "unknown-rewriter"),
    "train: prompt": (
        "train {run} name=new rewriter.name=small rewriter.prompt=none.yaml env.index=none",
        "unreadable-file",
    ),
    "train: index": ("train {run} name=new env.index=none", "missing-index"),
    "train: dataset": ("train {run} name=new env.dataset.path=none", "missing-folder"),
    "train: policy": ("train {run} name=new policy.model=./none", "missing-folder"),
    "train: run": ("train {run}", "already-exists"),
    "train: no run": ("train {run} name=new --resume", "no-run"),
    "train: output": (f"train {{run}} output={READ_ONLY}", "unwritable-folder"),
    "eval: retriever": ("eval {run} env.retriever=bm26", "unknown-retriever"),
    "eval: rewriter": ("eval {run} rewriter.name=smal", "unknown-rewriter"),
    "eval: index": ("eval {run} env.index=none", "missing-index"),
    "eval: output": ("eval {run} --output {run}/new", "unwritable-folder"),
    "eval: flags": ("eval --dataset hpo --retriever bm26", "unknown-retriever"),
    "serve: retriever": ("serve {run} env.retriever=bm26", "unknown-retriever"),
    "serve: index": ("serve {run} env.index=none", "missing-index"),
    "serve: port": ("serve {run} {port} --rewriter nowhere", "cannot-bind"),
    "serve: rewriter": ("serve {run} --rewriter nowhere", "unknown-config"),
    "serve: rewriter folder": ("serve {run} --rewriter {folder}", "not-a-rewriter"),
    "index build: retriever": ("index build {run} env.retriever=bm26 env.index=new", "unknown-retriever"),
    "index build: dataset": ("index build {run} env.dataset.path=none env.index=new", "missing-folder"),
    "index build: index": ("index build {run}", "already-exists"),
    "rewrite: rewriter": ("rewrite {run} -q hello rewriter.name=smal", "unknown-rewriter"),
    "rewrite: index": ("rewrite {run} -q hello env.index=none", "missing-index"),
    "export: run": ("export {folder} --to new", "config"),
}
"""Command lines by what is wrong, and the code of their error."""


@pytest.mark.parametrize("name", COMMANDS)
def test_it_is_told_before_anything_heavy_is_imported(name, outcomes):
    error, heavy, message = outcomes[name]
    assert error == COMMANDS[name][1], message
    assert heavy == []


def test_near_names_are_listed(outcomes):
    assert "'bm25'" in outcomes["train: retriever"][2]
    assert "'small'" in outcomes["train: rewriter"][2]


def test_a_folder_that_cannot_be_made_is_refused_by_its_lock():
    with refused(StorageError, READ_ONLY), only_command(Path(READ_ONLY)):
        pass
