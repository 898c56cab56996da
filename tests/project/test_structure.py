"""Structure and names: no folder imports from a later one, no two files import each other, few literary words."""

import ast
import re
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
ORDER = [
    *("version", "errors", "logs", "markdown_tables", "provenance", "storage", "sources"),
    *("command_options", "rewards"),
    *("configs", "data", "envs", "llms", "rewriters", "methods", "rollouts", "questions", "eval", "train"),
    *("optimize", "slurm"),
    *("export", "adapt", "sweep", "inference", "doctor", "cli", "__main__", "__init__"),
]
"""Folders and files of the root, each importing only from those before it."""
LITERARY = {
    *("one", "each", "other", "others", "most", "least", "many", "whole", "rest", "own", "mine", "its", "about", "of"),
    *("found", "asked", "said", "told", "wanted", "known", "given", "kept", "held", "seen", "shown", "meant", "named"),
    *("made", "read", "wrote", "written", "began", "begun", "going", "gone", "waiting", "apart", "before"),
    *("place", "places", "where", "here", "there", "room", "door", "desk", "voice", "speaker"),
}
"""Identifiers that say little about what they name, though some uses are honest (`file.read()`, `SearchPlan.of`)."""
IDENTIFIERS = {ast.Name: "id", ast.arg: "arg", ast.Attribute: "attr"}
PER_10_000 = 30
"""verifiers v1 has 21, prime-rl 7; querylect had 564 before its names were revised."""


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax trees of the product's files by dotted name, such as "train.trainer"."""
    files = [path for name in ORDER for path in (*(ROOT / name).rglob("*.py"), ROOT / f"{name}.py") if path.is_file()]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files]
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in zip(names, files, strict=True)}


@cache
def imports() -> dict[str, set[str]]:
    """Which module imports which, also inside functions and for types alone."""
    return {module: set(_imported(module)) - {module} for module in trees()}


def _imported(module):
    is_package = (ROOT.joinpath(*module.split(".")) / "__init__.py").is_file()
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(trees()[module]):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
            for name in node.names:
                inner = ".".join([*base, name.name])
                yield inner if inner in trees() else ".".join(base) or "__init__"


def test_imports_are_seen():
    assert "train.credit" in imports()["train.trainer"]
    assert "envs.server.serve" in imports()["cli"], "inside a function"
    assert set().union(*imports().values()) <= set(trees())
    assert len(imports()) > 150


def test_no_folder_imports_from_a_later_one():
    rank = {name: number for number, name in enumerate(ORDER)}
    pairs = [(module, target) for module, targets in imports().items() for target in targets]
    assert [pair for pair in pairs if rank[pair[1].split(".")[0]] > rank[pair[0].split(".")[0]]] == []


def test_no_two_files_import_each_other():
    TopologicalSorter(imports()).prepare()  # CycleError names a circle


def test_few_identifiers_are_literary_words():
    names = Counter(
        getattr(node, IDENTIFIERS[type(node)])
        for tree in trees().values()
        for node in ast.walk(tree)
        if type(node) in IDENTIFIERS
    )
    uses = Counter({name: count for name, count in names.items() if name in LITERARY})
    assert uses.total() < PER_10_000 * names.total() / 10_000, f"{uses.most_common(12)}; take the field's words"


def test_a_class_name_is_defined_once():
    names = Counter(node.name for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def test_names_of_tests_are_shorter_than_80_characters():
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    names = [name for text in texts for name in re.findall(r"^ *(?:async )?def (test_\w+)", text, re.MULTILINE)]
    assert len(names) > 500
    assert [name for name in names if len(name) >= 80] == []
