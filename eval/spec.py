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

from pandas import DataFrame

from ..configs.evaluation import RAW, SpecConfig
from ..configs.spec_files import dump_spec
from ..errors import DataError, IncompleteError, QuerylectError
from ..provenance import versions
from ..storage import only_command, write_text
from .cells import Cell, FailedCell, failed
from .environments import EvalEnvironment, SpecEnvironments, chosen_environments
from .evaluation import Evaluation
from .examples import choose_examples
from .export import write_trec_files
from .frame import frame_of, select
from .journal import RERUN
from .leakage import LEAKS, TrainedQuestions, refuse_trained, write_leaks_file
from .placement import question_set, refuse_other
from .records import EvalRecord, write_records
from .results import Examples, Results
from .run_baselines import is_warm_start, with_run_baselines
from .spec_tables import add_best_free, family, label, legend, sample_notes, table_spec, trained_in
from .systems import RewritingSystem, System, system_of_spec
from .table import Arm, Note, tabulate
from .text import write_results

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
    beside: Callable[[Path, Results], None] | None = None,
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
        results = write_files(evaluation, records)
        if beside is not None:
            beside(folder, results)
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


def write_files(evaluation: SpecEvaluation, records: Mapping[Cell, Sequence[EvalRecord]]) -> Results:
    """Write all files except the cells, from the records of each cell; returns what they show."""
    spec, folder, cells = evaluation.spec, evaluation.folder, evaluation.cells
    write_text(folder / "plan.yaml", dump_spec(spec))
    shutil.rmtree(folder / "questions", ignore_errors=True)
    for cell in cells:
        if records[cell]:
            write_records(folder / _records_path(cell), records[cell])
    trec = folder / "trec"
    shutil.rmtree(trec, ignore_errors=True)
    lost = write_trec_files(trec, spec, cells, records, evaluation.licences)
    results = _results(evaluation, records)
    results.notes += [Note("trec", 1, text) for text in lost]
    write_results(folder, results)
    write_leaks_file(folder, evaluation.leaks)
    return results


def _results(evaluation: SpecEvaluation, records: Mapping[Cell, Sequence[EvalRecord]]) -> Results:
    spec, cells = evaluation.spec, evaluation.cells
    placed = [
        replace(record, dataset=cell.environment.dataset, environment=cell.environment.name)
        for cell in cells
        for record in records[cell]
    ]
    frame = frame_of(
        placed,
        {cell.environment.dataset: [question.id for question in cell.environment.questions] for cell in cells},
        spec.metrics,
        samples={cell.system.name: cell.system.asking.paths for cell in cells},
        parts=[dataset for dataset in spec.datasets if spec.has_parts(dataset)],
    )
    tuned = {
        (cell.environment.dataset, cell.environment.name, cell.system.name): weights
        for cell in cells
        if records[cell] and (weights := cell.tuned()) is not None
    }
    frame, free = add_best_free(frame, tuned, spec.metrics[0])
    table = tabulate(frame, table_spec(spec))
    retrievers = {environment.name: environment.retriever for environment in evaluation.environments}
    training = {
        name: trained_in(system, spec, retrievers)
        for name, system in evaluation.systems.items()
        if isinstance(system, RewritingSystem) and not is_warm_start(system.settings)
    }
    notes = [Note("evaluation", 1, text) for text in dict.fromkeys(evaluation.notes)]
    notes += [Note("missing", sum(cell.missing().values()), text) for cell in cells for text in _missing(cell)]
    notes += [Note("failed", 1, _failure_sentence(failure, " failed")) for failure in evaluation.failures]
    return Results(
        name=spec.name,
        split=spec.split,
        metrics=list(spec.metrics),
        scores=table.scores,
        comparisons=table.comparisons,
        notes=[*notes, *table.notes, *free, *sample_notes(spec)],
        legend=legend(spec),
        family=family(spec),
        samples={one.dataset: one.sample for one in evaluation.environments if one.sample is not None},
        trained_in={name: environment for name, environment in training.items() if environment},
        examples=_examples(spec, cells, frame, placed),
        facts=_facts(evaluation),
        config=dump_spec(spec),
        identity=evaluation.identity,
        provenance={"seed": spec.seed, "versions": versions(), "licences": evaluation.licences},
        cells=[_cell_json(cell) for cell in cells],
        failed=[asdict(failure) for failure in evaluation.failures],
    )


