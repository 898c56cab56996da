"""Build the tables of a grid from its records: one per dataset (and per part of it), and an average.

Rows are systems by turn, columns are environments. For a system that samples, a question's score is the mean over its
samples, and None unless all of them have a score. Every arm is tested against the baselines in the same environment, on
the first metric; Holm's correction covers all comparisons of a table. An average is the mean of equally weighted parts,
and exists only if every part does.
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
"""Significantly better and worse than the best training-free baseline."""
FEW = 100
"""With fewer questions than this, a table carries a warning."""

Values = Mapping[str, Mapping[str, float | None]]
"""Metrics by question id; None if the question could not be scored."""


@dataclass(frozen=True, slots=True)
class MeanCosts:
    """Means per answer, earlier turns included."""

    calls: int
    searches: float
    tokens_in: float | None
    """None if an endpoint does not report it for every answer; the same holds for tokens_out."""
    tokens_out: float | None
    seconds: float
    format_ok: float


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of one arm in one environment to one set of questions."""

    questions: Sequence[str]
    """Ids of all questions that the arm should answer."""
    values: Values
    records: Sequence[EvalRecord]


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """A set of questions: a dataset, or a part of one. Answers by arm and environment."""

    title: str
    answers: Mapping[tuple[Arm, str], Answers]


@dataclass(frozen=True, slots=True)
class TableScore:
    """One cell of a table."""

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
    """Share of answers in the requested format. None, like the next three fields, if no model wrote the answers."""
    repeats: float | None = None
    """Share of rewrites that repeat the question."""
    cut: float | None = None
    """Share of answers truncated at their token limit."""
    with_fall_back: float | None = None
    """The first metric, with the raw question's score for every answer in the wrong format."""


@dataclass(frozen=True, slots=True)
class GridComparison(Adjusted):
    """One arm against a baseline in one environment, on the first metric."""

    arm: Arm
    baseline: Arm
    environment: str
    test: PairedComparison
    p_holm: float


@dataclass(frozen=True, slots=True)
class Row:
    """One arm; its scores by environment, None for an environment without a score."""

    arm: Arm
    label: str
    scores: dict[str, TableScore | None]
    costs: MeanCosts | None


@dataclass(frozen=True, slots=True)
class GridTable:
    """One table."""

    title: str
    environments: list[str]
    questions: int
    rows: list[Row]
    comparisons: list[GridComparison]
    notes: list[str] = field(default_factory=list)
    average: bool = False

    def score(self, arm: Arm, environment: str) -> TableScore | None:
        """The score of an arm in an environment; None if there is none."""
        return next((row.scores.get(environment) for row in self.rows if row.arm == arm), None)


def answers_of(questions: Sequence[str], records: Sequence[EvalRecord], samples: int) -> dict[int, Answers]:
    """The answers of a system by turn; a metric is None unless every sample of the question has a score."""
    by_turn: dict[int, dict[str, list[EvalRecord]]] = {}
    for record in records:
        by_turn.setdefault(record.turn, {}).setdefault(record.question_id, []).append(record)
    answers = {}
    for turn, answered in sorted(by_turn.items()):
        values = {question: _mean_metrics(answered.get(question, ()), samples) for question in questions}
        turn_records = [record for question in questions for record in answered.get(question, ())]
        answers[turn] = Answers(questions, values, turn_records)
    return answers


