"""What each extra installs, and what an import costs.

    python benchmarks/installation.py

prints packages and MB of files (without bytecode) that the core and each extra of this environment need, querylect not
counted, and the seconds of CPU time of two imports, the median of nine processes each, Python's own start not counted.
"""

import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path
from statistics import median

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from querylect.sources import known_extras

EXTRAS = ("serve", "local", "train", "eval", "cpu")
IMPORTS = ("import querylect", "from querylect import Rewriter")


def closure(requirements: Iterable[Requirement]) -> set[str]:
    """The packages that the requirements bring, with those that they need."""
    todo, visited = list(requirements), set()
    while todo:
        requirement = todo.pop()
        key = canonicalize_name(requirement.name), *sorted(requirement.extras)
        if key not in visited:
            visited.add(key)
            needed = [Requirement(line) for line in distribution(requirement.name).requires or ()]
            extras = [{"extra": name} for name in ("", *requirement.extras)]
            todo += [need for need in needed if not need.marker or any(map(need.marker.evaluate, extras))]
    return {key[0] for key in visited}


def megabytes(packages: Iterable[str]) -> float:
    """The size of their files."""
    files = [Path(file.locate()) for name in packages for file in distribution(name).files or ()]
    return sum(file.stat().st_size for file in files if file.suffix != ".pyc" and file.is_file()) / 1e6


def cpu_seconds(code: str) -> float:
    """CPU time of one import in a new process."""
    timed = f"import time; started = time.process_time(); {code}; print(time.process_time() - started)"
    return float(subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core = [Requirement(line) for line in project["dependencies"]]
    for extra in ("", *EXTRAS):
        packages = closure([*core, *known_extras().get(extra, ())])
        print(f"{f'.[{extra}]' if extra else '.':8} {len(packages):4} packages {megabytes(packages):6.0f} MB")
    for code in IMPORTS:
        print(f"{code}: {median(cpu_seconds(code) for _ in range(9)):.2f} s")
