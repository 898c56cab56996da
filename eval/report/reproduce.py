"""The commands that reproduce what a report shows, quoted for a shell."""

import shlex
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from ...configs.names import as_name
from ..drift.results import DriftFile, DriftSettings


def of_evaluation(folder: Path) -> str:
    """Evaluate a folder's spec into the same folder; finished answers are kept."""
    return _line("querylect", "eval", folder / "plan.yaml", "--output", folder)


def of_run(folder: Path) -> str:
    """Train with a run's config under a new name, because a run is never overwritten."""
    return _line("querylect", "train", folder / "config.yaml", f"name={as_name(folder.name)}-again")


def of_drift(folder: Path, content: DriftFile) -> str:
    """Measure drift again into the same folder, with every setting that is not the default."""
    settings, defaults = content.settings, DriftSettings()
    words: list[object] = ["querylect", "drift"]
    for name in (field.name for field in fields(DriftSettings) if field.name != "shared"):
        if getattr(settings, name) != getattr(defaults, name):
            words.append(f"--{name}={getattr(settings, name)}")
    if settings.shared:
        words.append("--shared")
    systems = [f"{system.name}={system.source}" for system in content.systems]
    return _line(*words, "--output", folder, "--", *systems)  # of which one may begin like an option


def of_report(folders: Iterable[Path], output: Path, questions: int) -> str:
    return _line("querylect", "report", *folders, "--output", output, "--questions", questions)


def _line(*words: object) -> str:
    options = (f"./{word}" if isinstance(word, Path) and str(word).startswith("-") else str(word) for word in words)
    return shlex.join(options)
