"""Training-free baselines of an evaluation: choose their weights on validation questions, and answer with them.

Weights come from a small fixed grid (`GRIDS`), by the mean of the first metric over validation questions of the same
environment. Evaluated questions are never used: without a validation split, or when validation is the split to
evaluate, the default weights are used and the result has the reason. All searches go through the environment's client,
so local and remote retrievers are treated alike.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from statistics import fmean

from ..configs.methods import TRAINING_FREE, TrainingFreeName
from ..data.leakage import words
from ..data.sampling import draw, in_batches
from ..data.types import Question
from ..envs.client.base import EnvironmentApi, StepClient
from ..envs.plan import SearchPlan
from ..envs.schemas import Step, StepResult
from ..errors import EnvironmentUnavailableError
from ..logs import progress_bar
from ..methods.method import SearchResults
from ..methods.training_free import TrainingFree, additions, training_free
from ..rewriters.retriever_info import RetrieverInfo
from .records import EvalRecord, record_of_search

GRIDS: Mapping[TrainingFreeName, Sequence[Mapping[str, float]]] = {
    "first_titles": [{"n": n, "weight": w} for n, w in product((1, 2, 3), (0.05, 0.1, 0.2, 0.3, 0.5))],
    "rm3": [
        {"fb_docs": docs, "fb_terms": terms, "original_query_weight": original}
        for original, docs, terms in product((0.9, 0.8, 0.7, 0.5), (3, 10), (5, 10, 20))
    ],
    "weighted_words": [{"n": n, "weight": w} for n, w in product((1, 2, 3, 5), (0.05, 0.1, 0.2, 0.3, 0.5))],
}
"""Candidates in increasing strength; of equal means the first one is taken."""

VALIDATION = "validation"

TUNING_QUESTIONS = 300
"""Maximum number of validation questions that weights are chosen on."""

_STEP_SIZE = 1024
"""Plans per request to the environment, under one deadline."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The weights of a baseline and how they were chosen."""

    name: TrainingFreeName
    weights: dict[str, float]
    """Settings of the baseline, by name (configs/methods.py)."""
    score: float | None = None
    """Mean of the metric over the validation questions; None without a choice."""
    how: str = "the defaults"
    """How they were chosen, for the notes of a table."""

    @property
    def sentence(self) -> str:
        """The weights and how they were chosen."""
        return ", ".join(f"{name} = {value:g}" for name, value in self.weights.items()) + f"; {self.how}."

    def baseline(self, retriever: RetrieverInfo) -> TrainingFree:
        """The baseline with these weights."""
        return training_free(TRAINING_FREE[self.name].model_validate(self.weights), retriever)


def tune(
    name: TrainingFreeName,
    client: EnvironmentApi,
    evaluated: Sequence[Question],
    *,
    split: str,
    metric: str,
    seed: int,
    depth: int = 10,
) -> Tuned:
    """The weights of a baseline, by the mean of `metric` of rankings `depth` deep over validation questions, a seeded
    sample without those of `evaluated`, the questions of `split`. Only questions that every search scored count.

    Raises EnvironmentUnavailableError where no validation question could be scored.
    """
    info = client.info()
    questions, reason = _validation_questions(client, info.splits, evaluated, split, seed)
    if reason:
        return Tuned(name, TRAINING_FREE[name]().model_dump(), how=f"the defaults, as {reason}")
    grid, retriever = GRIDS[name], RetrieverInfo.from_service(info.retriever)
    baselines = [Tuned(name, dict(weights)).baseline(retriever) for weights in grid]
    read = max(baseline.feedback for baseline in baselines)
    feedback = _feedback(client, questions, read)

    def scores(plans: Sequence[SearchPlan]) -> list[float | None]:
        results = _step(client, questions, plans, [metric])
        return [result.metrics[metric] if result is not None else None for result in results]

    columns = [scores([SearchPlan.of(question.text, k=depth) for question in questions])]
    with progress_bar(f"weights of {name}") as advance:
        for done, baseline in enumerate(baselines, start=1):
            columns.append(scores([baseline.plan(item.text, feedback.get(item.id), depth) for item in questions]))
            advance(done, len(baselines))
    rows = [
        values
        for question, values in zip(questions, zip(*columns, strict=True), strict=True)
        if (not read or question.id in feedback) and None not in values
    ]
    if not rows:
        raise EnvironmentUnavailableError(
            f"the environment scored none of {len(questions)} validation questions, on which the weights of "
            "training-free baselines are chosen. Check its log and client.deadline, or set training_free to []."
        )
    raw, *means = (sum(filter(None, column)) / len(rows) for column in zip(*rows, strict=True))
    best = max(range(len(grid)), key=lambda number: (round(means[number], 9), -number))
    how = f"the best of {len(grid)} by {metric} on {len(rows)} validation questions: {means[best]:.3f} (raw {raw:.3f})"
    return Tuned(name, dict(grid[best]), means[best], how)


