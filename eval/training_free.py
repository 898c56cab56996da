"""Training-free baselines of an evaluation: choose their weights on validation questions, and answer with them.

Weights come from a small fixed grid (`GRIDS`), by the mean of the first metric over validation questions of the same
environment. Evaluated questions are never used: without a validation split, or when validation is the split to
evaluate, the default weights are used and the result has the reason. All searches go through the environment's client,
so local and remote retrievers are treated alike.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from ..configs.methods import TRAINING_FREE
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

Weights = Mapping[str, float]
"""Settings of a baseline, by name (configs/methods.py)."""

GRIDS: Mapping[str, Sequence[Weights]] = {
    "first_titles": [{"n": n, "weight": w} for n, w in product((1, 2, 3), (0.05, 0.1, 0.2, 0.3, 0.5))],
    "rm3": [
        {"fb_docs": docs, "fb_terms": terms, "original_query_weight": original}
        for original, docs, terms in product((0.9, 0.8, 0.7, 0.5), (3, 10), (5, 10, 20))
    ],
    "weighted_words": [{"n": n, "weight": w} for n, w in product((1, 2, 3, 5), (0.05, 0.1, 0.2, 0.3, 0.5))],
}
"""Candidates in increasing strength; of equal means the first one is taken."""

VALIDATION = "validation"

_STEP_SIZE = 1024
"""Plans per request to the environment, under one deadline."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The weights of a baseline and how they were chosen."""

    name: str
    """Name of the baseline."""
    weights: dict[str, float]
    questions: int = 0
    """Validation questions used for the choice; 0 without one."""
    score: float | None = None
    """Mean of `metric` over these questions; None without a choice."""
    raw: float | None = None
    """Mean of `metric` of the raw questions."""
    tried: int = 1
    """Number of candidate weights."""
    metric: str = ""
    reason: str = ""
    """Why the weights were not chosen on validation questions; "" where they were."""

    @property
    def sentence(self) -> str:
        """The weights and how they were chosen, for the notes of a table."""
        chosen = ", ".join(f"{name} = {value:g}" for name, value in self.weights.items())
        if self.score is None:
            return f"{chosen}; {self.reason}."
        against = f" (raw {self.raw:.3f})" if self.raw is not None else ""
        return (
            f"{chosen}, the best of {self.tried} by {self.metric} on {self.questions} validation "
            f"questions: {self.score:.3f} there{against}."
        )


@dataclass(frozen=True, slots=True)
class Tuning:
    """How weights are chosen."""

    split: str
    """The split to evaluate."""
    questions: int
    """Maximum number of validation questions; 0 keeps the default weights."""
    metrics: Sequence[str]
    """The first one is used for the choice."""
    seed: int
    """Seed for drawing the validation questions."""
    depth: int = 10
    """Documents per ranking."""


def tune(name: str, client: EnvironmentApi, evaluated: Sequence[Question], tuning: Tuning) -> Tuned:
    """The weights of a baseline. Questions in `evaluated` are left out of the validation questions.

    Raises EnvironmentUnavailableError where no validation question could be scored.
    """
    info = client.info()
    questions, reason = validation_questions(client, evaluated, tuning)
    if reason:
        return Tuned(name, default_weights(name), reason=reason)
    return _choose(name, client, RetrieverInfo.from_service(info.retriever), questions, tuning)


def validation_questions(
    client: EnvironmentApi, evaluated: Sequence[Question], tuning: Tuning
) -> tuple[list[Question], str]:
    """The questions on which weights are chosen; where there are none, why the defaults are used."""
    if not tuning.questions:
        return [], "the defaults, as no questions were to be used for a choice"
    if tuning.split == VALIDATION:
        return [], "the defaults, as the validation questions are what is evaluated"
    if not client.info().splits.get(VALIDATION):
        return [], "the defaults, as the environment has no validation split"
    questions = _draw_questions(client.questions(VALIDATION), evaluated, tuning)
    return questions, "" if questions else "the defaults, as every validation question is one of those evaluated"


def default_weights(name: str) -> dict[str, float]:
    """The default weights of a baseline."""
    kind = TRAINING_FREE[name]  # type: ignore[index]
    return kind().model_dump()


def make(name: str, weights: Weights, retriever: RetrieverInfo) -> TrainingFree:
    """The baseline of that name with these weights."""
    kind = TRAINING_FREE[name]  # type: ignore[index]
    return training_free(kind.model_validate(dict(weights)), retriever)


def best_by_validation(tuned: Sequence[Tuned]) -> Tuned | None:
    """The baseline with the best mean on validation questions; None where none was tuned on them."""
    scored = [baseline for baseline in tuned if baseline.score is not None]
    return max(scored, key=lambda baseline: baseline.score or 0.0, default=None)


