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

import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean

from ..configs.evaluation import SpecConfig, dump_spec
from ..configs.schema import RunConfig
from ..data.benchmarks import PARTS, part_of
from ..data.published import METRIC, Measured
from ..data.sampling import in_batches
from ..errors import EnvironmentUnavailableError, QuerylectError
from ..logs import progress_bar
from ..rollouts.tree_sampler import ANSWERED_AT_ONCE
from ..storage import write_text
from .answering import run_raw
from .cells import answer_cells
from .environments import SpecEnvironments, chosen_environments
from .evaluation import Evaluation, Records
from .export import write_trec_files
from .records import TRAINED, open_store, refuse_other
from .run import with_run_baselines


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
    import pandas as pd  # also in these modules: when the indexes are closed

    from .curves import draw_run
    from .summary import results_of
    from .text import write_results

    spec, systems = evaluation.spec, evaluation.spec.systems
    write_text(folder / "plan.yaml", dump_spec(spec))
    shutil.rmtree(folder / "trec", ignore_errors=True)
    evaluation.notes += write_trec_files(folder / "trec", spec, evaluation.cells, records, evaluation.licences)
    run = systems[TRAINED].run if evaluation.run is not None and TRAINED in systems else None
    with pd.option_context("mode.string_storage", "python"):  # Arrow's code takes 10 MiB more, for few short texts
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
