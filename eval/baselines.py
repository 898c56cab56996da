"""Measure raw questions (not rewritten) in an environment and compare the scores with published ones."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..configs.schema import RunConfig
from ..data.corpus import open_corpus
from ..data.ragbench import PARTS, part_of
from ..data.references import METRIC, BaselineCheck, Measured, check_baselines
from ..envs.client.base import EnvironmentApi
from ..envs.environment import Environment
from ..envs.plan import SearchPlan
from ..envs.server.schemas import Step
from ..errors import BaselineError, ConfigError, EnvironmentUnavailableError
from ..logs import progress_bar

_CHUNK = 256


def measure_raw(config: RunConfig, split: str) -> list[Measured]:
    """Mean nDCG@10 of a split's raw questions; for RAGBench also per part, and the mean over parts.

    Opens the environment in this process, from its index. Raises ConfigError for an unknown split, and whatever opening
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
    return figures(environment.name, environment.dataset, retriever_name(environment.card), split, values)


def measure_asked(client: EnvironmentApi, config: RunConfig) -> list[Measured]:
    """`measure_raw` on the split to evaluate, through the client of a running environment, local or remote.

    The dataset comes from the settings; for a remote service it is the first part of the environment's name. Raises
    EnvironmentUnavailableError where a question has no score.
    """
    info = client.environment()
    split = config.eval.split
    questions = client.questions(split)
    values: dict[str, float] = {}
    with progress_bar("searching") as progress:
        for start in range(0, len(questions), _CHUNK):
            part = questions[start : start + _CHUNK]
            steps = [Step(question_id=question.id, plan=SearchPlan.of(question.text)) for question in part]
            for question, result in zip(part, client.step(steps, metrics=[METRIC]), strict=True):
                if result is None:
                    raise EnvironmentUnavailableError(
                        f"the environment did not score the question {question.id!r} before the deadline, so it cannot "
                        "be compared with what is published. Check its log, or raise client.deadline."
                    )
                values[question.id] = result.metrics[METRIC]
            progress(len(values), len(questions))
    served = config.client.urls != "local"
    dataset = info.name.rpartition("/")[0] or info.name if served else open_corpus(config.env.dataset).name
    return figures(info.name, dataset, retriever_name(info.retriever), split, values)


def compare_with_published(
    client: EnvironmentApi, config: RunConfig, tell: Callable[[str], None]
) -> list[BaselineCheck]:
    """Compare raw questions with published figures and pass one sentence per figure to `tell`.

    Raises BaselineError where a score differs from the published one, and as `measure_asked`.
    """
    verdicts = check_baselines(measure_asked(client, config))
    for verdict in verdicts:
        tell(verdict.sentence)
    refuse_wrong(verdicts)
    return verdicts


def refuse_wrong(verdicts: Sequence[BaselineCheck]) -> None:
    """Raise BaselineError where the environment does not reproduce a published figure."""
    wrong = [verdict for verdict in verdicts if verdict.status == "wrong"]
    if wrong:
        raise BaselineError(
            "nothing was rewritten, for raw questions are not worth here what is published. "
            + " ".join(verdict.sentence for verdict in wrong)
        )


def retriever_name(card: Mapping[str, Any]) -> str:
    """The name under which a retriever's figures are published. With a reranker it is another system."""
    return f"{card['name']} with a reranker" if card.get("rerank") else str(card["name"])


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
    averaged = [mean for part, mean in means.items() if part != "cuad"] or list(means.values())
    return [*part_figures, figure(dataset, _mean(averaged), len(values))]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
