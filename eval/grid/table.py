"""From the records of a grid to its tables: one per dataset (and per part of it), and an average.

Rows are systems by turn, columns environments. A question of a system that samples counts with the mean over its
samples, and only where all of them have a score. Every arm is tested against the baselines in the same environment, by
the first metric; Holm's correction runs over all comparisons of a table. An average is a mean of the means of parts of
equal weight, and is there only where every part is.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...configs.evaluation import BEST_FREE, RAW, PlanConfig
from ..behaviour import Behaviour, behaviour, with_fall_back
from ..records import EvalRecord
from ..statistics import PairedComparison, Stratum, compare_strata, holm, mean_ci
from ..table import ALPHA, Adjusted, Arm, known_mean, listed

MARKS = (("†", "↓"), ("‡", "⇓"))
"""Significantly better and worse than the first and the second baseline."""
FREE_MARKS = ("★", "☆")
"""And than the best training-free baseline."""
FEW = 100
"""Questions under which a table says that they are few."""

Values = Mapping[str, Mapping[str, float | None]]
"""Metrics by question id; None where unscorable."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Means per answer, earlier turns included."""

    calls: int
    searches: float
    tokens_in: float | None
    """None where an endpoint does not say of every answer; so is tokens_out."""
    tokens_out: float | None
    seconds: float
    format_ok: float


@dataclass(frozen=True, slots=True)
class Answers:
    """What one arm did in one environment on one set of questions."""

    questions: Sequence[str]
    """Ids of all questions that it is to answer."""
    values: Values
    records: Sequence[EvalRecord]


@dataclass(frozen=True, slots=True)
class Part:
    """A set of questions: a dataset, or a part of one. Answers by arm and environment."""

    title: str
    answers: Mapping[tuple[Arm, str], Answers]


@dataclass(frozen=True, slots=True)
class Score:
    """One figure of a table."""

    metrics: dict[str, float | None]
    low: float | None
    """95% bootstrap interval of the first metric."""
    high: float | None
    n: int
    """Questions with a score."""
    of: int
    """Questions asked."""
    marks: str = ""
    best: bool = False
    format_ok: float | None = None
    """Share of answers in the asked format; None, as the next three, where no model wrote."""
    repeats: float | None = None
    """Share of rewrites that repeat the question."""
    cut: float | None = None
    """Share of answers that were cut at their token limit."""
    with_fall_back: float | None = None
    """The first metric where a question whose format failed counts with the raw question's score."""


@dataclass(frozen=True, slots=True)
class Comparison(Adjusted):
    """One arm against a baseline in one environment, by the first metric."""

    arm: Arm
    baseline: Arm
    environment: str
    test: PairedComparison
    p_holm: float


@dataclass(frozen=True, slots=True)
class Row:
    """One arm; its scores by environment, None where it has none."""

    arm: Arm
    label: str
    scores: dict[str, Score | None]
    costs: Costs | None


@dataclass(frozen=True, slots=True)
class GridTable:
    """One table."""

    title: str
    environments: list[str]
    questions: int
    rows: list[Row]
    comparisons: list[Comparison]
    notes: list[str] = field(default_factory=list)
    average: bool = False

    def score(self, arm: Arm, environment: str) -> Score | None:
        """That figure; None where there is none."""
        return next((row.scores.get(environment) for row in self.rows if row.arm == arm), None)


def answers_of(questions: Sequence[str], records: Sequence[EvalRecord], samples: int) -> dict[int, Answers]:
    """What a system did, by turn; a question without a score in every sample has the value None."""
    by_turn: dict[int, dict[str, list[EvalRecord]]] = {}
    for record in records:
        by_turn.setdefault(record.turn, {}).setdefault(record.question_id, []).append(record)
    found = {}
    for turn, answered in sorted(by_turn.items()):
        values = {question: _mean_metrics(answered.get(question, ()), samples) for question in questions}
        known = [record for question in questions for record in answered.get(question, ())]
        found[turn] = Answers(questions, values, known)
    return found


def split_by_part(part: Part) -> list[Part]:
    """The parts of a dataset whose question ids begin with them: PART/…"""
    names = dict.fromkeys(
        question.partition("/")[0] for answers in part.answers.values() for question in answers.questions
    )
    return [
        Part(
            f"{part.title}: {name}",
            {
                key: Answers(
                    [question for question in answers.questions if question.partition("/")[0] == name],
                    answers.values,
                    [record for record in answers.records if record.question_id.partition("/")[0] == name],
                )
                for key, answers in part.answers.items()
            },
        )
        for name in names
    ]


