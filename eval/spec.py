"""Evaluate a spec: every system on every dataset in every environment.

If a cell cannot be run (a missing model, a service that does not answer), its failure is recorded and reported at the
end; the other cells continue. The results are rewritten after every evaluation from the answers in the cells:

tables.md tables.tex          one table of systems and datasets, what was written, and the transfer of policies
report.html                   the same on one page, with every comparison and examples
scores.csv comparisons.csv    every mean with its interval, and every tested difference
leaks.jsonl                   questions that a system was trained on, if there are any
results.json                  the figures, all comparisons, the cells, failures, and the spec
questions/DATASET.ENVIRONMENT.SYSTEM.jsonl    every record that counts (eval/records.py)
trec/DATASET/                 topics, qrels and a run for each system and turn
plan.yaml                     the spec with every setting
cells/                        the answers by fingerprint (eval/journal.py)
"""

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ..configs.evaluation import RAW, SpecConfig
from ..configs.spec_files import dump_spec
from ..errors import DataError, IncompleteError, QuerylectError
from ..provenance import versions
from ..storage import only_command, write_text
from .cells import Cell, FailedCell, failed
from .environments import EvalEnvironment, SpecEnvironments, chosen_environments
from .evaluation import Evaluation
from .export import write_trec_files
from .journal import RERUN
from .leakage import LEAKS, TrainedQuestions, refuse_trained, write_leaks_file
from .placement import question_set, refuse_other
from .records import EvalRecord, now, write_json, write_records
from .results import table_json
from .run_baselines import is_warm_start, with_run_baselines
from .spec_tables import build_tables, examples_of, family, wide_table_of
from .systems import RewritingSystem, System, system_of_spec
from .text import Page, write_pages
from .transfer import trained_in, transfer

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class SpecEvaluation(Evaluation):
    spec: SpecConfig
    notes: list[str] = field(default_factory=list)
    licences: dict[str, str] = field(default_factory=dict)
    systems: dict[str, System] = field(default_factory=dict)
    leaks: list[dict[str, object]] = field(default_factory=list)
    """Records of the questions that a system was trained on, with the names of dataset and system."""

    @property
    def identity(self) -> dict[str, object]:
        """The identity of the tables: the split and the questions of every dataset."""
        questions = {environment.dataset: question_set(environment.questions) for environment in self.environments}
        return {"split": self.spec.split, "questions": {name: questions.get(name) for name in self.spec.datasets}}


def evaluate_spec(
    spec: SpecConfig,
    output: Path | None = None,
    overwrite: bool = False,
    trust: bool = False,
    beside: Callable[[Path, Page], None] | None = None,
) -> tuple[Path, QuerylectError | None]:
    """Evaluate a spec and write its folder: `output`, or OUTPUT/NAME of the spec.

    A system that is a run has its untrained policy and HyDE as rows, and one with a warm start its policy before GRPO
    (eval/run_baselines.py). `beside` may write more files. Returns the path of tables.md and the error to raise if
    cells failed, else None. Raises ConfigError if the folder holds tables of other questions and `overwrite` is false
    (answers in cells/ are never replaced), or a run folder from elsewhere reaches beyond its own data and `trust` is
    false (configs/run_settings.py), StorageError if the folder cannot be written or another evaluation is using it.
    """
    folder = output or Path(spec.output).expanduser() / spec.name
    spec = with_run_baselines(spec)
    with only_command(folder):
        evaluation = SpecEvaluation(
            spec=spec, folder=folder, split=spec.split, metrics=spec.metrics, depth=spec.depth, continues=True
        )
        _prepare(evaluation, trust)
        refuse_other(folder / "results.json", evaluation.identity, overwrite)
        evaluation.answer()
        records = evaluation.records()
        page = write_results(evaluation, records)
        if beside is not None:
            beside(folder, page)
    return folder / "tables.md", _incomplete(evaluation, records)