def best_baseline(scores: Mapping[str, Sequence[float | None]], tuned: Mapping[str, Tuned]) -> tuple[str | None, bool]:
    """The best training-free baseline, and whether it was chosen on validation questions.

    `scores` are those of each system on the evaluated questions, `tuned` its weights. If none was tuned, the best mean
    on the evaluated questions is taken, which is in the baseline's favour; None without any score.
    """
    best = best_by_validation([tuned[name] for name in scores if name in tuned])
    if best is not None:
        return next(name for name in scores if tuned.get(name) is best), True
    scored = {name: [value for value in values if value is not None] for name, values in scores.items()}
    means = {name: math.fsum(values) / len(values) for name, values in scored.items() if values}
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
    rewriter = make(tuned.name, tuned.weights, RetrieverInfo.from_service(client.info().retriever))
    started = time.perf_counter()
    feedback = _feedback(client, questions, rewriter.feedback)
    plans = {
        question.id: rewriter.plan(question.text, feedback.get(question.id), depth)
        for question in questions
        if not rewriter.feedback or question.id in feedback
    }
    planned = [question for question in questions if question.id in plans]
    results = dict(zip(plans, _step(client, planned, list(plans.values()), metrics), strict=True))
    seconds = (time.perf_counter() - started) / max(1, len(questions))
    searches = 2 if rewriter.feedback else 1
    return [
        record_of_search(
            system,
            question,
            additions(plan) if (plan := plans.get(question.id)) is not None else (),
            plan,
            results.get(question.id),
            metrics,
            searches=searches,
            seconds=seconds,
        )
        for question in questions
    ]


def _choose(
    name: str, client: StepClient, retriever: RetrieverInfo, questions: Sequence[Question], tuning: Tuning
) -> Tuned:
    """Try all weights of the grid on the validation questions; only questions that every search scored count."""
    metric, grid = tuning.metrics[0], GRIDS[name]
    rewriters = [make(name, weights, retriever) for weights in grid]
    depth = max(rewriter.feedback for rewriter in rewriters)
    feedback = _feedback(client, questions, depth)

    def scores(plans: Sequence[SearchPlan]) -> list[float | None]:
        results = _step(client, questions, plans, [metric])
        return [result.metrics[metric] if result is not None else None for result in results]

    columns = [scores([SearchPlan.of(question.text, k=tuning.depth) for question in questions])]
    with progress_bar(f"weights of {name}") as advance:
        for done, rewriter in enumerate(rewriters):
            advance(done, len(rewriters))
            columns.append(
                scores([rewriter.plan(item.text, feedback.get(item.id), tuning.depth) for item in questions])
            )
        advance(len(rewriters), len(rewriters))
    scored = [
        i
        for i, question in enumerate(questions)
        if (not depth or question.id in feedback) and all(column[i] is not None for column in columns)
    ]
    if not scored:
        raise EnvironmentUnavailableError(
            f"the environment scored none of {len(questions)} validation questions, on which the weights of "
            "training-free baselines are chosen. Check its log and client.deadline, or set training_free to []."
        )
    raw, *means = (sum(column[i] or 0.0 for i in scored) / len(scored) for column in columns)
    best = max(range(len(grid)), key=lambda number: (round(means[number], 9), -number))
    return Tuned(name, dict(grid[best]), len(scored), means[best], raw, len(grid), metric)


def _feedback(client: StepClient, questions: Sequence[Question], depth: int) -> dict[str, SearchResults]:
    """The top `depth` documents of each raw question, with texts. Questions without an answer are left out."""
    if not depth:
        return {}
    plans = [SearchPlan.of(question.text, k=depth) for question in questions]
    feedback = {}
    for question, plan, result in zip(questions, plans, _step(client, questions, plans, [], True), strict=True):
        if result is not None:
            documents, scores = [hit.document for hit in result.ranking], [hit.score for hit in result.ranking]
            feedback[question.id] = SearchResults(plan, tuple(documents), tuple(scores))
    return feedback


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


def _draw_questions(validation: Sequence[Question], evaluated: Sequence[Question], tuning: Tuning) -> list[Question]:
    """The validation questions for choosing weights: a seeded, nested sample that excludes evaluated questions."""
    ids, texts = {question.id for question in evaluated}, {words(question.in_context) for question in evaluated}
    candidates = [
        question for question in validation if question.id not in ids and words(question.in_context) not in texts
    ]
    return draw(candidates, tuning.questions, tuning.seed)
