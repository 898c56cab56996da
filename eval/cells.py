"""Cells: one system in one environment on one dataset, answered without asking any question twice.

Answers are in the evaluation's store by key, so a stopped evaluation resumes and a changed one asks only what has
changed. Every model is loaded once, and a local environment runs only while questions are sent to it. A cell that
fails is noted, and the others continue.
"""

import gc
import logging
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from ..configs.evaluation import SpecConfig
from ..configs.schema import RunConfig
from ..data.types import Question
from ..envs.client.base import EnvironmentApi
from ..errors import EnvironmentUnavailableError, QuerylectError
from ..llms.access import Llm
from ..logs import progress_bar
from ..rollouts.engines.base import Engine
from ..rollouts.tree_sampler import ANSWERED_AT_ONCE
from ..storage import data_sha256
from .answering import unwritten_systems
from .environments import EvalEnvironment
from .identity import answering_versions
from .records import EvalRecord
from .store import RERUN, RecordStore, answer_key, question_set
from .systems import Pending, RawSystem, System
from .training_free import Tuned

log = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class FailedCell:
    """A cell that could not be finished."""

    system: str
    dataset: str
    environment: str
    error: str
    """Name of the exception class."""
    message: str

    def sentence(self, verb: str = "") -> str:
        """The failure for the notes."""
        return f"{self.system} on {self.dataset} in {self.environment}{verb}: {self.error}: {self.message}"


@dataclass(slots=True, eq=False)
class Cell:
    """One system in one environment. A cell equals only itself."""

    environment: EvalEnvironment
    system: System
    store: RecordStore
    split: str
    failure: FailedCell | None = None
    identity: Mapping[str, object] = field(init=False)
    """What the system's answers depend on. Raises ConfigError where the system does not fit the environment."""
    keys: dict[str, str] = field(init=False)
    """The key of every question's answer by its id."""

    def __post_init__(self) -> None:
        self.identity = self.system.identity(self.environment)
        settings = data_sha256(
            {
                "environment": self.environment.identity,
                "depth": self.system.depth,
                "metrics": sorted(self.system.metrics),
                "split": self.split,
                "system": self.identity,
                "versions": answering_versions(),
            }
        )
        qrels = self.environment.split.qrels if self.environment.split is not None else {}
        self.keys = {
            question.id: answer_key(settings, question, qrels.get(question.id))
            for question in self.environment.questions
        }

    @property
    def label(self) -> str:
        """The cell in a sentence."""
        return f"{self.system.name} {self.environment.label}"

    def records(self) -> list[EvalRecord]:
        """The records of answers, scored or not, in the order of questions, turns and samples."""
        return [record for record in self._stored() if not record.failure]

    def _stored(self) -> list[EvalRecord]:
        return [
            self._named(record)
            for question in self.environment.questions
            for record in sorted(self.store.get(self.keys[question.id]), key=lambda r: (r.turn, r.sample))
        ]

    def _named(self, record: EvalRecord) -> EvalRecord:
        return replace(
            record,
            system=self.system.name,
            dataset=self.environment.dataset,
            environment=self.environment.name,
            key=self.keys[record.question_id],
        )

    def add(self, records: Iterable[EvalRecord]) -> None:
        """Store records of its questions."""
        self.store.add(map(self._named, records))

    def tuned(self) -> Tuned | None:
        """The weights of a training-free baseline; None without any."""
        notes = (record.notes for question in self.keys.values() for record in self.store.get(question))
        return next((Tuned(**note["tuned"]) for note in notes if "tuned" in note), None)

    def missing(self) -> dict[str, int]:
        """How many answers the model failed to give to the cell's questions, by reason."""
        return dict(Counter(record.failure for record in self._stored() if record.failure))

    def missing_notes(self) -> list[str]:
        """A sentence about the answers that the model failed to give, for the notes of the results; none without."""
        reasons = self.missing()
        if not reasons:
            return []
        summary = ", ".join(f"{reason} ({count})" for reason, count in sorted(reasons.items()))
        return [
            f"{self.label}: {sum(reasons.values())} answers never came and are counted nowhere: {summary}. The same "
            "command asks for them again."
        ]

    def pending(self) -> list[Question]:
        """The questions without a score for some turn or sample."""
        options = self.system.options
        expected = {(turn, sample) for turn in options.turn_numbers for sample in range(options.paths)}

        def finished(question: Question) -> bool:
            stored = self.store.get(self.keys[question.id])
            return expected <= {(r.turn, r.sample) for r in stored if None not in r.metrics.values()}

        return [question for question in self.environment.questions if not finished(question)]

    def searched_and_scored(self, record: EvalRecord) -> bool:
        """Whether the environment scored a search of this record; an answer in the wrong format is not searched."""
        return record.searches > 0 and record.metrics[self.system.metrics[0]] is not None


