"""Compute report tables from records: means, intervals, costs and significant differences.

Every system is compared with the raw question. The trained policy is also compared with the untrained policy and its
warm start at the same turn, with HyDE, and with the best training-free baseline. Holm's correction covers all of these
comparisons together.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..configs.methods import TRAINING_FREE
from ..data.sampling import QuestionSample
from .behaviour import Behaviour, behaviour, with_fall_back
from .records import HYDE, METRICS, RAW, TRAINED, UNTRAINED, WARM_START, EvalRecord
from .statistics import PairedComparison, bootstrap_ci, compare_paired, holm
from .training_free import Tuned, best_by_validation

ALPHA = 0.05
"""A difference is called significant where its Holm-adjusted p is below this."""

MAIN_METRIC = METRICS[0]


_LABELS = {
    RAW: "Raw question",
    "first_titles": "First titles",
    "rm3": "RM3",
    "weighted_words": "Weighted question words",
    HYDE: "HyDE at equal cost",
}
"""Labels of systems with a single turn."""


class Arm(NamedTuple):
    """One system at one turn: a row of the table."""

    system: str
    turn: int

    @property
    def label(self) -> str:
        """The display name of the row."""
        if self.system in _LABELS:
            return _LABELS[self.system]
        return f"{self.system.capitalize()}, turn {self.turn}"

    @property
    def phrase(self) -> str:
        """The display name inside a sentence."""
        return _plain(self) if self.system in _LABELS else f"{_plain(self)} at turn {self.turn}"


@dataclass(frozen=True, slots=True)
class ArmRow:
    """Scores and costs of one arm, as means per question."""

    arm: Arm
    n: int
    """Questions with a score."""
    unscorable: int
    metrics: dict[str, float | None]
    """Mean of each metric over the scored questions; None where there are none."""
    low: float | None
    """95% bootstrap interval of the main metric's mean."""
    high: float | None
    calls: int
    """Calls of the language model."""
    searches: float
    tokens: float | None
    """Tokens generated; None where an endpoint does not report them for every answer."""
    prompt_tokens: float | None
    """Prompt tokens; None as for `tokens`."""
    format_ok: float
    """Share of answers in the requested format."""
    repeats: float | None = None
    """Share of rewrites that repeat the question; None where no model wrote."""
    cut: float | None = None
    """Share of answers that were cut at their token limit; None where unknown."""
    with_fall_back: float | None = None
    """Mean of the main metric, where an answer whose format failed counts with the raw question's score."""


class Adjusted:
    """Base class of results with a Holm-adjusted p-value."""

    __slots__ = ()
    p_holm: float

    @property
    def significant(self) -> bool:
        """Whether the adjusted p is below ALPHA."""
        return self.p_holm < ALPHA


@dataclass(frozen=True, slots=True)
class ComparisonRow(Adjusted):
    """One arm against a baseline on the main metric."""

    arm: Arm
    baseline: Arm
    test: PairedComparison
    p_holm: float

    @property
    def verdict(self) -> str:
        """`beats` or `is worse than` where the difference is significant, else `does not beat`."""
        if not self.significant:
            return "does not beat"
        return "beats" if self.test.difference > 0 else "is worse than"


@dataclass(frozen=True, slots=True)
class Results:
    """All rows and comparisons of one evaluation."""

    questions: int
    rows: list[ArmRow]
    comparisons: list[ComparisonRow]
    tuned: list[Tuned] = field(default_factory=list)
    """The weights of the training-free baselines."""
    best_free: str | None = None
    """The best of them on validation; without tuning, the best on the evaluated questions (in its favour)."""
    sample: QuestionSample | None = None
    """Set where the questions are a random sample of the split."""
    turn: int | None = None
    """The turn of the trained policy that counts: the best one on validation; None for the last turn."""

    @property
    def notes(self) -> list[str]:
        """How the weights of the training-free baselines were chosen, and which baseline is the best."""
        sentences = [f"{_LABELS[baseline.name]}: {baseline.sentence}" for baseline in self.tuned]
        if self.best_free is not None:
            basis = "on validation questions"
            if best_by_validation(self.tuned) is None:
                basis = "on the evaluated questions themselves, for want of others, which is in its favour"
            sentences.append(f"{_LABELS[self.best_free]} is the best training-free baseline {basis}.")
        return sentences

    def label(self, arm: Arm) -> str:
        """The display name of a row; the best training-free baseline is marked."""
        return f"{arm.label} (best training-free)" if arm.system == self.best_free else arm.label

    def comparison(self, arm: Arm, baseline: Arm) -> ComparisonRow | None:
        """The comparison of `arm` with `baseline`; None where it was not made."""
        matches = (row for row in self.comparisons if row.arm == arm and row.baseline == baseline)
        return next(matches, None)


