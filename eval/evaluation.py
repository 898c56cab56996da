"""One evaluation: systems in environments, answered cell by cell.

eval/run.py assembles the systems of a run, eval/spec.py those of a spec, and each writes its own files. What happens
between is here: cells are created, questions are asked, and the records that count are read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import DataError, QuerylectError
from .answering import unwritten_systems
from .cells import Cell, FailedCell, answer_cells, failed, make_cell
from .environments import EvalEnvironment
from .records import EvalRecord
from .systems import RawSystem, System


@dataclass(slots=True, kw_only=True)
class Evaluation:
    """Systems in environments: what is asked, and what became of it."""

    folder: Path
    """Its folder; the answers are in CELLS of it."""
    split: str
    metrics: Sequence[str]
    """Metrics that the environments compute; the first one is tested."""
    depth: int
    """Documents per ranking."""
    continues: bool = False
    """Whether a cell that fails is noted, and the others continue; otherwise its error is raised."""
    environments: list[EvalEnvironment] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    refused: list[FailedCell] = field(default_factory=list)
    """Cells that could not be created."""

    @property
    def failures(self) -> list[FailedCell]:
        """Cells that could not be created, or not be answered."""
        return [*self.refused, *(cell.failure for cell in self.cells if cell.failure is not None)]

    def add(self, environment: EvalEnvironment, systems: Sequence[System]) -> None:
        """Create the cells of the raw question, also in its history, and of `systems` in an environment.

        Raises ConfigError where a system does not fit the environment, unless the evaluation `continues`.
        """
        self.environments.append(environment)
        raw = [RawSystem(self.metrics, self.depth, name) for name in unwritten_systems(environment.questions)]
        for system in (*raw, *systems):
            try:
                self.cells.append(make_cell(self.folder, environment, system, self.split))
            except QuerylectError as error:
                if not self.continues:
                    raise
                self.refused.append(failed(system.name, environment.dataset, environment.name, error))

    def answer(self) -> None:
        """Ask everything that has no score yet. Raises the first error of a cell, unless the evaluation `continues`."""
        answer_cells(self.cells, self.continues)

    def records(self) -> dict[Cell, list[EvalRecord]]:
        """The records that count. Raises DataError for a file that cannot be read; if the evaluation `continues`, its
        cell has none."""
        return {cell: self._records(cell) for cell in self.cells}

    def missing_notes(self) -> list[str]:
        """Sentences on the answers that models failed to give."""
        return [note for cell in self.cells if cell.failure is None for note in cell.missing_notes()]

    def _records(self, cell: Cell) -> list[EvalRecord]:
        try:
            return cell.records()
        except DataError:
            if not self.continues:
                raise
            return []
