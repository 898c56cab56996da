"""Measure raw questions (not rewritten) in an environment, to compare the scores with published ones."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from statistics import fmean

from ..configs.evaluation import SpecConfig
from ..data.benchmarks import PARTS, part_of
from ..data.published import METRIC, Measured
from ..data.sampling import in_batches
from ..errors import EnvironmentUnavailableError
from ..logs import progress_bar
from .answering import run_raw
from .environments import SpecEnvironments, chosen_environments

_AT_ONCE = 256
"""Questions per search call and per step of the progress bar."""


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
            for part in in_batches(environment.everything, _AT_ONCE):
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
