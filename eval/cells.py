"""Cells: one system in one environment on one dataset, answered without asking any question twice.

A cell's answers are stored in its journal, whose name is a fingerprint of everything that the answers depend on. So a
stopped evaluation resumes, and a changed one asks only what has changed. Every model is loaded once, and a local
environment runs only while questions are sent to it.
"""

import gc
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..data.types import Question
from ..envs.client.base import EnvironmentApi
from ..errors import EnvironmentUnavailableError, QuerylectError
from ..llms.access import Llm
from ..logs import progress_bar
from ..rollouts.engines.base import Engine
from ..rollouts.tree_sampler import ANSWERED_AT_ONCE
from .environments import EvalEnvironment
from .identity import answering_versions
from .journal import RERUN, Journal, finished
from .records import EvalRecord
from .systems import Pending, System, TrainingFreeSystem
from .training_free import Tuned

log = logging.getLogger(__name__)

CELLS = "cells"
"""The folder of all cells of an evaluation."""


@dataclass(frozen=True, slots=True)
class FailedCell:
    """A cell that could not be finished."""

    system: str
    dataset: str
    environment: str
    error: str
    """Name of the exception class."""
    message: str


@dataclass(slots=True, eq=False)
class Cell:
    """One system in one environment. A cell equals only itself."""

    environment: EvalEnvironment
    system: System
    journal: Journal
    failure: FailedCell | None = None

    @property
    def label(self) -> str:
        """The cell in a sentence."""
        return f"{self.system.name} {self.environment.label}"

    @property
    def turns(self) -> list[int]:
        """The turns that every question has records of."""
        return list(range(1, self.system.asking.turns + 1)) or [0]

    def tuned(self) -> Tuned | None:
        """The stored weights of a training-free baseline; None without any. Raises DataError if they cannot be read."""
        return self.system.chosen(self.journal.folder) if isinstance(self.system, TrainingFreeSystem) else None

    def records(self) -> list[EvalRecord]:
        """The valid records, scored or not, under the system's current name and in the order of the questions.

        Raises DataError as Journal.read.
        """
        order = {question.id: number for number, question in enumerate(self.environment.questions)}
        questions = {question.id: question for question in self.environment.questions}
        valid = [
            record if record.system == self.system.name else replace(record, system=self.system.name)
            for record in self.journal.read()
            if record.answers(questions.get(record.question_id)) and record.turn in self.turns
        ]
        return sorted(valid, key=lambda record: (order[record.question_id], record.turn, record.sample))

    def missing(self) -> dict[str, int]:
        """How many answers the model failed to give to the cell's questions, by reason."""
        question_ids = {question.id for question in self.environment.questions}
        return dict(Counter(reason for key, reason in self.journal.missing().items() if key[0] in question_ids))

    def missing_notes(self) -> list[str]:
        """A sentence about the answers that the model failed to give, for the notes of the results; none without."""
        reasons = self.missing()
        if not reasons:
            return []
        summary = ", ".join(f"{reason} ({count})" for reason, count in sorted(reasons.items()))
        return [
            f"{self.label}: {sum(reasons.values())} answers never came and are counted nowhere: {summary}. The same "
            f"command asks for them again; cells/{self.journal.fingerprint}/missing.jsonl names the questions."
        ]

    def searched_and_scored(self, record: EvalRecord) -> bool:
        """Whether the environment scored a search of this record; an answer in the wrong format is not searched."""
        return record.searches > 0 and record.metrics[self.system.asking.metrics[0]] is not None

    def pending(self, records: Sequence[EvalRecord] | None = None) -> list[Question]:
        """The questions without a score for some turn or sample, among `records`; None: those of the journal."""
        questions = self.environment.questions
        records = self.journal.read() if records is None else records
        done = finished(records, questions, self.turns, self.system.asking.paths)
        return [question for question in questions if question.id not in done]


def make_cell(folder: Path, environment: EvalEnvironment, system: System, split: str) -> Cell:
    """The cell of a system in an environment; its journal is in the folder CELLS of `folder`.

    Raises ConfigError where the system does not fit the environment.
    """
    identity: dict[str, object] = {
        "place": environment.identity,
        "depth": system.depth,
        "metrics": sorted(system.asking.metrics),
        "split": split,
        "system": system.identity(environment),
        "versions": answering_versions(),
    }
    return Cell(environment, system, Journal(folder / CELLS, identity))