def split_by_part(part: QuestionSet) -> list[QuestionSet]:
    """Split a dataset into its parts, given by the prefix of the question ids: PART/…"""
    names = dict.fromkeys(
        question.partition("/")[0] for answers in part.answers.values() for question in answers.questions
    )
    return [
        QuestionSet(
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
    plan: PlanConfig, title: str, parts: Sequence[tuple[float, QuestionSet]], extra_notes: Sequence[str] = ()
) -> GridTable:
    """The table of one part with weight 1, or the average of several parts whose weights sum to 1.

    `extra_notes` are added to the table's notes.
    """
    arms = _arms(plan, [part for _, part in parts])
    names = [
        name for name in plan.environments if any((arm, name) in part.answers for _, part in parts for arm in arms)
    ]
    scores = {(arm, name): _score(plan, parts, arm, name) for arm in arms for name in names}
    comparisons = _comparisons(plan, parts, arms, names)
    rows = []
    for arm in arms:
        arm_scores = {name: scores[arm, name] for name in names}
        marked = {
            name: _marked(plan, score, arm, name, comparisons, _best(plan, scores, name))
            for name, score in arm_scores.items()
        }
        rows.append(Row(arm, label(plan, arm), marked, _costs(plan, parts, arm)))
    questions = sum(max((len(answers.questions) for answers in part.answers.values()), default=0) for _, part in parts)
    notes = [*_notes(plan, rows, questions, len(parts) > 1), *extra_notes]
    return GridTable(title, names, questions, rows, comparisons, notes, len(parts) > 1)


def label(plan: PlanConfig, arm: Arm) -> str:
    """The display name of a row; includes the turn if the system has several."""
    if arm.system == RAW:
        return "raw question"
    if arm.system == BEST_FREE:
        return "best training-free"
    return f"{arm.system}, turn {arm.turn}" if plan.systems[arm.system].turns > 1 else arm.system


def family(plan: PlanConfig) -> str:
    """The comparisons that Holm's correction covers, in one sentence."""
    against = ["the raw question" if name == RAW else name for name in plan.baselines]
    against += ["the best training-free baseline (of systems with a model)"] if plan.free_systems else []
    return (
        f"Two-sided paired permutation tests of {plan.metrics[0]} against {listed(against, 'and')} in the same "
        f"environment, {plan.permutations:,} sign flips, p = (b + 1) / (m + 1); Holm's correction over all comparisons "
        f"of a table, significant below {ALPHA}."
    )


def _arms(plan: PlanConfig, parts: Sequence[QuestionSet]) -> list[Arm]:
    order: dict[str, int] = {}
    for position, name in enumerate([RAW, *plan.free_systems, BEST_FREE, *plan.systems]):
        order.setdefault(name, position)
    arms = {arm for part in parts for arm, _ in part.answers}
    return sorted(arms, key=lambda arm: (order[arm.system], arm.turn))


def _score(plan: PlanConfig, parts: Sequence[tuple[float, QuestionSet]], arm: Arm, name: str) -> TableScore | None:
    candidates = [(weight, part.answers.get((arm, name))) for weight, part in parts]
    present = [(weight, answers) for weight, answers in candidates if answers is not None]
    if len(present) < len(candidates):
        return None
    metrics: dict[str, float | None] = {}
    for metric in plan.metrics:
        strata = [(weight, _scored(answers, metric)) for weight, answers in present]
        metrics[metric] = math.fsum(w * math.fsum(v) / len(v) for w, v in strata) if all(v for _, v in strata) else None
    main = [(weight, _scored(answers, plan.metrics[0])) for weight, answers in present]
    low, high = mean_ci(main, plan.bootstrap, plan.seed) if all(values for _, values in main) else (None, None)
    n, total = sum(len(values) for _, values in main), sum(len(answers.questions) for _, answers in present)
    score = TableScore(metrics, low, high, n, total)
    return _with_behaviour(score, plan, arm, name, parts) if arm.turn else score


def _with_behaviour(
    score: TableScore, plan: PlanConfig, arm: Arm, name: str, parts: Sequence[tuple[float, QuestionSet]]
) -> TableScore:
    """The score with behaviour figures added (format, repeats, truncation, fall-back); weighted means over parts."""
    shares: list[tuple[float, Behaviour, float | None]] = []
    for weight, part in parts:
        records = part.answers[arm, name].records
        if not records:
            return score
        raw = part.answers.get((Arm(RAW, 0), name))
        questions = {record.question_id: record for record in raw.records} if raw is not None else {}
        by_question: dict[str, list[float | None]] = {}
        for record in records:
            fallback = with_fall_back(record, questions, plan.metrics[0])
            by_question.setdefault(record.question_id, []).append(fallback)
        means = [
            math.fsum(v for v in samples if v is not None) / len(samples)
            for samples in by_question.values()
            if None not in samples
        ]
        shares.append((weight, behaviour(records), math.fsum(means) / len(means) if means else None))

    def mean(values: Sequence[float | None]) -> float | None:
        present = [value for value in values if value is not None]
        if len(present) < len(values):
            return None
        return math.fsum(weight * value for (weight, *_), value in zip(shares, present, strict=True))

    return replace(
        score,
        format_ok=mean([stats.format_ok for _, stats, _ in shares]),
        repeats=mean([stats.repeats for _, stats, _ in shares]),
        cut=mean([stats.cut for _, stats, _ in shares]),
        with_fall_back=mean([fallback for *_, fallback in shares]),
    )


def _comparisons(
    plan: PlanConfig, parts: Sequence[tuple[float, QuestionSet]], arms: Sequence[Arm], names: Sequence[str]
) -> list[GridComparison]:
    tests = []
    for index, system in enumerate([*plan.baselines, BEST_FREE]):
        baseline = max((arm for arm in arms if arm.system == system), default=None)
        if baseline is None:
            continue
        excluded = [RAW, *plan.free_systems] if system == BEST_FREE else plan.baselines[: index + 1]
        for arm in arms:
            if arm.system == BEST_FREE or arm.system in excluded:
                continue
            for name in names:
                pairs = [
                    (weight, part.answers.get((arm, name)), part.answers.get((baseline, name)))
                    for weight, part in parts
                ]
                strata = [
                    Stratum(
                        weight,
                        _metric_values(a, a.questions, plan.metrics[0]),
                        _metric_values(b, a.questions, plan.metrics[0]),
                    )
                    for weight, a, b in pairs
                    if a is not None and b is not None
                ]
                if len(strata) < len(pairs):
                    continue
                test = compare_strata(strata, resamples=plan.bootstrap, permutations=plan.permutations, seed=plan.seed)
                if test is not None:
                    tests.append((arm, baseline, name, test))
    adjusted = holm([test.p for *_, test in tests])
    return [GridComparison(*compared, p) for compared, p in zip(tests, adjusted, strict=True)]


def _marked(
    plan: PlanConfig,
    score: TableScore | None,
    arm: Arm,
    name: str,
    comparisons: Sequence[GridComparison],
    best: float | None,
) -> TableScore | None:
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


def _best(plan: PlanConfig, scores: Mapping[tuple[Arm, str], TableScore | None], name: str) -> float | None:
    means = [
        mean
        for (_, environment), score in scores.items()
        if environment == name and score is not None and (mean := score.metrics[plan.metrics[0]]) is not None
    ]
    return max(means) if len(means) > 1 else None


def _costs(plan: PlanConfig, parts: Sequence[tuple[float, QuestionSet]], arm: Arm) -> MeanCosts | None:
    records = [
        record
        for _, part in parts
        for (part_arm, _), answers in part.answers.items()
        if part_arm == arm
        for record in answers.records
    ]
    if not records:
        return None

    def mean(values: Sequence[float]) -> float:
        return math.fsum(values) / len(values)

    return MeanCosts(
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
    return [value for value in _metric_values(answers, answers.questions, metric) if value is not None]


def _metric_values(answers: Answers, questions: Sequence[str], metric: str) -> list[float | None]:
    nothing: Mapping[str, float | None] = {}
    return [answers.values.get(question, nothing).get(metric) for question in questions]


def _mean_metrics(records: Sequence[EvalRecord], samples: int) -> dict[str, float | None]:
    """Means over all samples; empty if a sample is missing, None for a metric without a score in some sample."""
    if len({record.sample for record in records}) != samples:
        return {}
    means: dict[str, float | None] = {}
    for metric in records[0].metrics:
        values: list[Any] = [record.metrics[metric] for record in records]
        means[metric] = None if None in values else math.fsum(values) / len(values)
    return means