def _prepare(evaluation: SpecEvaluation, trust: bool) -> None:
    """Open all environments, resolve all systems, and create the cells."""
    spec, trained_questions, opened = evaluation.spec, TrainedQuestions(), SpecEnvironments(evaluation.spec)
    unresolved: dict[str, QuerylectError] = {}
    opened_environments: list[tuple[EvalEnvironment, list[System]]] = []
    left_out: dict[str, dict[str, str]] = {}
    for name in spec.systems:
        try:
            evaluation.systems[name] = system_of_spec(spec, name, trust)
        except QuerylectError as error:
            unresolved[name] = error
    for dataset, name in chosen_environments(spec):
        systems = [system for system in spec.systems if _takes_part(spec, system, dataset, name)]
        try:
            environment = opened.open(dataset, name)
        except QuerylectError as error:
            evaluation.refused += [failed(system, dataset, name, error) for system in (RAW, *systems)]
            continue
        taking_part: list[System] = []
        for system in systems:
            try:
                if system in unresolved:
                    raise unresolved[system]
                resolved = evaluation.systems[system]
                if isinstance(resolved, RewritingSystem):
                    leaks, notes = trained_questions.find(resolved, environment, spec.split)
                    evaluation.notes += notes
                    records = [{**leak.record(), "dataset": dataset, "system": system} for leak in leaks]
                    evaluation.leaks += [record for record in records if record not in evaluation.leaks]
                    refuse_trained(system, environment, leaks)
                    left_out.setdefault(dataset, {}).update(dict.fromkeys((leak.question.id for leak in leaks), system))
                taking_part.append(resolved)
            except QuerylectError as error:
                evaluation.refused.append(failed(system, dataset, name, error))
        opened_environments.append((environment, taking_part))
    for environment, taking_part in opened_environments:
        _add_cells(evaluation, environment, taking_part, left_out.get(environment.dataset, {}))
    evaluation.licences = {dataset: opened.licence(dataset) for dataset in spec.datasets}


def _add_cells(
    evaluation: SpecEvaluation, environment: EvalEnvironment, systems: Sequence[System], left_out: Mapping[str, str]
) -> None:
    """Add an environment with its systems, all on the same questions.

    `left_out`: id of a question that a system was trained on → that system.
    """
    dataset, name = environment.dataset, environment.name
    questions = [question for question in environment.questions if question.id not in left_out]
    count = len(environment.questions) - len(questions)
    if not questions:
        error = DataError(
            f"every question of {dataset} is one that a system was trained on; {LEAKS} lists them. Take the dataset "
            "from those systems (systems.NAME.datasets)."
        )
        evaluation.refused += [failed(system, dataset, name, error) for system in (RAW, *(s.name for s in systems))]
        return
    if count:
        evaluation.notes.append(
            f"{count} of {len(environment.questions)} questions of {dataset} are left out for all systems, because "
            f"{', '.join(sorted(set(left_out.values())))} was trained on them; {LEAKS} lists them."
        )
    evaluation.add(replace(environment, questions=questions), systems)


def _takes_part(spec: SpecConfig, name: str, dataset: str, environment: str) -> bool:
    system = spec.systems[name]
    return (system.datasets is None or dataset in system.datasets) and (
        system.environments is None or environment in system.environments
    )


def _incomplete(evaluation: SpecEvaluation, records: Mapping[Cell, Sequence[EvalRecord]]) -> QuerylectError | None:
    """The error to raise if cells failed."""
    answered = [cell for cell in evaluation.cells if cell.failure is None]
    unscored = sum(len(cell.pending(records[cell])) for cell in answered)
    if unscored:
        log.warning("%d answers have no score; they count nowhere, and the same command asks them again", unscored)
    failures = evaluation.failures
    if not failures:
        return None
    details = "\n".join(f"  {_failure_sentence(failure)}" for failure in failures)
    return IncompleteError(
        f"{len(failures)} of {len(failures) + len(answered)} cells failed; the tables are without what they lack. Fix "
        f"the cause and {RERUN}\n{details}"
    )


