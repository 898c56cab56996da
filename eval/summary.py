"""The results of an evaluation from its records: figures, comparisons, notes, examples, and where they come from."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from pandas import DataFrame

from ..configs.evaluation import RAW, dump_spec
from ..configs.load import dump_config
from ..provenance import versions
from ..rollouts.llms import resolved_dtype
from .cells import Cell, Evaluation
from .environments import EvalEnvironment
from .examples import choose_examples
from .frame import frame_of
from .records import TRAINED, UNTRAINED, EvalRecord
from .results import UNJUDGED, EvalResults, Examples
from .run import is_warm_start
from .run_table import FAMILY, LEGEND, table_of_run
from .run_table import verdict as verdict_of_run
from .spec_tables import add_best_free, family, label, legend, sample_notes, table_spec, trained_in, verdict
from .systems import RewritingSystem
from .table import Arm, Note, tabulate

Records = Mapping[Cell, Sequence[EvalRecord]]


def results_of(evaluation: Evaluation, records: Records) -> EvalResults:
    """The results of the records that count, by cell."""
    spec, cells, run = evaluation.spec, evaluation.cells, evaluation.run
    every = [record for of_cell in records.values() for record in of_cell]
    frame = frame_of(
        every,
        {cell.environment.dataset: [question.id for question in cell.environment.questions] for cell in cells},
        spec.metrics,
        samples={cell.system.name: cell.system.options.paths for cell in cells},
        parts=spec.parts,
    )
    tuned = {
        (cell.environment.dataset, cell.environment.name, cell.system.name): weights
        for cell in cells
        if records[cell] and (weights := cell.tuned()) is not None
    }
    frame, free = add_best_free(frame, tuned, spec.metrics[0])
    table = tabulate(frame, table_of_run(spec) if run is not None else table_spec(spec))
    notes = [Note("evaluation", 1, text) for text in dict.fromkeys(evaluation.notes)]
    notes += [Note("missing", sum(cell.missing().values()), text) for cell in cells for text in cell.missing_notes()]
    notes += [Note("failed", 1, failure.sentence(" failed")) for failure in evaluation.failures]
    retrievers = {environment.name: environment.retriever for environment in evaluation.environments}
    training = {
        name: trained_in(system, spec, retrievers)
        for name, system in evaluation.systems.items()
        if isinstance(system, RewritingSystem) and not is_warm_start(system.settings)
    }
    trained = evaluation.systems.get(TRAINED) if run is not None else None
    used = trained.used if isinstance(trained, RewritingSystem) else None
    results = EvalResults(
        name=spec.name,
        split=spec.split,
        metrics=list(spec.metrics),
        scores=table.scores,
        comparisons=table.comparisons,
        notes=[*notes, *table.notes, *free, *sample_notes(spec)],
        legend=LEGEND if run is not None else legend(spec),
        family=FAMILY.format(permutations=spec.permutations) if run is not None else family(spec),
        samples={
            environment.dataset: environment.sample
            for environment in evaluation.environments
            if environment.sample is not None
        },
        trained_in={name: environment for name, environment in training.items() if environment},
        turn=used.turn if used is not None else None,
        examples=_examples(evaluation, frame, records),
        facts=_facts(evaluation),
        config=dump_config(run) if run is not None else dump_spec(spec),
        identity=evaluation.identity,
        provenance=_provenance(evaluation),
        cells=[_cell_json(cell) for cell in cells],
        failed=[asdict(failure) for failure in evaluation.failures],
    )
    if evaluation.environments and not any(environment.judged for environment in evaluation.environments):
        results.headline = UNJUDGED
    else:
        results.headline = verdict_of_run(results, results.turn) if run is not None else verdict(spec, results)
    return results


def _examples(evaluation: Evaluation, frame: DataFrame, records: Records) -> list[Examples]:
    """Example rewrites of every system with a model, at its last turn, beside the raw questions; for a run those of the
    trained policy beside the untrained one's, too."""
    spec, examples = evaluation.spec, []
    of_run = [UNTRAINED, TRAINED] if TRAINED in spec.systems else [UNTRAINED]
    for cell in evaluation.cells:
        dataset, environment = cell.environment.dataset, cell.environment.name
        names = [[RAW, cell.system.name]] if evaluation.run is None else [[RAW, *of_run]]
        if cell.system.engine_key is None or cell.system.name != names[0][-1]:
            continue
        answers = frame.loc[([dataset], [environment]), :]
        turns = answers.reset_index().groupby("system")["turn"].max()
        if any(name not in turns for name in names[0]):
            continue
        arms = [Arm(name, int(turns[name])) for name in names[0]]
        beside = [peer for peer in evaluation.cells if peer.environment is cell.environment]
        of_place = [record for peer in beside for record in records[peer]]
        labels = {label(spec, arm): arm for arm in arms}
        title = f"{label(spec, arms[-1])} {cell.environment.label}"
        relevant = cell.environment.split.qrels if cell.environment.split is not None else None
        examples.append(choose_examples(answers, of_place, labels, spec.metrics[0], title, relevant))
    return [chosen for chosen in examples if chosen is not None]


