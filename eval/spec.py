"""Evaluate a spec: every system on every dataset in every environment.

If a cell cannot be run (a missing model, a service that does not answer), its failure is recorded and reported at the
end; the other cells continue. The results are rewritten after every evaluation from the answers in the store:

eval.jsonl                    every record that counts; store.jsonl: every answer, also to other settings (records.py)
tables.md tables.tex          one table of systems and datasets, what was written, and the transfer of policies
report.html                   the same on one page, with every comparison and examples
scores.csv comparisons.csv    every mean with its interval, and every tested difference
results.json                  the figures, all comparisons, failures, and the spec
trec/DATASET/                 topics, qrels and a run for each system and turn
plan.yaml                     the spec with every setting
"""

import logging
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from ..configs.evaluation import RAW, SpecConfig, dump_spec
from ..configs.schema import RunConfig
from ..data.benchmarks import PARTS, part_of
from ..data.published import METRIC, Measured
from ..data.sampling import in_batches
from ..errors import DataError, EnvironmentUnavailableError, IncompleteError, QuerylectError
from ..logs import progress_bar
from ..rollouts.tree_sampler import ANSWERED_AT_ONCE
from ..storage import write_text
from .answering import run_raw, unwritten_systems
from .cells import Cell, FailedCell, answer_cells, failed
from .environments import EvalEnvironment, SpecEnvironments, chosen_environments
from .export import write_trec_files
from .leakage import trained_questions
from .records import RERUN, TRAINED, EvalRecord, RecordStore, open_store, question_set, refuse_other
from .run import with_run_baselines
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


def evaluate_spec(
    spec: SpecConfig,
    output: Path | None = None,
    overwrite: bool = False,
    trust: bool = False,
    run: RunConfig | None = None,
) -> tuple[Path, QuerylectError | None]:
    """Evaluate a spec and write its folder: `output`, or OUTPUT/NAME of the spec.

    A system that is a run has its untrained policy and HyDE as rows, and one with a warm start its policy before GRPO
    (eval/run.py). `run` are the settings of all runs instead of those in their folders. Returns the path of report.html
    and the error to raise if cells failed, else None. Raises ConfigError if the folder holds results of other
    questions, settings or weights and `overwrite` is false (stored answers are never lost), StorageError if the folder
    cannot be written or another command is at work in it, DataError for a store with a line that is no record.
    """
    folder = output or Path(spec.output).expanduser() / spec.name
    with open_store(folder) as store:
        evaluation = Evaluation(with_run_baselines(spec), store, run)
        evaluation.prepare(trust)
        refuse_other(folder / "results.json", evaluation.identity, overwrite)
        answer_cells(evaluation.cells)
        records = {cell: cell.records() for cell in evaluation.cells}
        store.publish(record for of_cell in records.values() for record in of_cell)
        write_files(folder, evaluation, records)
    return folder / "report.html", evaluation.error()


def write_files(folder: Path, evaluation: Evaluation, records: Records) -> None:
    """Write all files except the records, from the records of each cell."""
    from .curves import draw_run  # pandas and matplotlib, when the indexes are closed
    from .summary import results_of
    from .text import write_results

    spec, systems = evaluation.spec, evaluation.spec.systems
    write_text(folder / "plan.yaml", dump_spec(spec))
    shutil.rmtree(folder / "trec", ignore_errors=True)
    evaluation.notes += write_trec_files(folder / "trec", spec, evaluation.cells, records, evaluation.licences)
    run = systems[TRAINED].run if evaluation.run is not None and TRAINED in systems else None
    write_results(folder, results_of(evaluation, records), draw_run(Path(run)) if run is not None else [])


def measure_spec(spec: SpecConfig) -> Iterator[Measured]:
    """Mean nDCG@10 of the raw questions of every dataset in every environment, all of a split whatever its `limit`; for
    RAGBench also per part, and the mean over parts.

    Raises EnvironmentUnavailableError where a question has no score, and whatever opening an environment raises.
    """
    opened = SpecEnvironments(spec)
    for dataset, name in chosen_environments(spec):
        environment = opened.open(dataset, name)
        values: dict[str, float | None] = {}
        with environment.connect(served=False) as client, progress_bar("searching") as progress:
            for part in in_batches(environment.everything, ANSWERED_AT_ONCE):
                values |= {record.question_id: record.metrics[METRIC] for record in run_raw(client, part, [METRIC])}
                progress(len(values), len(environment.everything))
        scored = {question: value for question, value in values.items() if value is not None}
        if len(scored) < len(values):
            raise EnvironmentUnavailableError(
                f"{environment.title}: {len(values) - len(scored)} of {len(values)} raw questions have no score, so "
                "they cannot be compared with what is published."
            )
        yield from figures(environment.title, *environment.published_as, spec.split, scored)


def figures(label: str, dataset: str, retriever: str, split: str, values: Mapping[str, float]) -> list[Measured]:
    """The mean of nDCG@10 by question id; for RAGBench also per part, and the mean over parts.

    `label` names the environment, `dataset` the dataset.
    """

    def figure(name: str, mean: float, count: int) -> Measured:
        environment = label if name == dataset else f"{label}, {name.rpartition('/')[2]}"
        return Measured(environment, name, retriever, split, mean, count)

    if dataset.partition("[")[0] != "ragbench":
        return [figure(dataset, fmean(values.values()), len(values))]
    parts: dict[str, list[float]] = defaultdict(list)
    for question_id, value in values.items():
        parts[part_of(question_id)].append(value)
    means = {part: fmean(parts[part]) for part in PARTS if part in parts}
    # the published average is over eleven parts, without CUAD
    averaged = [part for part in means if part != "cuad"] or list(means)
    mean, count = fmean(means[part] for part in averaged), sum(len(parts[part]) for part in averaged)
    part_figures = [figure(f"{dataset}/{part}", mean, len(parts[part])) for part, mean in means.items()]
    return [*part_figures, figure(dataset, mean, count)]
