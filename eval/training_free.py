"""The training-free baselines in an evaluation: their weights, chosen on validation questions, and their answers.

Weights come from a small fixed grid (`GRIDS`), by the mean of the first metric over validation questions of the same
environment. No question that is evaluated takes part: where there is no validation split, or it is itself what is
evaluated, the defaults are used, and the outcome says so. Everything is asked of the environment's client, so it is the
same for every retriever, on this machine or not.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from ..configs.methods import TRAINING_FREE, TrainingFreeConfig
from ..data.leakage import words
from ..data.types import Question
from ..envs.plan import SearchPlan
from ..envs.wire import Step, StepResult
from ..errors import EnvironmentUnavailableError
from ..logs import progress_bar
from ..rewriters.card import RetrieverCard
from ..rewriters.method import Found
from ..rewriters.training_free import TrainingFree, additions, training_free
from .identity import digest
from .records import EvalRecord, metrics_of, write_text

Weights = Mapping[str, float]
"""Settings of a baseline, by name (configs/methods.py)."""

GRIDS: Mapping[str, Sequence[Weights]] = {
    "first_titles": [{"n": n, "weight": w} for n, w in product((1, 2, 3), (0.05, 0.1, 0.2, 0.3, 0.5))],
    "rm3": [
        {"fb_docs": docs, "fb_terms": terms, "original_query_weight": kept}
        for kept, docs, terms in product((0.9, 0.8, 0.7, 0.5), (3, 10), (5, 10, 20))
    ],
    "weighted_words": [{"n": n, "weight": w} for n, w in product((1, 2, 3, 5), (0.05, 0.1, 0.2, 0.3, 0.5))],
}
"""What is tried, from little to much: of equal means the first one is taken."""

TUNING_FILE = "tuning.json"
VALIDATION = "validation"

_AT_ONCE = 1024
"""Plans that are sent together, under one deadline."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The weights of a baseline and where they come from."""

    name: str
    """Of the baseline."""
    weights: dict[str, float]
    questions: int = 0
    """Validation questions that they were chosen on; 0 where they were not."""
    score: float | None = None
    """Mean of `metric` over these; None where they were not chosen."""
    raw: float | None = None
    """That of the raw questions."""
    tried: int = 1
    """Weights that were tried."""
    metric: str = ""
    reason: str = ""
    """Why the weights are not chosen on validation questions; "" where they are."""

    @property
    def sentence(self) -> str:
        """The weights and where they come from, for the notes of a table."""
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
    """That is evaluated."""
    questions: int
    """Validation questions at most; 0 chooses nothing."""
    metrics: Sequence[str]
    """The first one decides."""
    seed: int
    """Of the drawn validation questions."""
    depth: int = 10
    """Documents of a ranking."""


def tune(
    names: Sequence[str], client: Any, evaluated: Sequence[Question], tuning: Tuning, cache: Path | None = None
) -> list[Tuned]:
    """The weights of each baseline. `evaluated` are left out of the validation questions.

    `cache` names a file that keeps what was chosen by environment and questions, so that nothing is chosen twice.
    Raises EnvironmentUnavailableError where no validation question could be scored, StorageError for the cache.
    """
    info = client.environment()
    reason = ""
    if not tuning.questions:
        reason = "the defaults, as no questions were to be used for a choice"
    elif tuning.split == VALIDATION:
        reason = "the defaults, as the validation questions are what is evaluated"
    elif not info.splits.get(VALIDATION):
        reason = "the defaults, as the environment has no validation split"
    if reason:
        return [Tuned(name, default_weights(name), reason=reason) for name in names]
    questions = _drawn(client.questions(VALIDATION), evaluated, tuning)
    if not questions:
        reason = "the defaults, as every validation question is one of those evaluated"
        return [Tuned(name, default_weights(name), reason=reason) for name in names]
    keys = {name: _key(name, info, questions, tuning) for name in names}
    known = _read(cache)
    missing = [name for name in names if keys[name] not in known]
    if missing:
        chosen = _choose(missing, client, RetrieverCard.from_service(info.retriever), questions, tuning)
        known |= {keys[one.name]: asdict(one) for one in chosen}
        if cache is not None:
            write_text(cache, json.dumps(known, ensure_ascii=False, indent=1) + "\n")
    return [Tuned(**known[keys[name]]) for name in names]


def default_weights(name: str) -> dict[str, float]:
    """The weights that a baseline has by itself."""
    kind = TRAINING_FREE[name]  # type: ignore[index]
    return {key: value for key, value in kind().model_dump().items() if key not in TrainingFreeConfig.model_fields}


def make(name: str, weights: Weights, card: RetrieverCard) -> TrainingFree:
    """The baseline of that name with these weights."""
    kind = TRAINING_FREE[name]  # type: ignore[index]
    return training_free(kind.model_validate(dict(weights)), card)


def best_by_validation(tuned: Sequence[Tuned]) -> Tuned | None:
    """The baseline with the best mean on validation questions; None where none was tuned on them."""
    scored = [one for one in tuned if one.score is not None]
    return max(scored, key=lambda one: one.score or 0.0, default=None)


def answer(
    system: str, client: Any, tuned: Tuned, questions: Sequence[Question], metrics: Sequence[str], depth: int = 10
) -> list[EvalRecord]:
    """The records of a baseline, under the name `system`."""
    rewriter = make(tuned.name, tuned.weights, RetrieverCard.from_service(client.environment().retriever))
    started = time.perf_counter()
    found = _feedback(client, questions, rewriter.feedback)
    plans = {
        question.id: rewriter.plan(question.text, found.get(question.id), depth)
        for question in questions
        if not rewriter.feedback or question.id in found
    }
    asked = [question for question in questions if question.id in plans]
    results = dict(zip(plans, _step(client, asked, list(plans.values()), metrics), strict=True))
    seconds = (time.perf_counter() - started) / max(1, len(questions))
    return [
        _record(system, question, plans.get(question.id), results.get(question.id), rewriter, metrics, seconds)
        for question in questions
    ]