def fail(cells: Sequence[Cell], error: Exception, continues: bool) -> None:
    """Log the failure and keep it with the cells, so that the others continue; raise it unless the evaluation does."""
    if not continues:
        raise error
    for cell in cells:
        cell.failure = failed(cell.system.name, cell.environment.dataset, cell.environment.name, error)


def failed(system: str, dataset: str, environment: str, error: Exception) -> FailedCell:
    """The failure of a cell, which is logged."""
    unexpected = None if isinstance(error, QuerylectError) else error
    log.warning("%s on %s in %s failed: %s", system, dataset, environment, error, exc_info=unexpected)
    return FailedCell(system, dataset, environment, type(error).__name__, str(error))


def answer_cells(cells: Sequence[Cell], continues: bool) -> None:
    """Ask all pending questions: without a model, then by model; by environment. `continues` as in `fail`."""
    pending = [cell for cell in cells if _has_work(cell, continues)]
    for of_environment in _by_environment([cell for cell in pending if cell.system.engine_key is None]):
        answer_in_environment(of_environment, None, continues)
    by_engine: dict[str, list[Cell]] = {}
    for cell in pending:
        if cell.system.engine_key is not None:
            by_engine.setdefault(cell.system.engine_key, []).append(cell)
    for engine_cells in by_engine.values():
        system = engine_cells[0].system
        try:
            engine = system.load()
        except Exception as error:  # noqa: BLE001 (`fail` decides)
            fail(engine_cells, error, continues)
            continue
        try:
            for of_environment in _by_environment(engine_cells):
                answer_in_environment(of_environment, engine, continues)
        finally:
            if isinstance(engine, Llm):
                engine.close()
            del engine
            _free_memory()


def answer_in_environment(cells: Sequence[Cell], engine: Engine | Llm | None, continues: bool) -> None:
    """Run the cells of one environment, one after another, while it is open: served beside a model, else in this
    process, where starting a service would take longer than the search."""
    try:
        with cells[0].environment.connect(served=engine is not None) as client:
            for cell in cells:
                try:
                    _answer(cell, client, engine)
                except Exception as error:  # noqa: BLE001 (`fail` decides)
                    fail([cell], error, continues)
    except Exception as error:  # noqa: BLE001 (`fail` decides)
        fail([cell for cell in cells if cell.failure is None and cell.pending()], error, continues)


def _answer(cell: Cell, client: EnvironmentApi, engine: Engine | Llm | None) -> None:
    """Ask the pending questions, batch by batch; every batch is stored, scored or not.

    Raises EnvironmentUnavailableError if no search of a batch is scored, and none of the batch before it either, or of
    the cell so far: the environment is gone. A few unscored questions in a last small batch are not that.
    """
    questions = cell.pending()
    answered = len(cell.environment.questions) - len(questions)
    log.info("%s: %d questions%s", cell.label, len(questions), f" ({answered} answered before)" if answered else "")
    done, unscored_batches, scored = 0, 0, any(map(cell.searched_and_scored, cell.records()))
    with progress_bar(cell.label) as advance:
        advance(0, len(questions))
        pending = Pending(questions, cell.environment, client, ANSWERED_AT_ONCE, cell.journal.folder)
        for part in cell.system.answer(pending, engine):
            cell.journal.miss(part.missing)
            if part.records:
                cell.journal.append(part.records)
            if any(map(cell.searched_and_scored, part.records)):
                scored, unscored_batches = True, 0
            elif any(record.searches for record in part.records):
                unscored_batches += 1
            if unscored_batches > (1 if scored else 0):
                raise EnvironmentUnavailableError(
                    f"the environment scored none of {part.questions} questions before the deadline; the last error "
                    f"was {client.last_failure}. Fix the cause, or raise client.deadline, and {RERUN}"
                )
            done += part.questions
            advance(done, len(questions))


def _has_work(cell: Cell, continues: bool) -> bool:
    try:
        cell.missing()  # an unreadable file of missing answers fails the cell, too
        return cell.failure is None and bool(cell.pending())
    except QuerylectError as error:
        fail([cell], error, continues)
        return False


def _by_environment(cells: Sequence[Cell]) -> list[list[Cell]]:
    groups: dict[int, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(id(cell.environment), []).append(cell)
    return list(groups.values())


def _free_memory() -> None:
    gc.collect()
    torch = sys.modules.get("torch")  # an endpoint's model needs none
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