def arms_of(records: Iterable[EvalRecord]) -> list[Arm]:
    """The arms in the order of the table: raw, baselines, untrained, other systems, warm start, trained, by turn."""
    first, last = [RAW, *TRAINING_FREE, HYDE, UNTRAINED], [WARM_START, TRAINED]
    order: dict[str, int] = {name: rank for rank, name in enumerate([*first, "", *last])}
    arms = {Arm(record.system, record.turn) for record in records}
    return sorted(arms, key=lambda arm: (order.get(arm.system, len(first)), arm.system, arm.turn))


def tabulate(
    records: Sequence[EvalRecord], tuned: Sequence[Tuned] = (), *, resamples: int, permutations: int, seed: int
) -> Results:
    """Build all tables. A question without a record of an arm counts as unscorable for that arm.

    `tuned` are the training-free baselines; the trained policy is compared with the best of them.

    Raises ValueError for no records, or where one arm has two records for a question.
    """
    if not records:
        raise ValueError("there are no evaluation records; nothing can be tabulated")
    questions = list(dict.fromkeys(record.question_id for record in records))
    cells: dict[Arm, dict[str, EvalRecord]] = {}
    for record in records:
        answers = cells.setdefault(Arm(record.system, record.turn), {})
        if record.question_id in answers:
            raise ValueError(
                f"question {record.question_id!r} has two records for {record.system}, turn {record.turn}; expected one"
            )
        answers[record.question_id] = record
    arms = arms_of(records)
    scores = {arm: [cells[arm][q].metrics[MAIN_METRIC] if q in cells[arm] else None for q in questions] for arm in arms}
    best_free = _best_free(tuned, arms, scores)
    tests = []
    for arm, baseline in _pairs(arms, best_free):
        a, b = scores[arm], scores[baseline]
        if any(x is not None and y is not None for x, y in zip(a, b, strict=True)):
            test = compare_paired(a, b, resamples=resamples, permutations=permutations, seed=seed)
            tests.append((arm, baseline, test))
    adjusted = holm([test.p for _, _, test in tests])
    return Results(
        questions=len(questions),
        rows=[
            _row(arm, list(cells[arm].values()), cells.get(Arm(RAW, 0), {}), len(questions), resamples, seed)
            for arm in arms
        ],
        comparisons=[
            ComparisonRow(arm, baseline, test, p) for (arm, baseline, test), p in zip(tests, adjusted, strict=True)
        ],
        tuned=list(tuned),
        best_free=best_free,
    )


def final_comparisons(results: Results) -> list[ComparisonRow]:
    """The main comparisons: the trained policy (or the untrained one, if none was trained) at the turn that counts."""
    systems = {row.arm.system for row in results.rows}
    name = TRAINED if TRAINED in systems else UNTRAINED
    last = max((row.arm.turn for row in results.rows if row.arm.system == name), default=0)
    arm = Arm(name, min(results.turn or last, last) if name == TRAINED else last)
    baselines = [Arm(RAW, 0)]
    if name == TRAINED:
        baselines = [Arm(UNTRAINED, arm.turn), Arm(RAW, 0), Arm(results.best_free or "", 0), Arm(WARM_START, arm.turn)]
    return [row for baseline in baselines if (row := results.comparison(arm, baseline))]


def headline(results: Results) -> str:
    """One sentence on what the policy beats and what it does not."""
    comparisons = final_comparisons(results)
    if not comparisons:
        return "No policy could be compared with the raw question."
    arm = comparisons[0].arm
    by_verdict: dict[str, list[str]] = {}
    for row in comparisons:
        by_verdict.setdefault(row.verdict, []).append(_plain(row.baseline))
    outcome = ", but ".join(
        f"{verdict} {listed(names, 'or' if verdict == 'does not beat' else 'and')}"
        for verdict, names in by_verdict.items()
    )
    return f"At turn {arm.turn}, the {arm.system} policy {outcome}."


