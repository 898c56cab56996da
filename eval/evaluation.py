"""The cells of a spec: its systems in its environments, on questions that no system was trained on."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..configs.evaluation import RAW, SpecConfig
from ..configs.schema import RunConfig
from ..errors import DataError, IncompleteError, QuerylectError
from .answering import unwritten_systems
from .cells import Cell, FailedCell, failed
from .environments import EvalEnvironment, SpecEnvironments, chosen_environments
from .leakage import trained_questions
from .records import RERUN, EvalRecord, RecordStore, question_set
from .systems import RawSystem, RewritingSystem, System, system_of_spec

log = logging.getLogger(__name__)

Records = Mapping[Cell, Sequence[EvalRecord]]


@dataclass(slots=True)
class Evaluation:
    """Systems in environments: what is asked, and what became of it."""

    spec: SpecConfig
    store: RecordStore
    run: RunConfig | None = None
    """The settings of the run that the spec evaluates, instead of those in run folders; None for other specs."""
    environments: list[EvalEnvironment] = field(default_factory=list)
    systems: dict[str, System] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    refused: list[FailedCell] = field(default_factory=list)
    """Cells that could not be created."""
    notes: list[str] = field(default_factory=list)
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

    def prepare(self, trust: bool) -> None:
        """Open all environments, resolve all systems, and create the cells: on a dataset all on the same questions."""
        spec, opened = self.spec, SpecEnvironments(self.spec)
        environments: list[EvalEnvironment] = []
        for dataset, name in chosen_environments(spec):
            try:
                environments.append(opened.open(dataset, name))
            except QuerylectError as error:
                self._refuse([RAW, *self._systems_in(dataset, name)], dataset, name, error)
        taking_part: list[tuple[EvalEnvironment, list[System]]] = []
        left_out: dict[str, dict[str, str]] = {}
        """By dataset: id of a question that a system was trained on → that system."""
        for environment in environments:
            systems: list[System] = []
            for name in self._systems_in(environment.dataset, environment.name):
                try:
                    system = self.systems.get(name) or system_of_spec(spec, name, trust, self.run)
                    self.systems[name] = system
                    if isinstance(system, RewritingSystem):
                        leaks, notes = trained_questions(system, environment, opened, environments)
                        left_out.setdefault(environment.dataset, {}).update(dict.fromkeys(leaks, name))
                        self.notes += notes
                    systems.append(system)
                except QuerylectError as error:
                    self._refuse([name], environment.dataset, environment.name, error)
            taking_part.append((environment, systems))
        for environment, systems in taking_part:
            self._add(environment, systems, left_out.get(environment.dataset, {}))
        self.licences = {dataset: opened.licence(dataset) for dataset in spec.datasets}

    def _systems_in(self, dataset: str, environment: str) -> list[str]:
        return [name for name, system in self.spec.systems.items() if system.takes_part(dataset, environment)]

    def _add(self, environment: EvalEnvironment, systems: Sequence[System], left_out: Mapping[str, str]) -> None:
        """Create the cells of the raw question, also in its history, and of `systems` in an environment."""
        spec, dataset = self.spec, environment.dataset
        questions = [question for question in environment.questions if question.id not in left_out]
        if not questions:
            error = DataError(
                f"every question of {dataset} is one that a system was trained on. Take the dataset from those systems "
                "(systems.NAME.datasets)."
            )
            return self._refuse([RAW, *(system.name for system in systems)], dataset, environment.name, error)
        if count := len(environment.questions) - len(questions):
            self.notes.append(
                f"{count} of {len(environment.questions)} questions of {dataset} are left out for all systems, "
                f"because {', '.join(sorted(set(left_out.values())))} was trained on them: "
                f"{', '.join(list(left_out)[:5])}{' …' * (count > 5)}"
            )
            log.warning("%s", self.notes[-1])
        environment = replace(environment, questions=questions)
        self.environments.append(environment)
        raw = [RawSystem(spec.metrics, spec.depth, name) for name in unwritten_systems(questions)]
        for system in (*raw, *systems):
            try:
                self.cells.append(Cell(environment, system, self.store, spec.split))
            except QuerylectError as error:
                self._refuse([system.name], dataset, environment.name, error)

    def _refuse(self, systems: Sequence[str], dataset: str, environment: str, error: QuerylectError) -> None:
        """Record that the cells of these systems could not be created."""
        self.refused += [failed(system, dataset, environment, error) for system in systems]

    def error(self) -> QuerylectError | None:
        """The error to raise if cells failed."""
        answered = [cell for cell in self.cells if cell.failure is None]
        if unscored := sum(len(cell.pending()) for cell in answered):
            log.warning("%d answers have no score; they count nowhere, and the same command asks them again", unscored)
        failures = self.failures
        if not failures:
            return None
        details = "\n".join(f"  {failure.sentence}" for failure in failures)
        return IncompleteError(
            f"{len(failures)} of {len(failures) + len(answered)} cells failed; the tables are without what they lack. "
            f"Fix the cause and {RERUN}\n{details}"
        )
