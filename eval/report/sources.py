"""What a report is made of: folders of evaluations, of drift and of training, told apart by what lies in them.

    results.json and plan.yaml    an evaluation of a plan
    drift.json                    what `querylect drift` wrote
    config.yaml                   a training run, finished or not

The tables are read back from results.json as they were written: nothing is computed again, so that a page can only say
what the files say.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from ...configs.evaluation import PlanConfig
from ...configs.plan_files import load_plan
from ...errors import ConfigError, DataError
from ..drift.mmd import Drift
from ..drift.run import Pair
from ..grid.table import Comparison, Costs, GridTable, Row, Score
from ..grid.transfer import Policy, Transfer
from ..records import EvalRecord, read_records
from ..statistics import PairedComparison
from ..table import Arm
from .curves import TrainingRun, read_run


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The folder of an evaluated plan."""

    folder: Path
    plan: PlanConfig
    results: Mapping[str, Any]
    """results.json."""
    tables: Sequence[GridTable]
    transfer: Transfer | None

    @property
    def cells(self) -> Sequence[Mapping[str, Any]]:
        """What results.json says of each cell; raw questions among them."""
        found: Sequence[Mapping[str, Any]] = self.results["cells"]
        return found

    def records(self, cell: Mapping[str, Any]) -> list[EvalRecord]:
        """The answers of a cell; none where it has none. Raises DataError for a file that cannot be read."""
        path = self.folder / cell["records"]
        return read_records(path) if path.is_file() else []


@dataclass(frozen=True, slots=True)
class DriftFolder:
    """The folder of measured drift."""

    folder: Path
    content: Mapping[str, Any]
    """drift.json."""
    pairs: Sequence[Pair]

    @property
    def names(self) -> list[str]:
        """The retrievers."""
        return [system["name"] for system in self.content["systems"]]


Source = Evaluation | DriftFolder | TrainingRun
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class Material:
    """What the folders of a page hold, each kind in the order in which it was given."""

    evaluations: Sequence[Evaluation]
    drifts: Sequence[DriftFolder]
    runs: Sequence[TrainingRun]

    @property
    def folders(self) -> list[Path]:
        """Evaluations, then drift, then runs."""
        measured = [one.folder for one in self.evaluations] + [one.folder for one in self.drifts]
        return measured + [run.path for run in self.runs]


def read_folders(folders: Sequence[Path]) -> Material:
    """Read every folder once. Raises ConfigError and DataError as `read_source`."""
    sources = [read_source(folder) for folder in {folder.resolve(): folder for folder in folders}.values()]
    return Material(
        [one for one in sources if isinstance(one, Evaluation)],
        [one for one in sources if isinstance(one, DriftFolder)],
        [one for one in sources if isinstance(one, TrainingRun)],
    )


def read_source(folder: Path) -> Source:
    """What lies in a folder. ConfigError where it is none of the three, DataError where its files cannot be read."""
    if (folder / "results.json").is_file() and (folder / "plan.yaml").is_file():
        return _read(folder, "results.json", "querylect eval", _evaluation)
    if (folder / "drift.json").is_file():
        return _read(folder, "drift.json", "querylect drift", _drift)
    if (folder / "config.yaml").is_file():
        return read_run(folder)
    raise ConfigError(_unknown(folder))


def _unknown(folder: Path) -> str:
    wanted = (
        "an evaluation (results.json and plan.yaml), drift (drift.json) or a run (config.yaml). Give a folder that "
        "`querylect eval PLAN`, `querylect drift` or `querylect train` wrote."
    )
    if not folder.is_dir():
        seen = "is a file" if folder.exists() else "does not exist"
        return f"{folder} {seen}; expected the folder of {wanted}"
    if (folder / "cells").is_dir():
        return f"{folder} is an evaluation that has written no results yet; give its `querylect eval` again first."
    if (folder / "eval.jsonl").is_file():
        return (
            f"{folder} is the evaluation of one run, whose page is its own report.html; for it beside others evaluate "
            "a plan that names the run."
        )
    found = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    seen = ", ".join(found[:8]) + (f" and {len(found) - 8} more" if len(found) > 8 else "") or "nothing"
    return f"{folder} holds {seen}; expected {wanted}"


def _read(folder: Path, name: str, command: str, read: Callable[[Path, Any], Read]) -> Read:
    path = folder / name
    try:
        return read(folder, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} cannot be read ({type(error).__name__}: {error}). Write it again with this version: `{command}`."
        ) from error


def _evaluation(folder: Path, content: Mapping[str, Any]) -> Evaluation:
    matrix = content["transfer"]
    return Evaluation(
        folder=folder,
        plan=load_plan(str(folder / "plan.yaml")),
        results=content,
        tables=[table_of(table) for table in content["tables"]],
        transfer=matrix and Transfer(**{**matrix, "policies": [Policy(**policy) for policy in matrix["policies"]]}),
    )


def table_of(content: Mapping[str, Any]) -> GridTable:
    """A table as results.json has it. Raises KeyError or TypeError where it has another form."""
    return GridTable(
        title=content["title"],
        environments=content["environments"],
        questions=content["questions"],
        rows=[
            Row(
                arm=Arm(row["system"], row["turn"]),
                label=row["label"],
                scores={name: score and Score(**score) for name, score in row["scores"].items()},
                costs=row["costs"] and Costs(**row["costs"]),
            )
            for row in content["rows"]
        ],
        comparisons=[
            Comparison(
                arm=Arm(row["system"], row["turn"]),
                baseline=Arm(row["against"]["system"], row["against"]["turn"]),
                environment=row["environment"],
                test=PairedComparison(**{field.name: row[field.name] for field in fields(PairedComparison)}),
                p_holm=row["p_holm"],
            )
            for row in content["comparisons"]
        ],
        notes=content["notes"],
        average=content["average"],
    )


def _drift(folder: Path, content: Mapping[str, Any]) -> DriftFolder:
    pairs = [
        Pair(**{**pair, "drifts": {kind: Drift(**found) for kind, found in pair["drifts"].items()}})
        for pair in content["pairs"]
    ]
    return DriftFolder(folder, content, pairs)
