"""Evaluate a spec: every system on every dataset in every environment.

If a cell cannot be run (a missing model, a service that does not answer), its failure is recorded and reported at the
end; the other cells continue. The results are rewritten after every evaluation from the answers in the store:

eval.jsonl                    every record that counts (eval/records.py); unused.jsonl: answers to other settings
tables.md tables.tex          one table of systems and datasets, what was written, and the transfer of policies
report.html                   the same on one page, with every comparison and examples
scores.csv comparisons.csv    every mean with its interval, and every tested difference
leaks.jsonl                   questions that a system was trained on, or nearly so, if there are any
results.json                  the figures, all comparisons, the cells, failures, and the spec
trec/DATASET/                 topics, qrels and a run for each system and turn
plan.yaml                     the spec with every setting
"""

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..configs.evaluation import RAW, SpecConfig, dump_spec
from ..configs.schema import RunConfig
from ..errors import DataError, IncompleteError, QuerylectError
from ..storage import write_text
from .cells import Cell, Evaluation, answer_cells
from .curves import draw_run
from .environments import EvalEnvironment, SpecEnvironments, chosen_environments
from .export import write_trec_files
from .leakage import LEAKS, TrainedQuestions, write_leaks_file
from .records import TRAINED, EvalRecord
from .results import EvalResults
from .run import with_run_baselines
from .store import RERUN, open_store, refuse_other
from .summary import results_of
from .systems import RewritingSystem, System, system_of_spec
from .table import Note
from .text import write_results

log = logging.getLogger(__name__)


def evaluate_spec(
    spec: SpecConfig,
    output: Path | None = None,
    overwrite: bool = False,
    trust: bool = False,
    beside: Callable[[Path, EvalResults], None] | None = None,
    run: RunConfig | None = None,
) -> tuple[Path, QuerylectError | None]:
    """Evaluate a spec and write its folder: `output`, or OUTPUT/NAME of the spec.

    A system that is a run has its untrained policy and HyDE as rows, and one with a warm start its policy before GRPO
    (eval/run.py). `run` are the settings of all runs instead of those in their folders; `beside` may write
    more files. Returns the path of report.html and the error to raise if cells failed, else None. Raises ConfigError if
    the folder holds results of other questions, settings or weights and `overwrite` is false (stored answers are never
    lost), StorageError if the folder cannot be written or another command is at work in it, DataError for a store with
    a line that is no record.
    """
    folder = output or Path(spec.output).expanduser() / spec.name
    spec = with_run_baselines(spec)
    with open_store(folder) as store:
        evaluation = Evaluation(spec, folder, store, run)
        _prepare(evaluation, trust)
        refuse_other(folder / "results.json", evaluation.identity, overwrite)
        answer_cells(evaluation.cells)
        records = {cell: cell.records() for cell in evaluation.cells}
        store.publish([record for of_cell in records.values() for record in of_cell])
        results = write_files(evaluation, records)
        if beside is not None:
            beside(folder, results)
    return folder / "report.html", _incomplete(evaluation)


def _prepare(evaluation: Evaluation, trust: bool) -> None:
    """Open all environments, resolve all systems, and create the cells: on a dataset all on the same questions."""
    spec, opened = evaluation.spec, SpecEnvironments(evaluation.spec)
    trained_questions = TrainedQuestions(opened, spec.split)
    unresolved: dict[str, QuerylectError] = {}
    taking_part: list[tuple[EvalEnvironment, list[System]]] = []
    left_out: dict[str, dict[str, str]] = {}
    """By dataset: id of a question that a system was trained on → that system."""
    for name in spec.systems:
        try:
            evaluation.systems[name] = system_of_spec(spec, name, trust, evaluation.run)
        except QuerylectError as error:
            unresolved[name] = error
    environments: list[EvalEnvironment] = []
    for dataset, name in chosen_environments(spec):
        try:
            environments.append(opened.open(dataset, name))
        except QuerylectError as error:
            names = [system for system in spec.systems if spec.systems[system].takes_part(dataset, name)]
            evaluation.refuse(dataset, name, [RAW, *names], error)
    for environment in environments:
        systems: list[System] = []
        for name in spec.systems:
            if not spec.systems[name].takes_part(environment.dataset, environment.name):
                continue
            try:
                if name in unresolved:
                    raise unresolved[name]
                system = evaluation.systems[name]
                if isinstance(system, RewritingSystem):
                    trained = trained_questions.find(system, environment, environments)
                    left_out.setdefault(environment.dataset, {}).update(dict.fromkeys(trained, name))
                systems.append(system)
            except QuerylectError as error:
                evaluation.refuse(environment.dataset, environment.name, [name], error)
        taking_part.append((environment, systems))
    for environment, systems in taking_part:
        by_system = left_out.get(environment.dataset, {})
        questions = [question for question in environment.questions if question.id not in by_system]
        if not questions:
            left = DataError(
                f"every question of {environment.dataset} is one that a system was trained on; {LEAKS} lists them. "
                "Take the dataset from those systems (systems.NAME.datasets)."
            )
            names = [RAW, *(system.name for system in systems)]
            evaluation.refuse(environment.dataset, environment.name, names, left)
            continue
        if count := len(environment.questions) - len(questions):
            evaluation.notes.append(
                f"{count} of {len(environment.questions)} questions of {environment.dataset} are left out for all "
                f"systems, because {', '.join(sorted(set(by_system.values())))} was trained on them; {LEAKS} lists "
                "them."
            )
            log.warning("%s", evaluation.notes[-1])
        evaluation.add(replace(environment, questions=questions), systems)
    evaluation.notes += trained_questions.notes
    evaluation.leaks = trained_questions.records
    evaluation.licences = {dataset: opened.licence(dataset) for dataset in spec.datasets}


def _incomplete(evaluation: Evaluation) -> QuerylectError | None:
    """The error to raise if cells failed."""
    answered = [cell for cell in evaluation.cells if cell.failure is None]
    unscored = sum(len(cell.pending()) for cell in answered)
    if unscored:
        log.warning("%d answers have no score; they count nowhere, and the same command asks them again", unscored)
    failures = evaluation.failures
    if not failures:
        return None
    details = "\n".join(f"  {failure.sentence()}" for failure in failures)
    return IncompleteError(
        f"{len(failures)} of {len(failures) + len(answered)} cells failed; the tables are without what they lack. Fix "
        f"the cause and {RERUN}\n{details}"
    )


def write_files(evaluation: Evaluation, records: Mapping[Cell, Sequence[EvalRecord]]) -> EvalResults:
    """Write all files except the store, from the records of each cell; returns what they show."""
    spec, folder = evaluation.spec, evaluation.folder
    write_text(folder / "plan.yaml", dump_spec(spec))
    trec = folder / "trec"
    shutil.rmtree(trec, ignore_errors=True)
    lost = write_trec_files(trec, spec, evaluation.cells, records, evaluation.licences)
    results = results_of(evaluation, records)
    results.notes += [Note("trec", 1, text) for text in lost]
    run = spec.systems[TRAINED].run if evaluation.run is not None and TRAINED in spec.systems else None
    write_results(folder, results, draw_run(Path(run)) if run is not None else [])
    write_leaks_file(folder, evaluation.leaks)
    return results