def failed(system: str, dataset: str, environment: str, error: Exception) -> FailedCell:
    """The failure of a cell, which is logged."""
    unexpected = None if isinstance(error, QuerylectError) else error
    log.warning("%s on %s in %s failed: %s", system, dataset, environment, error, exc_info=unexpected)
    return FailedCell(system, dataset, environment, type(error).__name__, str(error))


@dataclass(slots=True)
class Evaluation:
    """Systems in environments: what is asked, and what became of it."""

    spec: SpecConfig
    folder: Path
    store: RecordStore
    run: RunConfig | None = None
    """The settings of the run that the spec evaluates, instead of those in run folders; None for other specs."""
    environments: list[EvalEnvironment] = field(default_factory=list)
    systems: dict[str, System] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    refused: list[FailedCell] = field(default_factory=list)
    """Cells that could not be created."""
    notes: list[str] = field(default_factory=list)
    leaks: list[dict[str, object]] = field(default_factory=list)
    """The lines of leaks.jsonl."""
    licences: dict[str, str] = field(default_factory=dict)

    @property
    def failures(self) -> list[FailedCell]:
        """Cells that could not be created, or not be answered."""
        return [*self.refused, *(cell.failure for cell in self.cells if cell.failure is not None)]

    @property
    def identity(self) -> dict[str, object]:
        """What the results are of; others in the folder are not replaced without --overwrite."""
        questions = {environment.dataset: question_set(environment.questions) for environment in self.environments}
        return {
            "split": self.spec.split,
            "questions": questions,
            "environments": {environment.title: environment.identity for environment in self.environments},
            "systems": {cell.label: cell.identity for cell in self.cells},
        }

    def add(self, environment: EvalEnvironment, systems: Sequence[System]) -> None:
        """Create the cells of the raw question, also in its history, and of `systems` in an environment."""
        self.environments.append(environment)
        spec = self.spec
        raw = [RawSystem(spec.metrics, spec.depth, name) for name in unwritten_systems(environment.questions)]
        for system in (*raw, *systems):
            try:
                self.cells.append(Cell(environment, system, self.store, spec.split))
            except QuerylectError as error:
                self.refuse(environment.dataset, environment.name, [system.name], error)

    def refuse(self, dataset: str, environment: str, systems: Sequence[str], error: QuerylectError) -> None:
        """Record that the cells of these systems could not be created."""
        self.refused += [failed(system, dataset, environment, error) for system in systems]


def answer_cells(cells: Sequence[Cell]) -> None:
    """Ask all pending questions: without a model, then by model; by environment."""
    pending = [cell for cell in cells if cell.pending()]
    by_engine = _grouped(sorted(pending, key=lambda c: c.system.engine_key is not None), lambda c: c.system.engine_key)
    for of_engine in by_engine:
        try:
            engine = of_engine[0].system.load()
        except Exception as error:  # noqa: BLE001 (the other cells continue)
            _fail(of_engine, error)
            continue
        try:
            for of_environment in _grouped(of_engine, lambda cell: id(cell.environment)):
                _answer_in_environment(of_environment, engine)
        finally:
            if isinstance(engine, Llm):
                engine.close()
            del engine
            _free_memory()


def _answer_in_environment(cells: Sequence[Cell], engine: Engine | Llm | None) -> None:
    """Run the cells of one environment, one after another, while it is open: served beside a model, else in this
    process, where starting a service would take longer than the search."""
    try:
        with cells[0].environment.connect(served=engine is not None) as client:
            for cell in cells:
                try:
                    _answer(cell, client, engine)
                except Exception as error:  # noqa: BLE001 (the other cells continue)
                    _fail([cell], error)
    except Exception as error:  # noqa: BLE001 (the other environments continue)
        _fail([cell for cell in cells if cell.failure is None and cell.pending()], error)


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
        pending = Pending(questions, cell.environment, client, ANSWERED_AT_ONCE, cell.tuned())
        for records in cell.system.answer(pending, engine):
            cell.add(records)
            batch = len({record.question_id for record in records})
            if any(map(cell.searched_and_scored, records)):
                scored, unscored_batches = True, 0
            elif any(record.searches for record in records):
                unscored_batches += 1
            if unscored_batches > (1 if scored else 0):
                raise EnvironmentUnavailableError(
                    f"the environment scored none of {batch} questions before the deadline; the last error "
                    f"was {client.last_failure}. Fix the cause, or raise client.deadline, and {RERUN}"
                )
            done += batch
            advance(done, len(questions))


def _fail(cells: Sequence[Cell], error: Exception) -> None:
    for cell in cells:
        cell.failure = failed(cell.system.name, cell.environment.dataset, cell.environment.name, error)


def _grouped(cells: Sequence[Cell], key: Callable[[Cell], Key]) -> list[list[Cell]]:
    groups: dict[Key, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(key(cell), []).append(cell)
    return list(groups.values())


def _free_memory() -> None:
    gc.collect()
    torch = sys.modules.get("torch")  # an endpoint's model needs none
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
