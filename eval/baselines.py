"""Un-rewritten questions measured in an environment, to compare with what is published for it."""

from collections import defaultdict
from collections.abc import Sequence

from ..configs.schema import RunConfig
from ..data.ragbench import PARTS, part_of
from ..data.references import METRIC, Measured
from ..envs.environment import Environment
from ..envs.plan import SearchPlan
from ..errors import ConfigError
from ..logs import progress_bar

_CHUNK = 256


def measure_raw(config: RunConfig, split: str) -> list[Measured]:
    """Mean nDCG@10 of the questions of a split as they stand; of RAGBench also for each part, and the mean of parts.

    Opens the environment in this process, from its index. Raises ConfigError for an unknown split, and what opening
    the environment raises.
    """
    environment = Environment.open(config.env)
    if split not in environment.splits:
        raise ConfigError(f"--split {split!r} is unknown; {environment.name} has {', '.join(environment.splits)}.")
    questions = environment.questions(split)
    values: dict[str, float] = {}
    with progress_bar("searching") as progress:
        for start in range(0, len(questions), _CHUNK):
            part = questions[start : start + _CHUNK]
            plans = [environment.plan_for(question.id, SearchPlan.of(question.text)) for question in part]
            for question, ranking in zip(part, environment.search(plans), strict=True):
                values[question.id] = environment.score(question.id, ranking, [METRIC])[METRIC]
            progress(len(values), len(questions))
    retriever = str(environment.card["name"])

    name = environment.dataset

    def figure(dataset: str, mean: float, count: int) -> Measured:
        label = environment.name if dataset == name else f"{environment.name}, {dataset.rpartition('/')[2]}"
        return Measured(label, dataset, retriever, split, mean, count)

    if name.partition("[")[0] != "ragbench":
        return [figure(name, _mean(list(values.values())), len(values))]
    parts: dict[str, list[float]] = defaultdict(list)
    for question_id, value in values.items():
        parts[part_of(question_id)].append(value)
    means = {part: _mean(parts[part]) for part in PARTS if part in parts}
    each = [figure(f"{name}/{part}", mean, len(parts[part])) for part, mean in means.items()]
    # the published average is over eleven parts, without CUAD
    averaged = [mean for part, mean in means.items() if part != "cuad"] or list(means.values())
    return [*each, figure(name, _mean(averaged), len(values))]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
