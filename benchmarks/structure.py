"""How the code of a checkout is divided.

    python benchmarks/structure.py [FOLDER]   # of this checkout, or of another one

Prints modules and lines per folder, circles (groups of files that import each other), imports that reach up in ORDER,
literary words among identifiers, class names with several definitions and signatures that take the whole RunConfig.
"""

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ORDER = [
    *("version", "errors", "logs", "markdown_tables", "provenance", "storage", "sources"),
    *("command_options", "rewards"),
    *("configs", "data", "envs", "llms", "rewriters", "methods", "rollouts", "questions", "eval", "train"),
    *("optimize", "slurm"),
    *("export", "adapt", "sweep", "inference", "doctor", "cli", "__main__", "__init__"),
]
"""Folders and files of the root, each importing only from those before it."""
ORDER_WITHIN = {
    "data": ["documents"],
    "envs": ["index", "retrievers", "server", "client", "adapters"],
    "eval": ["drift", "tasks", "papers"],
    "inference": ["adapters"],
    "rollouts": ["engines"],
}
"""Subfolders, each importing only from those before it, also through other files of its folder."""
LITERARY = {
    *("one", "each", "other", "others", "most", "least", "many", "whole", "rest", "own", "mine", "its", "about", "of"),
    *("found", "asked", "said", "told", "wanted", "known", "given", "kept", "held", "seen", "shown", "meant", "named"),
    *("made", "read", "wrote", "written", "began", "begun", "going", "gone", "waiting", "apart", "before"),
    *("place", "places", "where", "here", "there", "room", "door", "desk", "voice", "speaker"),
}
"""Identifiers that say little about what they name, though some uses are honest (`file.read()`, `SearchPlan.of`)."""

Graph = dict[str, set[str]]


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def modules(root: Path) -> dict[str, Path]:
    """The files of the product by dotted name."""
    files = [path for name in ORDER for path in (root / name).rglob("*.py") if "__pycache__" not in path.parts]
    files += [path for name in ORDER if (path := root / f"{name}.py").exists()]
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imported(module: str, path: Path, by_module: dict[str, Path]) -> Iterator[str]:
    """The modules that a file imports, also inside functions and for types alone."""
    package = module.split(".") if path.name == "__init__.py" and module != "__init__" else module.split(".")[:-1]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
            for name in node.names:
                inner = ".".join([*base, name.name])
                target = inner if inner in by_module else ".".join(base) or "__init__"
                if target in by_module:
                    yield target


def graph(root: Path) -> Graph:
    """Which module imports which."""
    paths = modules(root)
    return {module: set(imported(module, path, paths)) - {module} for module, path in paths.items()}


def upward(edges: Graph) -> list[str]:
    """Imports from a folder that is later in ORDER."""
    rank = {name: number for number, name in enumerate(ORDER)}
    return [
        f"{module} -> {target}"
        for module, targets in edges.items()
        for target in sorted(targets)
        if rank[target.split(".")[0]] > rank[module.split(".")[0]]
    ]


def within(edges: Graph, folder: str) -> Graph:
    """Which file or subfolder of a folder imports which other."""
    parts = {module: module.split(".")[1] for module in edges if module.startswith(f"{folder}.")}
    inner: Graph = {part: set() for part in parts.values()}
    for module, part in parts.items():
        inner[part] |= {parts[target] for target in edges[module] & parts.keys()} - {part}
    return inner


def upward_within(edges: Graph) -> list[str]:
    """Subfolders that reach one that is later in ORDER_WITHIN, or a file that imports them."""
    arrows = []
    for folder, order in ORDER_WITHIN.items():
        inner = within(edges, folder)
        for number, name in enumerate(order):
            reached = _reached(inner, name) if name in inner else set()
            arrows += [f"{folder}.{name} -> {folder}.{target}" for target in order[number:] if target in reached]
    return arrows


def circles(edges: Graph) -> list[list[str]]:
    """Groups of files each of which imports every other one, if only through others."""
    reached = {module: _reached(edges, module) for module in edges}
    groups = {frozenset({target for target in reached[module] if module in reached[target]}) for module in edges}
    return sorted(sorted(group) for group in groups if group)


def _reached(edges: Graph, module: str) -> set[str]:
    reached: set[str] = set()
    queue = [module]
    while queue:
        new = edges[queue.pop()] - reached
        reached |= new
        queue += new
    return reached


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Every variable, parameter and attribute, as often as it stands in the code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute):
            yield node.attr


def literary(trees: list[ast.Module]) -> tuple[float, Counter[str]]:
    """Uses of the words in LITERARY per 10,000 identifiers, and how often each is used."""
    names = Counter(name for tree in trees for name in identifiers(tree))
    uses = Counter({name: count for name, count in names.items() if name in LITERARY})
    return 10_000 * uses.total() / names.total(), uses


def repeated_classes(root: Path) -> dict[str, list[str]]:
    """Class names that are defined more than once, with where."""
    defined: dict[str, list[str]] = defaultdict(list)
    for module, path in modules(root).items():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(f"{module}:{node.lineno}")
    return {name: lines for name, lines in defined.items() if len(lines) > 1}


def whole_configs(tree: ast.Module) -> int:
    """Functions with a parameter of type RunConfig."""
    return sum(
        any(arg.annotation and "RunConfig" in ast.unparse(arg.annotation) for arg in [*a.args, *a.kwonlyargs])
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for a in [node.args]
    )


def counts(root: Path) -> None:
    """Print the figures of a checkout."""
    folders = defaultdict[str, list[int]](list)
    for module, path in modules(root).items():
        name = module.split(".")[0]
        folders[name if (root / name).is_dir() else "files"].append(path.read_bytes().count(b"\n"))
    for folder, lines in folders.items():
        print(f"{folder:12}{len(lines):5} modules{sum(lines):8,} lines")
    everything = [lines for folder in folders.values() for lines in folder]
    print(f"{'all':12}{len(everything):5} modules{sum(everything):8,} lines")
    trees = [parsed(path) for path in modules(root).values()]
    edges = graph(root)
    print(f"circles of files {len(circles(edges))}, imports upwards {len(upward(edges))}")
    rate, words = literary(trees)
    print(f"literary words {rate:.1f} per 10,000 identifiers: {dict(words.most_common(8))}")
    print(f"class names with several definitions {len(repeated_classes(root))}")
    print(f"signatures that take the whole RunConfig {sum(map(whole_configs, trees))}")


if __name__ == "__main__":
    counts(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[1])