def _facts(evaluation: Evaluation) -> dict[str, str]:
    """Where the figures come from."""
    spec, environments = evaluation.spec, evaluation.environments
    facts = {"Questions": f"split {spec.split}, seed {spec.seed}, rankings {spec.depth} deep"}
    facts |= {
        f"Sample of {environment.dataset}": environment.sample.of_questions()
        for environment in environments
        if environment.sample
    }
    facts |= {
        f"Binary metrics of {environment.dataset}": f"count grades of {environment.relevance_level} or more"
        for environment in environments
        if environment.relevance_level > 1
    }
    deep = [name for name in spec.metrics if name in ("map", "r-precision")]
    if deep and spec.depth < 1000:
        facts[" and ".join(deep)] = (
            f"of rankings {spec.depth} deep: a document below counts as not found; published figures are of 1,000"
        )
    facts |= {f"Licence of {dataset}": licence for dataset, licence in evaluation.licences.items() if licence}
    facts |= {f"Environment {environment.title}": _environment_facts(environment) for environment in environments}
    if evaluation.run is not None:
        facts["Policy"] = evaluation.run.policy.model
    facts["Versions"] = ", ".join(f"{name} {version}" for name, version in versions().items())
    return facts | {"To make it again": "querylect eval plan.yaml"}


def _environment_facts(environment: EvalEnvironment) -> str:
    hashes = {"corpus": environment.corpus_hash, **environment.identity}
    names = [f"{name} {str(hashes[name])[:12]}" for name in ("corpus", "index") if hashes.get(name)]
    return f"{environment.retriever.name}, {environment.documents:,} documents; {', '.join(names)}"


def _provenance(evaluation: Evaluation) -> dict[str, object]:
    """For programs: seeds, versions, licences, environments, and of a run its policy."""
    values: dict[str, object] = {
        "seed": evaluation.spec.seed,
        "versions": versions(),
        "licences": evaluation.licences,
        "environments": {
            environment.name: {
                "name": environment.title,
                "dataset": environment.dataset,
                "retriever": environment.retriever.name,
                "corpus_size": environment.documents,
                "corpus_hash": environment.corpus_hash,
                "index_hash": environment.identity["index"],
            }
            for environment in evaluation.environments
        },
    }
    if evaluation.run is None:
        return values
    trained = evaluation.systems.get(TRAINED)
    policy = {"policy": evaluation.run.policy.model, "dtype": resolved_dtype(evaluation.run.policy.dtype)}
    if isinstance(trained, RewritingSystem):
        policy |= {"checkpoint": str(trained.checkpoint), "checkpoint_hash": str(trained.weights["checkpoint"])}
    return {**values, **policy}


def _cell_json(cell: Cell) -> dict[str, object]:
    return {
        "system": cell.system.name,
        "dataset": cell.environment.dataset,
        "environment": cell.environment.name,
        "questions": len(cell.environment.questions),
        "turns": list(cell.system.options.turn_numbers),
        "samples": cell.system.options.samples,
        "missing": cell.missing(),
    }