def tabulate_parts(
    plan: PlanConfig, title: str, parts: Sequence[tuple[float, Part]], said: Sequence[str] = ()
) -> GridTable:
    """The table of one part of weight 1, or the average of several whose weights add up to 1; `said` are notes."""
    arms = _arms(plan, [part for _, part in parts])
    names = [
        name for name in plan.environments if any((arm, name) in part.answers for _, part in parts for arm in arms)
    ]
    scores = {(arm, name): _score(plan, parts, arm, name) for arm in arms for name in names}
    comparisons = _comparisons(plan, parts, arms, names)
    rows = []
    for arm in arms:
        of_arm = {name: scores[arm, name] for name in names}
        marked = {
            name: _marked(plan, score, arm, name, comparisons, _best(plan, scores, name))
            for name, score in of_arm.items()
        }
        rows.append(Row(arm, label(plan, arm), marked, _costs(plan, parts, arm)))
    questions = sum(max((len(answers.questions) for answers in part.answers.values()), default=0) for _, part in parts)
    notes = [*_notes(plan, rows, questions, len(parts) > 1), *said]
    return GridTable(title, names, questions, rows, comparisons, notes, len(parts) > 1)


def label(plan: PlanConfig, arm: Arm) -> str:
    """A row's name for readers: the turn is told where there are several."""
    if arm.system == RAW:
        return "raw question"
    if arm.system == BEST_FREE:
        return "best training-free"
    return f"{arm.system}, turn {arm.turn}" if plan.systems[arm.system].turns > 1 else arm.system


def family(plan: PlanConfig) -> str:
    """Which comparisons Holm's correction runs over, in one sentence."""
    against = ["the raw question" if name == RAW else name for name in plan.baselines]
    against += ["the best training-free baseline (of systems with a model)"] if plan.free_systems else []
    return (
        f"Two-sided paired permutation tests of {plan.metrics[0]} against {listed(against, 'and')} in the same "
        f"environment, {plan.permutations:,} sign flips, p = (b + 1) / (m + 1); Holm's correction over all comparisons "
        f"of a table, significant below {ALPHA}."
    )


def _arms(plan: PlanConfig, parts: Sequence[Part]) -> list[Arm]:
    order: dict[str, int] = {}
    for place, name in enumerate([RAW, *plan.free_systems, BEST_FREE, *plan.systems]):
        order.setdefault(name, place)
    found = {arm for part in parts for arm, _ in part.answers}
    return sorted(found, key=lambda arm: (order[arm.system], arm.turn))


def _score(plan: PlanConfig, parts: Sequence[tuple[float, Part]], arm: Arm, name: str) -> Score | None:
    found = [(weight, part.answers.get((arm, name))) for weight, part in parts]
    known = [(weight, answers) for weight, answers in found if answers is not None]
    if len(known) < len(found):
        return None
    metrics: dict[str, float | None] = {}
    for metric in plan.metrics:
        strata = [(weight, _scored(answers, metric)) for weight, answers in known]
        metrics[metric] = math.fsum(w * math.fsum(v) / len(v) for w, v in strata) if all(v for _, v in strata) else None
    main = [(weight, _scored(answers, plan.metrics[0])) for weight, answers in known]
    low, high = mean_ci(main, plan.bootstrap, plan.seed) if all(values for _, values in main) else (None, None)
    n, of = sum(len(values) for _, values in main), sum(len(answers.questions) for _, answers in known)
    score = Score(metrics, low, high, n, of)
    return _written(score, plan, arm, name, parts) if arm.turn else score


def _written(score: Score, plan: PlanConfig, arm: Arm, name: str, parts: Sequence[tuple[float, Part]]) -> Score:
    """The score with what the answers look like; of several parts the weighted means."""
    shares: list[tuple[float, Behaviour, float | None]] = []
    for weight, part in parts:
        records = part.answers[arm, name].records
        if not records:
            return score
        raw = part.answers.get((Arm(RAW, 0), name))
        questions = {record.question_id: record for record in raw.records} if raw is not None else {}
        by_question: dict[str, list[float | None]] = {}
        for record in records:
            fallen = with_fall_back(record, questions, plan.metrics[0])
            by_question.setdefault(record.question_id, []).append(fallen)
        means = [math.fsum(v for v in of if v is not None) / len(of) for of in by_question.values() if None not in of]
        shares.append((weight, behaviour(records), math.fsum(means) / len(means) if means else None))

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        return math.fsum(weight * value for (weight, *_), value in zip(shares, known, strict=True))

    return replace(
        score,
        format_ok=mean([one.format_ok for _, one, _ in shares]),
        repeats=mean([one.repeats for _, one, _ in shares]),
        cut=mean([one.cut for _, one, _ in shares]),
        with_fall_back=mean([fallen for *_, fallen in shares]),
    )


