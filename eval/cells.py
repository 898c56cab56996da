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
from typing import TypeVar

from ..data.types import Question
from ..envs.client.base import EnvironmentApi
from ..errors import EnvironmentUnavailableError, QuerylectError
from ..llms.access import Llm
from ..logs import progress_bar
from ..provenance import installed_versions
from ..rollouts.engines.base import Engine
from ..storage import data_sha256
from ..version import __version__
from .environments import EvalEnvironment
from .records import RERUN, EvalRecord, RecordStore, answer_key
from .systems import Asked, System
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

    @property
    def sentence(self) -> str:
        """The failure for the notes."""
        return f"{self.system} in {self.environment} on {self.dataset} failed: {self.error}: {self.message}"


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
                "versions": {"querylect": __version__, **installed_versions(("transformers", "vllm"))},
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
        return f"{self.system.name} in {self.environment.title}"

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
    failure = FailedCell(system, dataset, environment, type(error).__name__, str(error))
    log.warning("%s", failure.sentence, exc_info=None if isinstance(error, QuerylectError) else error)
    return failure


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
    gc.collect()  # an index has caches that refer to it, and the next one is opened


def _answer(cell: Cell, client: EnvironmentApi, engine: Engine | Llm | None) -> None:
    """Ask the pending questions, batch by batch; every batch is stored, scored or not.

    Raises EnvironmentUnavailableError if no search of a batch is scored, and none of the batch before it either, or of
    the cell so far: the environment is gone. A few unscored questions in a last small batch are not that.
    """
    questions = cell.pending()
    log.info("%s: %d of %d questions", cell.label, len(questions), len(cell.environment.questions))
    done, unscored_batches, scored = 0, 0, any(map(cell.searched_and_scored, cell.records()))
    with progress_bar(cell.label) as advance:
        advance(0, len(questions))
        for records in cell.system.answer(Asked(questions, cell.environment, client, cell.tuned()), engine):
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
