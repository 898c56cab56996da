"""The commands that reproduce what a report shows, quoted for a shell."""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..drift.results import DriftSettings


def of_evaluation(folder: Path) -> str:
    """Evaluate a folder's spec into the same folder; answered questions are not asked again."""
    return _line("querylect", "eval", folder / "plan.yaml", "--output", folder)


def of_run(folder: Path) -> str:
    """Train with a run's config under a new name, because a run is never overwritten."""
    return _line("querylect", "train", folder / "config.yaml", f"name={folder.name}-again")


def of_drift(folder: Path, content: Mapping[str, Any]) -> str:
    """Measure drift again into the same folder, with every setting that is not the default."""
    settings, defaults = content["settings"], DriftSettings()
    words = ["querylect", "drift", *(f"{system['name']}={system['source']}" for system in content["systems"])]
    for name in ("success", "system", "turn", "model", "sigma", "permutations", "bootstrap", "terms", "seed"):
        if settings[name] != getattr(defaults, name):
            words += [f"--{name}", settings[name]]
    if settings["shared"]:
        words.append("--shared")
    return _line(*words, "--output", folder)


def of_report(folders: Iterable[Path], output: Path, questions: int) -> str:
    """Make the report page."""
    return _line("querylect", "report", *folders, "--output", output, "--questions", questions)


def _line(*words: object) -> str:
    return shlex.join(map(str, words))
