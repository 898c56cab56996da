"""The commands that made what a report shows, quoted for a shell."""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..drift.run import DriftSettings


def of_evaluation(folder: Path) -> str:
    """The evaluation of a folder's plan into the same folder; what was answered is not asked again."""
    return _line("querylect", "eval", folder / "plan.yaml", "--output", folder)


def of_run(folder: Path) -> str:
    """The training of a run under another name, for a run is never overwritten."""
    return _line("querylect", "train", folder / "config.yaml", f"name={folder.name}-again")


def of_drift(folder: Path, content: Mapping[str, Any]) -> str:
    """The measurement of a folder into the same folder, with every setting that is not the usual one."""
    settings, usual = content["settings"], DriftSettings()
    words = ["querylect", "drift", *(f"{system['name']}={system['source']}" for system in content["systems"])]
    for name in ("success", "system", "turn", "model", "sigma", "permutations", "bootstrap", "terms", "seed"):
        if settings[name] != getattr(usual, name):
            words += [f"--{name}", settings[name]]
    if settings["shared"]:
        words.append("--shared")
    return _line(*words, "--output", folder)


def of_report(folders: Iterable[Path], output: Path, shown: int) -> str:
    """The page itself."""
    return _line("querylect", "report", *folders, "--output", output, "--questions", shown)


def _line(*words: object) -> str:
    return shlex.join(map(str, words))