def _validation_questions(
    client: EnvironmentApi, splits: Mapping[str, int], evaluated: Sequence[Question], split: str, seed: int
) -> tuple[list[Question], str]:
    """The questions on which weights are chosen, a seeded, nested sample; where there are none, the reason."""
    if split == VALIDATION:
        return [], "the validation questions are what is evaluated"
    if not splits.get(VALIDATION):
        return [], "the environment has no validation split"
    ids, texts = {question.id for question in evaluated}, {words(question.in_context) for question in evaluated}
    candidates = [
        question
        for question in client.questions(VALIDATION)
        if question.id not in ids and words(question.in_context) not in texts
    ]
    if not candidates:
        return [], "every validation question is one of those evaluated"
    return draw(candidates, TUNING_QUESTIONS, seed), ""


def best_baseline(scores: Mapping[str, Sequence[float]], tuned: Mapping[str, Tuned]) -> tuple[str | None, bool]:
    """The best training-free baseline, and whether it was chosen on validation questions.

    `scores` are those of each system on the evaluated questions, `tuned` its weights. If none was tuned, the best mean
    on the evaluated questions is taken, which is in the baseline's favour; None without any score.
    """
    on_validation = {name: value for name in scores if (value := tuned[name].score) is not None}
    if on_validation:
        return max(on_validation, key=on_validation.__getitem__), True
    means = {name: fmean(values) for name, values in scores.items() if values}
    return max(means, key=means.__getitem__, default=None), False


def answer(
    system: str,
    client: EnvironmentApi,
    tuned: Tuned,
    questions: Sequence[Question],
    metrics: Sequence[str],
    depth: int = 10,
) -> list[EvalRecord]:
    """Answer the questions with a baseline; its records have the system name `system`."""
    baseline = tuned.baseline(RetrieverInfo.from_service(client.info().retriever))
    started = time.perf_counter()
    feedback = _feedback(client, questions, baseline.feedback)
    plans = {
        question.id: baseline.plan(question.text, feedback.get(question.id), depth)
        for question in questions
        if not baseline.feedback or question.id in feedback
    }
    planned = [question for question in questions if question.id in plans]
    results = dict(zip(plans, _step(client, planned, list(plans.values()), metrics), strict=True))
    seconds = (time.perf_counter() - started) / max(1, len(questions))
    return [
        record_of_search(
            system,
            question,
            additions(plan) if (plan := plans.get(question.id)) is not None else (),
            plan,
            results.get(question.id),
            metrics,
            searches=2 if baseline.feedback else 1,
            seconds=seconds,
            notes={"tuned": asdict(tuned)},
        )
        for question in questions
    ]


def _feedback(client: StepClient, questions: Sequence[Question], depth: int) -> dict[str, SearchResults]:
    """The top `depth` documents of each raw question, with texts. Questions without an answer are left out."""
    if not depth:
        return {}
    plans = [SearchPlan.of(question.text, k=depth) for question in questions]
    results = _step(client, questions, plans, [], with_text=True)
    return {
        question.id: SearchResults(
            tuple(hit.document for hit in result.ranking), tuple(hit.score for hit in result.ranking)
        )
        for question, result in zip(questions, results, strict=True)
        if result is not None
    }


def _step(
    client: StepClient,
    questions: Sequence[Question],
    plans: Sequence[SearchPlan],
    metrics: Sequence[str],
    with_text: bool = False,
) -> list[StepResult | None]:
    """The result of each plan. Uses `step` instead of `search` so that the environment also removes the documents it
    ignores for a question (such as one with the same id) from the feedback, as it does for scoring."""
    steps = [Step(question_id=question.id, plan=plan) for question, plan in zip(questions, plans, strict=True)]
    return [
        result
        for part in in_batches(steps, _STEP_SIZE)
        for result in client.step(part, with_text=with_text, metrics=metrics)
    ]