def listed(names: Sequence[str], joint: str) -> str:
    """`a, b and c`."""
    return f" {joint} ".join([*([", ".join(names[:-1])] if names[1:] else []), names[-1]])


def explanation(results: Results, split: str) -> str:
    """The numbers behind the headline."""
    comparisons = final_comparisons(results)
    if not comparisons:
        return f"None of the {results.questions} {split} questions has a score for two systems."
    clauses = [
        f"{row.test.mean_a:.3f} against {row.test.mean_b:.3f} for {_plain(row.baseline)} (difference "
        f"{signed(row.test.difference)}, 95% interval {signed(row.test.low)} to {signed(row.test.high)}, "
        f"p {format_p(row.test.p)}, Holm-adjusted p {format_p(row.p_holm)})"
        for row in comparisons
    ]
    text = f"Mean nDCG@10 over {comparisons[0].test.n} {split} questions: {'; '.join(clauses)}."
    if results.sample is not None:
        text += f" The questions are a random sample: {results.sample}."
    left_out = max(row.test.left_out for row in comparisons)
    if left_out:
        text += f" Left out because the environment did not answer: {left_out}."
    return text


def format_p(p: float) -> str:
    """A p-value with its relation: `= 0.031`, or `< 0.001`."""
    return f"= {p:.3f}" if p >= 0.001 else "< 0.001"


def signed(value: float) -> str:
    """Three decimals with + or a true minus sign; a value that rounds to zero has neither."""
    text = f"{value:+.3f}".replace("-", "−")
    return "0.000" if text[1:] == "0.000" else text


def _plain(arm: Arm) -> str:
    if arm.system == RAW:
        return "the raw question"
    if arm.system == WARM_START:
        return "its warm start"
    if arm.system in TRAINING_FREE:
        return f"the training-free baseline {_LABELS[arm.system]}"
    return _LABELS.get(arm.system, f"the {arm.system} policy")


def _best_free(tuned: Sequence[Tuned], arms: Sequence[Arm], scores: Mapping[Arm, Sequence[float | None]]) -> str | None:
    """The best training-free baseline on validation. Without tuning, the best one on the evaluated questions, which is
    a choice in the baseline's favour."""
    best = best_by_validation([baseline for baseline in tuned if Arm(baseline.name, 0) in arms])
    if best is not None:
        return best.name
    means = {
        arm.system: _mean(values)
        for arm in arms
        if arm.system in TRAINING_FREE and (values := [score for score in scores[arm] if score is not None])
    }
    return max(means, key=means.__getitem__, default=None)


def _pairs(arms: Sequence[Arm], best_free: str | None) -> list[tuple[Arm, Arm]]:
    raw = Arm(RAW, 0)
    pairs = [(arm, raw) for arm in arms if arm != raw and raw in arms]
    for arm in arms:
        if arm.system == TRAINED:
            against = [Arm(UNTRAINED, arm.turn), Arm(WARM_START, arm.turn), Arm(best_free or "", 0), Arm(HYDE, 1)]
            pairs += [(arm, baseline) for baseline in against if baseline in arms]
    return pairs


def _row(
    arm: Arm,
    records: Sequence[EvalRecord],
    raw: Mapping[str, EvalRecord],
    questions: int,
    resamples: int,
    seed: int,
) -> ArmRow:
    values = {name: [v for record in records if (v := record.metrics[name]) is not None] for name in METRICS}
    main = values[MAIN_METRIC]
    low, high = bootstrap_ci(main, resamples, seed) if main else (None, None)
    shares: Behaviour = behaviour(records)
    fall_back = [score for record in records if (score := with_fall_back(record, raw, MAIN_METRIC)) is not None]
    return ArmRow(
        arm=arm,
        n=len(main),
        unscorable=questions - len(main),
        metrics={name: _mean(scores) if scores else None for name, scores in values.items()},
        low=low,
        high=high,
        calls=arm.turn,
        searches=_mean([record.searches for record in records]),
        tokens=known_mean([record.tokens for record in records]),
        prompt_tokens=known_mean([record.prompt_tokens for record in records]),
        format_ok=shares.format_ok,
        repeats=shares.repeats,
        cut=shares.cut,
        with_fall_back=_mean(fall_back) if fall_back else None,
    )


def known_mean(values: Sequence[int | None]) -> float | None:
    """The mean; None where any value is unknown, because the known ones may not be representative."""
    present = [value for value in values if value is not None]
    return _mean(present) if len(present) == len(values) else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