def _choose(
    names: Sequence[str], client: Any, card: RetrieverCard, questions: Sequence[Question], tuning: Tuning
) -> list[Tuned]:
    """Try every weight of the grids on the validation questions. A question counts where all searches have a score."""
    metric = tuning.metrics[0]
    rewriters = {name: [make(name, weights, card) for weights in GRIDS[name]] for name in names}
    depth = max(rewriter.feedback for several in rewriters.values() for rewriter in several)
    found = _feedback(client, questions, depth)
    raw = _step(client, questions, [SearchPlan.of(question.text, k=tuning.depth) for question in questions], [metric])
    columns = {"": [_score(result, metric) for result in raw]}
    trials = [(name, number) for name in names for number in range(len(rewriters[name]))]
    with progress_bar("weights of the training-free baselines") as advance:
        for done, (name, number) in enumerate(trials):
            advance(done, len(trials))
            rewriter = rewriters[name][number]
            plans = [rewriter.plan(question.text, found.get(question.id), tuning.depth) for question in questions]
            results = _step(client, questions, plans, [metric])
            columns[f"{name} {number}"] = [_score(result, metric) for result in results]
        advance(len(trials), len(trials))
    scored = [
        at
        for at, question in enumerate(questions)
        if (not depth or question.id in found) and all(column[at] is not None for column in columns.values())
    ]
    if not scored:
        raise EnvironmentUnavailableError(
            f"the environment scored none of {len(questions)} validation questions, on which the weights of "
            "training-free baselines are chosen. Check its log and client.deadline, or set training_free to []."
        )
    means = {key: sum(column[at] or 0.0 for at in scored) / len(scored) for key, column in columns.items()}
    chosen = []
    for name in names:
        tried = range(len(GRIDS[name]))
        best = max(tried, key=lambda number: (round(means[f"{name} {number}"], 9), -number))
        score = means[f"{name} {best}"]
        chosen.append(Tuned(name, dict(GRIDS[name][best]), len(scored), score, means[""], len(tried), metric))
    return chosen


def _feedback(client: Any, questions: Sequence[Question], depth: int) -> dict[str, Found]:
    """What each question finds by itself, `depth` documents with their texts; left out where it was not answered."""
    if not depth:
        return {}
    plans = [SearchPlan.of(question.text, k=depth) for question in questions]
    found = {}
    for question, plan, result in zip(questions, plans, _step(client, questions, plans, [], True), strict=True):
        if result is not None:
            documents, scores = [hit.document for hit in result.ranking], [hit.score for hit in result.ranking]
            found[question.id] = Found(plan, tuple(documents), tuple(scores))
    return found


def _step(
    client: Any,
    questions: Sequence[Question],
    plans: Sequence[SearchPlan],
    metrics: Sequence[str],
    with_text: bool = False,
) -> list[StepResult | None]:
    """The result of each plan. A step and not a search: the environment then leaves out what it ignores for a question
    (a document of the same id), in what is read as in what is scored."""
    steps = [Step(question_id=question.id, plan=plan) for question, plan in zip(questions, plans, strict=True)]
    return [
        result
        for start in range(0, len(steps), _AT_ONCE)
        for result in client.step(steps[start : start + _AT_ONCE], with_text=with_text, metrics=metrics)
    ]


def _score(result: StepResult | None, metric: str) -> float | None:
    return None if result is None else result.metrics[metric]


def _record(
    system: str,
    question: Question,
    plan: SearchPlan | None,
    result: StepResult | None,
    rewriter: TrainingFree,
    metrics: Sequence[str],
    seconds: float,
) -> EvalRecord:
    hits = result.ranking if result is not None else []
    values = result.metrics if result is not None else {}
    return EvalRecord(
        system=system,
        turn=0,
        question_id=question.id,
        question=question.text,
        think="",
        rewrites=additions(plan) if plan is not None else (),
        ranking=tuple(hit.id for hit in hits),
        metrics=metrics_of(values, metrics, failed=False, scored=result is not None),
        tokens=0,
        prompt_tokens=0,
        searches=2 if rewriter.feedback else 1,
        format_ok=True,
        scores=tuple(hit.score for hit in hits),
        plan=plan.model_dump(mode="json") if plan is not None else None,
        seconds=seconds,
    )


def _drawn(validation: Sequence[Question], evaluated: Sequence[Question], tuning: Tuning) -> list[Question]:
    """The validation questions that weights are chosen on: a seeded sample without any that is evaluated."""
    ids, texts = {question.id for question in evaluated}, {words(question.text) for question in evaluated}
    left = [question for question in validation if question.id not in ids and words(question.text) not in texts]
    if len(left) <= tuning.questions:
        return left
    return Random(f"tuning {tuning.seed}").sample(left, tuning.questions)


def _key(name: str, info: Any, questions: Sequence[Question], tuning: Tuning) -> str:
    """What a choice depends on."""
    asked = [[question.id, question.text] for question in questions]
    served = [info.index_hash, info.settings_hash, info.gain]
    return f"{name} {digest([served, asked, tuning.metrics[0], [dict(each) for each in GRIDS[name]]])[:20]}"


def _read(cache: Path | None) -> dict[str, Any]:
    """What was chosen before; nothing where the file is missing or is not readable, for a choice can be made again."""
    try:
        known = json.loads(cache.read_text(encoding="utf-8")) if cache is not None else {}
        return {key: value for key, value in known.items() if Tuned(**value)}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