def _examples(
    spec: SpecConfig, cells: Sequence[Cell], frame: DataFrame, records: Sequence[EvalRecord]
) -> list[Examples]:
    """Example rewrites of every system with a model, at its last turn, beside the raw questions."""
    examples = []
    for cell in cells:
        place = (cell.environment.dataset, cell.environment.name)
        of_place = [record for record in records if (record.dataset, record.environment) == place]
        turns = [record.turn for record in of_place if record.system == cell.system.name]
        if cell.system.engine_key is None or not turns or not any(record.system == RAW for record in of_place):
            continue
        arm = Arm(cell.system.name, max(turns))
        arms = {label(spec, one): one for one in (Arm(RAW, 0), arm)}
        relevant = cell.environment.split.qrels if cell.environment.split is not None else None
        title = f"{label(spec, arm)} {cell.environment.label}"
        here = select(frame, dataset=place[0], environment=place[1])
        examples.append(choose_examples(here, of_place, arms, spec.metrics[0], title, relevant))
    return [one for one in examples if one is not None]


def _missing(cell: Cell) -> list[str]:
    return cell.missing_notes() if cell.failure is None else []


def _environment_facts(environment: EvalEnvironment) -> str:
    hashes = {"corpus": environment.corpus_hash, **environment.identity}
    names = [f"{name} {str(hashes[name])[:12]}" for name in ("corpus", "index", "judgements") if hashes.get(name)]
    return f"{environment.retriever.name}, {environment.documents:,} documents; {', '.join(names)}"


def _failure_sentence(failure: FailedCell, verb: str = "") -> str:
    cell = f"{failure.system} on {failure.dataset} in {failure.environment}"
    return f"{cell}{verb}: {failure.error}: {failure.message}"


def _facts(evaluation: SpecEvaluation) -> dict[str, str]:
    """Where the figures come from."""
    spec, environments = evaluation.spec, evaluation.environments
    facts = {"Questions": f"split {spec.split}, seed {spec.seed}, rankings {spec.depth} deep"}
    facts |= {f"Sample of {one.dataset}": one.sample.of_questions() for one in environments if one.sample}
    facts |= {
        f"Binary metrics of {one.dataset}": f"count grades of {one.relevance_level} or more"
        for one in environments
        if one.relevance_level > 1
    }
    deep = [name for name in spec.metrics if name in ("map", "r-precision")]
    if deep and spec.depth < 1000:
        facts[" and ".join(deep)] = (
            f"of rankings {spec.depth} deep: a document below counts as not found; published figures are of 1,000"
        )
    facts |= {f"Licence of {dataset}": licence for dataset, licence in evaluation.licences.items() if licence}
    facts |= {f"Environment {one.title}": _environment_facts(one) for one in environments}
    facts["Versions"] = ", ".join(f"{name} {version}" for name, version in versions().items())
    return facts | {"To make it again": "querylect eval plan.yaml"}


def _cell_json(cell: Cell) -> dict[str, object]:
    return {
        "system": cell.system.name,
        "dataset": cell.environment.dataset,
        "environment": cell.environment.name,
        "questions": len(cell.environment.questions),
        "turns": cell.turns,
        "samples": cell.system.asking.samples,
        "fingerprint": cell.journal.fingerprint,
        "records": _records_path(cell),
        "missing": cell.missing() if cell.failure is None else {},
    }


def _records_path(cell: Cell) -> str:
    return f"questions/{cell.environment.dataset}.{cell.environment.name}.{cell.system.name}.jsonl"