def _comparisons(
    plan: PlanConfig, parts: Sequence[tuple[float, Part]], arms: Sequence[Arm], names: Sequence[str]
) -> list[Comparison]:
    tests = []
    for number, system in enumerate([*plan.baselines, BEST_FREE]):
        baseline = max((arm for arm in arms if arm.system == system), default=None)
        if baseline is None:
            continue
        left_out = [RAW, *plan.free_systems] if system == BEST_FREE else plan.baselines[: number + 1]
        for arm in arms:
            if arm.system == BEST_FREE or arm.system in left_out:
                continue
            for name in names:
                pairs = [
                    (weight, part.answers.get((arm, name)), part.answers.get((baseline, name)))
                    for weight, part in parts
                ]
                strata = [
                    Stratum(weight, _all(a, a.questions, plan.metrics[0]), _all(b, a.questions, plan.metrics[0]))
                    for weight, a, b in pairs
                    if a is not None and b is not None
                ]
                if len(strata) < len(pairs):
                    continue
                test = compare_strata(strata, resamples=plan.bootstrap, permutations=plan.permutations, seed=plan.seed)
                if test is not None:
                    tests.append((arm, baseline, name, test))
    adjusted = holm([test.p for *_, test in tests])
    return [Comparison(*found, p) for found, p in zip(tests, adjusted, strict=True)]


def _marked(
    plan: PlanConfig,
    score: Score | None,
    arm: Arm,
    name: str,
    comparisons: Sequence[Comparison],
    best: float | None,
) -> Score | None:
    if score is None:
        return None
    marks = ""
    for row in comparisons:
        if row.arm == arm and row.environment == name and row.significant:
            of_free = row.baseline.system == BEST_FREE
            better, worse = FREE_MARKS if of_free else MARKS[plan.baselines.index(row.baseline.system)]
            marks += better if row.test.difference > 0 else worse
    mean = score.metrics[plan.metrics[0]]
    is_best = mean is not None and best is not None and round(mean, 3) == round(best, 3)
    return replace(score, marks=marks, best=is_best)


def _best(plan: PlanConfig, scores: Mapping[tuple[Arm, str], Score | None], name: str) -> float | None:
    means = [
        mean
        for (_, where), score in scores.items()
        if where == name and score is not None and (mean := score.metrics[plan.metrics[0]]) is not None
    ]
    return max(means) if len(means) > 1 else None


def _costs(plan: PlanConfig, parts: Sequence[tuple[float, Part]], arm: Arm) -> Costs | None:
    records = [
        record
        for _, part in parts
        for (other, _), answers in part.answers.items()
        if other == arm
        for record in answers.records
    ]
    if not records:
        return None

    def mean(values: Sequence[float]) -> float:
        return math.fsum(values) / len(values)

    return Costs(
        calls=arm.turn * (plan.systems[arm.system].passages if arm.turn else 1),
        searches=mean([record.searches for record in records]),
        tokens_in=known_mean([record.prompt_tokens for record in records]),
        tokens_out=known_mean([record.tokens for record in records]),
        seconds=mean([record.seconds for record in records]),
        format_ok=mean([record.format_ok for record in records]),
    )


def _notes(plan: PlanConfig, rows: Sequence[Row], questions: int, average: bool) -> list[str]:
    notes = []
    if questions < FEW and not average:
        notes.append(
            f"Only {questions} question{'s' * (questions != 1)}: the intervals are wide, and a difference that is not "
            "significant may be there all the same."
        )
    for row in rows:
        for name, score in row.scores.items():
            if score is not None and score.n < score.of:
                notes.append(
                    f"{row.label} in {name} has a score for {score.n} of {score.of} questions; its mean is over these, "
                    "and the others are counted nowhere."
                )
            elif score is None and average:
                notes.append(f"{row.label} in {name} was not evaluated on every part, so it has no average.")
    for name in dict.fromkeys(row.arm.system for row in rows):
        system = plan.systems.get(name)
        if system is not None and system.samples is not None:
            notes.append(
                f"{name}: the mean over {system.samples} sampled answers to each question at temperature "
                f"{system.temperature:g}, never the best of them. Costs are those of one answer."
            )
    return notes


def _scored(answers: Answers, metric: str) -> list[float]:
    return [value for value in _all(answers, answers.questions, metric) if value is not None]


def _all(answers: Answers, questions: Sequence[str], metric: str) -> list[float | None]:
    nothing: Mapping[str, float | None] = {}
    return [answers.values.get(question, nothing).get(metric) for question in questions]


def _mean_metrics(records: Sequence[EvalRecord], samples: int) -> dict[str, float | None]:
    """The mean over all samples; empty where one of them is missing, None where one has no score."""
    if len({record.sample for record in records}) != samples:
        return {}
    found: dict[str, float | None] = {}
    for metric in records[0].metrics:
        values: list[Any] = [record.metrics[metric] for record in records]
        found[metric] = None if None in values else math.fsum(values) / len(values)
    return found