def write_results(evaluation: SpecEvaluation, records: Mapping[Cell, Sequence[EvalRecord]]) -> Page:
    """Write all files except the cells, from the records of each cell; returns what they show."""
    spec, folder, cells = evaluation.spec, evaluation.folder, evaluation.cells
    write_text(folder / "plan.yaml", dump_spec(spec))
    notes = list(dict.fromkeys(evaluation.notes))
    notes += evaluation.missing_notes()
    notes += [_failure_sentence(failure, " failed") for failure in evaluation.failures]
    tables = build_tables(spec, cells, records)
    retrievers = {environment.name: environment.retriever for environment in evaluation.environments}
    training = {
        name: environment
        for name, system in evaluation.systems.items()
        if isinstance(system, RewritingSystem)
        and not is_warm_start(system.settings)
        and (environment := trained_in(system, spec, retrievers))
    }
    matrix = transfer(tables[-1], spec.metrics[0], training) if tables else None
    shutil.rmtree(folder / "questions", ignore_errors=True)
    for cell in cells:
        if records[cell]:
            write_records(folder / _records_path(cell), records[cell])
    trec = folder / "trec"
    shutil.rmtree(trec, ignore_errors=True)
    notes += write_trec_files(trec, spec, cells, records, evaluation.licences)
    samples = {
        evaluated.dataset: evaluated.sample for evaluated in evaluation.environments if evaluated.sample is not None
    }
    page = Page(
        title=spec.name,
        headline="",
        family=family(spec),
        metrics=spec.metrics,
        tables=tables,
        wide=wide_table_of(spec, tables, samples),
        transfer=matrix,
        notes=notes,
        about=_provenance_lines(evaluation),
        examples=examples_of(spec, cells, records),
        facts=[(evaluated.title, _environment_facts(evaluated)) for evaluated in evaluation.environments],
        config=dump_spec(spec),
    )
    write_pages(folder, page)
    write_leaks_file(folder, evaluation.leaks)
    write_json(folder / "results.json", _results_json(evaluation, page))
    return page


def _environment_facts(environment: EvalEnvironment) -> str:
    hashes = {"corpus": environment.corpus_hash, **environment.identity}
    names = [f"{name} {str(hashes[name])[:12]}" for name in ("corpus", "index", "judgements") if hashes.get(name)]
    return f"{environment.retriever.name}, {environment.documents:,} documents; {', '.join(names)}"


def _failure_sentence(failure: FailedCell, verb: str = "") -> str:
    cell = f"{failure.system} on {failure.dataset} in {failure.environment}"
    return f"{cell}{verb}: {failure.error}: {failure.message}"


def _provenance_lines(evaluation: SpecEvaluation) -> list[str]:
    spec = evaluation.spec
    lines = [f"Split {spec.split}, seed {spec.seed}, rankings {spec.depth} deep, greedy where no samples are named."]
    environments = evaluation.environments
    lines += sorted(
        {f"{evaluated.dataset}: {evaluated.sample.of_questions()}." for evaluated in environments if evaluated.sample}
    )
    levels = {
        (evaluated.dataset, evaluated.relevance_level) for evaluated in environments if evaluated.relevance_level > 1
    }
    lines += [f"{dataset}: binary metrics count grades of {level} or more." for dataset, level in sorted(levels)]
    deep = [name for name in spec.metrics if name in ("map", "r-precision")]
    if deep and spec.depth < 1000:
        lines.append(
            f"{' and '.join(deep)}: of rankings {spec.depth} deep, as a relevant document below counts as not found; "
            "published figures are of 1,000."
        )
    lines += [f"{dataset}: {licence}" for dataset, licence in evaluation.licences.items() if licence]
    version_list = ", ".join(f"{name} {version}" for name, version in versions().items())
    return [*lines, f"To make it again: querylect eval plan.yaml. {version_list}."]


def _results_json(evaluation: SpecEvaluation, page: Page) -> dict[str, object]:
    return {
        "created": now(),
        "identity": evaluation.identity,
        "name": evaluation.spec.name,
        "family": page.family,
        "notes": page.notes,
        "tables": [table_json(table) for table in page.tables],
        "transfer": asdict(page.transfer) if page.transfer is not None else None,
        "cells": [
            {
                "system": cell.system.name,
                "dataset": cell.environment.dataset,
                "environment": cell.environment.name,
                "questions": len(cell.environment.questions),
                "turns": cell.turns,
                "samples": cell.system.asking.samples,
                "fingerprint": cell.journal.fingerprint,
                "records": _records_path(cell),
                "missing": cell.missing() if cell.failure is None else {},
                "sample": asdict(cell.environment.sample) if cell.environment.sample is not None else None,
            }
            for cell in evaluation.cells
        ],
        "failed": [asdict(failure) for failure in evaluation.failures],
        "versions": versions(),
        "plan": evaluation.spec.model_dump(mode="json"),
    }


def _records_path(cell: Cell) -> str:
    return f"questions/{cell.environment.dataset}.{cell.environment.name}.{cell.system.name}.jsonl"
