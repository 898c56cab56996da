"""Measure raw questions (not rewritten) in an environment, to compare the scores with published ones."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ..configs.evaluation import SpecConfig
from ..configs.schema import EnvironmentConfig
from ..data.ragbench import PARTS, part_of
from ..data.references import METRIC, Measured
from ..data.sampling import in_batches
from ..envs.environment import Environment
from ..envs.plan import SearchPlan
from ..envs.schemas import Step
from ..errors import ConfigError, EnvironmentUnavailableError
from ..logs import progress_bar
from .answering import run_raw
from .environments import SpecEnvironments, chosen_environments, retriever_name

_AT_ONCE = 256
"""Questions per search call and per step of the progress bar."""


def measure_raw(env: EnvironmentConfig, split: str) -> list[Measured]:
    """Mean nDCG@10 of a split's raw questions; for RAGBench also per part, and the mean over parts.

    Raises ConfigError for an unknown split, and whatever opening the environment raises.
    """
    environment = Environment.open(env)
    info = environment.info()
    if split not in info.splits:
        message = f"--split {split!r} is unknown; {info.name} has {', '.join(info.splits)}."
        raise ConfigError(message)
    questions = environment.questions(split)
    values: dict[str, float] = {}
    with progress_bar("searching") as progress:
        for part in in_batches(questions, _AT_ONCE):
            steps = [Step(question_id=question.id, plan=SearchPlan.of(question.text)) for question in part]
            values |= {
                result.question_id: result.metrics[METRIC] for result in environment.step(steps, metrics=[METRIC])
            }
            progress(len(values), len(questions))
    return figures(info.name, environment.dataset, retriever_name(info.retriever), split, values)


def measure_spec(spec: SpecConfig) -> Iterator[Measured]:
    """The same of every dataset in every environment of a spec, all questions whatever its `limit`.

    Raises EnvironmentUnavailableError where a question has no score, and whatever opening an environment raises.
    """
    opened = SpecEnvironments(spec)
    for dataset, name in chosen_environments(spec):
        environment = opened.open(dataset, name)
        values: dict[str, float | None] = {}
        with environment.connect(served=False) as client:
            for part in in_batches(environment.everything, _AT_ONCE):
                values |= {record.question_id: record.metrics[METRIC] for record in run_raw(client, part, [METRIC])}
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
        return [figure(dataset, _mean(list(values.values())), len(values))]
    parts: dict[str, list[float]] = defaultdict(list)
    for question_id, value in values.items():
        parts[part_of(question_id)].append(value)
    means = {part: _mean(parts[part]) for part in PARTS if part in parts}
    part_figures = [figure(f"{dataset}/{part}", mean, len(parts[part])) for part, mean in means.items()]
    # the published average is over eleven parts, without CUAD
    averaged = [part for part in means if part != "cuad"] or list(means)
    mean = _mean([means[part] for part in averaged])
    return [*part_figures, figure(dataset, mean, sum(len(parts[part]) for part in averaged))]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
