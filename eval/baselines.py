"""Measure raw questions (not rewritten) in an environment and compare the scores with published ones."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..configs.schema import EnvironmentConfig
from ..data.ragbench import PARTS, part_of
from ..data.references import METRIC, BaselineCheck, Measured, check_baselines
from ..errors import BaselineError, EnvironmentUnavailableError
from .cells import answer_in_environment, make_cell
from .environments import EvalEnvironment, retriever_name
from .export import open_split, raw_rankings
from .journal import RERUN
from .systems import RawSystem

_MIN_DEPTH = 10
"""Documents that the published metric looks at."""


def measure_raw(env: EnvironmentConfig, split: str) -> list[Measured]:
    """Mean nDCG@10 of a split's raw questions; for RAGBench also per part, and the mean over parts.

    Raises as `open_split`.
    """
    environment, questions = open_split(env, split)
    rankings = raw_rankings(environment, questions, _MIN_DEPTH)
    values = {question: environment.score(question, hits, [METRIC])[METRIC] for question, hits in rankings.items()}
    return figures(environment.name, environment.dataset, retriever_name(environment.card), split, values)


def compare_with_published(
    environment: EvalEnvironment,
    folder: Path,
    split: str,
    metrics: Sequence[str],
    depth: int,
) -> list[BaselineCheck]:
    """Compare the raw questions of an environment with published figures.

    The full split is measured, whatever the limit, because published figures are for the full split. The answers are
    stored in the cell of the raw questions in `folder`, so nothing is searched twice.
    Raises EnvironmentUnavailableError if a question has no score.
    """
    metrics = metrics if METRIC in metrics else [METRIC]
    everything = replace(environment, questions=environment.everything)
    raw = make_cell(folder, everything, RawSystem(metrics, max(depth, _MIN_DEPTH)), split)
    if raw.pending():
        answer_in_environment([raw], None, continues=False)
    values = {record.question_id: value for record in raw.records() if (value := record.metrics[METRIC]) is not None}
    unscored = len(everything.questions) - len(values)
    if unscored:
        raise EnvironmentUnavailableError(
            f"{unscored} of {len(everything.questions)} raw questions have no score, so they cannot be compared with "
            f"what is published. Fix the cause and {RERUN}"
        )
    return check_baselines(figures(environment.title, *environment.published_as, split, values))


def refuse_wrong(verdicts: Sequence[BaselineCheck]) -> None:
    """Raise BaselineError where the environment does not reproduce a published figure."""
    wrong = [verdict for verdict in verdicts if verdict.status == "wrong"]
    if wrong:
        raise BaselineError(
            "nothing was rewritten, for raw questions are not worth here what is published. "
            + " ".join(verdict.sentence for verdict in wrong)
        )


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
