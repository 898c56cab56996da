"""The inputs of a report: folders of evaluations, drift and training runs, recognised by their files.

    results.json and plan.yaml    an evaluation of a spec
    drift.json                    drift, as written by `querylect drift`
    config.yaml                   a training run, finished or not

The tables are read back from results.json; nothing is recomputed, so a page always agrees with the files.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from ...configs.evaluation import SpecConfig
from ...configs.spec_files import load_spec
from ...errors import ConfigError, DataError
from ...storage import parse_json
from ..drift.results import DriftFile
from ..records import EvalRecord, read_records
from ..results import CellEntry, SpecResults, table_of
from ..table import Table
from .curves import TrainingRun, read_run


@dataclass(frozen=True, slots=True)
class EvaluationFolder:
    """The folder of an evaluated spec."""

    folder: Path
    spec: SpecConfig
    results: SpecResults
    tables: Sequence[Table]

    def records(self, cell: CellEntry) -> list[EvalRecord]:
        """The records of a cell; empty if it has no file. Raises DataError for a file that cannot be read."""
        path = self.folder / cell.records
        return read_records(path) if path.is_file() else []


@dataclass(frozen=True, slots=True)
class DriftFolder:
    """The folder of measured drift."""

    folder: Path
    content: DriftFile

    @property
    def names(self) -> list[str]:
        """The retrievers."""
        return [system.name for system in self.content.systems]


Source = EvaluationFolder | DriftFolder | TrainingRun
Parsed = TypeVar("Parsed")


@dataclass(frozen=True, slots=True)
class Material:
    """The contents of a page's folders, each kind in input order."""

    evaluations: Sequence[EvaluationFolder]
    drifts: Sequence[DriftFolder]
    runs: Sequence[TrainingRun]

    @property
    def folders(self) -> list[Path]:
        """Evaluations, then drift, then runs."""
        measured = [evaluation.folder for evaluation in self.evaluations] + [drift.folder for drift in self.drifts]
        return measured + [run.path for run in self.runs]


def read_folders(folders: Sequence[Path]) -> Material:
    """Read every folder once. Raises ConfigError and DataError as `read_source`."""
    sources = [read_source(folder) for folder in {folder.resolve(): folder for folder in folders}.values()]
    return Material(
        [source for source in sources if isinstance(source, EvaluationFolder)],
        [source for source in sources if isinstance(source, DriftFolder)],
        [source for source in sources if isinstance(source, TrainingRun)],
    )


def read_source(folder: Path) -> Source:
    """Read one folder. Raises ConfigError if it is none of the three kinds, DataError if a file cannot be read."""
    if (folder / "results.json").is_file() and (folder / "plan.yaml").is_file():
        return _read(folder, "results.json", "querylect eval", _evaluation)
    if (folder / "drift.json").is_file():
        return _read(folder, "drift.json", "querylect drift", _drift)
    if (folder / "config.yaml").is_file():
        return read_run(folder)
    raise _unknown_folder(folder)


def _unknown_folder(folder: Path) -> ConfigError:
    expected = (
        "an evaluation (results.json and plan.yaml), drift (drift.json) or a run (config.yaml). Give a folder that "
        "`querylect eval PLAN`, `querylect drift` or `querylect train` wrote."
    )
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "does not exist"
        return ConfigError(f"{folder} {problem}; expected the folder of {expected}")
    if (folder / "cells").is_dir():
        message = f"{folder} is an evaluation that has written no results yet; give its `querylect eval` again first."
        return ConfigError(message)
    if (folder / "eval.jsonl").is_file():
        return ConfigError(
            f"{folder} is the evaluation of one run, whose page is its own report.html; for it beside others evaluate "
            "a spec that names the run."
        )
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    listing = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") or "nothing"
    return ConfigError(f"{folder} holds {listing}; expected {expected}")


def _read(folder: Path, name: str, command: str, parse: Callable[[Path, dict[str, Any]], Parsed]) -> Parsed:
    path = folder / name
    try:
        return parse(folder, parse_json(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} cannot be read ({type(error).__name__}: {error}). Write it again with this version: `{command}`."
        ) from error


def _evaluation(folder: Path, content: dict[str, Any]) -> EvaluationFolder:
    return EvaluationFolder(
        folder=folder,
        spec=load_spec(str(folder / "plan.yaml")),
        results=TypeAdapter(SpecResults).validate_python(content),
        tables=[table_of(table) for table in content["tables"]],
    )


def _drift(folder: Path, content: dict[str, Any]) -> DriftFolder:
    return DriftFolder(folder, TypeAdapter(DriftFile).validate_python(content))
