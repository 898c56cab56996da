"""Which module imports which: no folder reaches up, and no two files import each other."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ORDER = [
    "version",
    "errors",
    "logs",
    "sources",
    "markdown_tables",
    "provenance",
    "digests",
    "storage",
    "rewards",
    "configs",
    "data",
    "slurm",
    "envs",
    "llms",
    "rewriters",
    "methods",
    "rollouts",
    "questions",
    "eval",
    "train",
    "export",
    "inference",
    "doctor",
    "cli",
    "__main__",
    "__init__",
]
"""Folders and files of the root, each importing only from those before it (CONTRIBUTING.md)."""


def modules() -> dict[str, Path]:
    files = [path for name in ORDER for path in (ROOT / name).rglob("*.py") if "__pycache__" not in path.parts]
    files += [path for name in ORDER if (path := ROOT / f"{name}.py").exists()]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imported(module: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules that a file imports, also inside functions and for types alone."""
    package = module.split(".") if path.name == "__init__.py" and module != "__init__" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
            for name in node.names:
                inner = ".".join([*base, name.name])
                target = inner if inner in known else ".".join(base) or "__init__"
                if target in known:
                    yield target


def graph() -> dict[str, set[str]]:
    known = modules()
    return {module: set(imported(module, path, known)) - {module} for module, path in known.items()}


def test_the_graph_sees_imports():
    edges = graph()
    assert "train.credit" in edges["train.trainer"]
    assert "envs.server.serve" in edges["cli"], "inside a function"
    assert len(edges) > 250


def test_no_folder_imports_from_one_above_it():
    rank = {name: place for place, name in enumerate(ORDER)}
    up = [
        f"{module} -> {target}"
        for module, targets in graph().items()
        for target in targets
        if rank[target.split(".")[0]] > rank[module.split(".")[0]]
    ]
    assert up == []


def test_no_two_files_import_each_other():
    edges, done = graph(), set()

    def walk(module: str, path: list[str]) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            for target in sorted(edges[module]):
                walk(target, [*path, module])
            done.add(module)

    for module in sorted(edges):
        walk(module, [])
