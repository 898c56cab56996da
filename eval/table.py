"""From records to the tables of a report: means, intervals, costs, and which differences are significant.

Every system is compared with the raw question, and the trained policy with the untrained one at the same turn. Holm's
correction runs over all of these comparisons together.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..data.sampling import Sample
from .records import METRICS, RAW, TRAINED, UNTRAINED, EvalRecord
from .statistics import PairedComparison, bootstrap_ci, compare_paired, holm

ALPHA = 0.05
"""A difference is called significant where its Holm-adjusted p is below this."""

MAIN_METRIC = METRICS[0]


class Arm(NamedTuple):
    """One system at one turn: a row of the table."""

    system: str
    turn: int

    @property
    def label(self) -> str:
        """The row's name for readers."""
        if self.system == RAW:
            return "Raw question"
        return f"{self.system.capitalize()}, turn {self.turn}"

    @property
    def phrase(self) -> str:
        """The same inside a sentence."""
        return "the raw question" if self.system == RAW else f"the {self.system} policy at turn {self.turn}"


@dataclass(frozen=True, slots=True)
class ArmRow:
    """What one arm reached and what it cost, as means per question."""

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
    """Tokens written; None where an endpoint does not say of every answer."""
    prompt_tokens: float | None
    """Tokens read, alike."""
    format_ok: float
    """Share of answers in the asked format."""


class Adjusted:
    """What has a p-value that Holm's correction has adjusted."""

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
    sample: Sample | None = None
    """Where the questions are a random sample of the split."""
    turn: int | None = None
    """The turn of the trained policy that is used: its winner on validation; None for the last one."""

    def comparison(self, arm: Arm, baseline: Arm) -> ComparisonRow | None:
        """That comparison, or None where it was not made."""
        found = (row for row in self.comparisons if row.arm == arm and row.baseline == baseline)
        return next(found, None)


def arms_of(records: Iterable[EvalRecord]) -> list[Arm]:
    """The arms in the order of the table: raw, then untrained, other systems and trained, each by turn."""
    order = {RAW: 0, UNTRAINED: 1, TRAINED: 3}
    found = {Arm(record.system, record.turn) for record in records}
    return sorted(found, key=lambda arm: (order.get(arm.system, 2), arm.system, arm.turn))


def tabulate(records: Sequence[EvalRecord], *, resamples: int, permutations: int, seed: int) -> Results:
    """Build all tables. A question that an arm has no record for counts as unscorable in that arm.

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
    tests = []
    for arm, baseline in _pairs(arms):
        a, b = scores[arm], scores[baseline]
        if any(x is not None and y is not None for x, y in zip(a, b, strict=True)):
            test = compare_paired(a, b, resamples=resamples, permutations=permutations, seed=seed)
            tests.append((arm, baseline, test))
    adjusted = holm([test.p for _, _, test in tests])
    return Results(
        questions=len(questions),
        rows=[_row(arm, list(cells[arm].values()), len(questions), resamples, seed) for arm in arms],
        comparisons=[
            ComparisonRow(arm, baseline, test, p) for (arm, baseline, test), p in zip(tests, adjusted, strict=True)
        ],
    )


def final_comparisons(results: Results) -> list[ComparisonRow]:
    """The comparisons that decide: the trained policy (untrained, where none was trained) at the turn that is used."""
    systems = {row.arm.system for row in results.rows}
    name = TRAINED if TRAINED in systems else UNTRAINED
    last = max((row.arm.turn for row in results.rows if row.arm.system == name), default=0)
    arm = Arm(name, min(results.turn or last, last) if name == TRAINED else last)
    baselines = [Arm(UNTRAINED, arm.turn), Arm(RAW, 0)] if name == TRAINED else [Arm(RAW, 0)]
    return [row for baseline in baselines if (row := results.comparison(arm, baseline))]


def headline(results: Results) -> str:
    """The outcome in one plain sentence: what the policy beats, and what it does not."""
    found = final_comparisons(results)
    if not found:
        return "No policy could be compared with the raw question."
    arm = found[0].arm
    if len({row.verdict for row in found}) == 1:
        joint = " or " if found[0].verdict == "does not beat" else " and "
        said = f"{found[0].verdict} {joint.join(_plain(row.baseline) for row in found)}"
    else:
        said = ", but ".join(f"{row.verdict} {_plain(row.baseline)}" for row in found)
    return f"At turn {arm.turn}, the {arm.system} policy {said}."


def explanation(results: Results, split: str) -> str:
    """The numbers behind the headline."""
    found = final_comparisons(results)
    if not found:
        return f"None of the {results.questions} {split} questions has a score for two systems."
    clauses = [
        f"{row.test.mean_a:.3f} against {row.test.mean_b:.3f} for {_plain(row.baseline)} (difference "
        f"{signed(row.test.difference)}, 95% interval {signed(row.test.low)} to {signed(row.test.high)}, "
        f"p {format_p(row.test.p)}, Holm-adjusted p {format_p(row.p_holm)})"
        for row in found
    ]
    said = f"Mean nDCG@10 over {found[0].test.n} {split} questions: {'; '.join(clauses)}."
    if results.sample is not None:
        said += f" The questions are a random sample: {results.sample}."
    left_out = max(row.test.left_out for row in found)
    if left_out:
        said += f" Left out because the environment did not answer: {left_out}."
    return said


def format_p(p: float) -> str:
    """A p-value for readers, with its relation: `= 0.031`, or `< 0.001`."""
    return f"= {p:.3f}" if p >= 0.001 else "< 0.001"


def signed(value: float) -> str:
    """Three decimals with + or a true minus sign; a value that rounds to zero has neither."""
    text = f"{value:+.3f}".replace("-", "−")
    return "0.000" if text[1:] == "0.000" else text


def _plain(arm: Arm) -> str:
    return "the raw question" if arm.system == RAW else f"the {arm.system} policy"


def _pairs(arms: Sequence[Arm]) -> list[tuple[Arm, Arm]]:
    raw = Arm(RAW, 0)
    against_raw = [(arm, raw) for arm in arms if arm != raw and raw in arms]
    against_untrained = [
        (arm, Arm(UNTRAINED, arm.turn)) for arm in arms if arm.system == TRAINED and Arm(UNTRAINED, arm.turn) in arms
    ]
    return against_raw + against_untrained


def _row(arm: Arm, records: Sequence[EvalRecord], questions: int, resamples: int, seed: int) -> ArmRow:
    values = {name: [v for record in records if (v := record.metrics[name]) is not None] for name in METRICS}
    main = values[MAIN_METRIC]
    low, high = bootstrap_ci(main, resamples, seed) if main else (None, None)
    return ArmRow(
        arm=arm,
        n=len(main),
        unscorable=questions - len(main),
        metrics={name: _mean(found) if found else None for name, found in values.items()},
        low=low,
        high=high,
        calls=arm.turn,
        searches=_mean([record.searches for record in records]),
        tokens=known_mean([record.tokens for record in records]),
        prompt_tokens=known_mean([record.prompt_tokens for record in records]),
        format_ok=_mean([record.format_ok for record in records]),
    )


def known_mean(values: Sequence[int | None]) -> float | None:
    """The mean; None where one of the values is not known, for the others may be no sample of all."""
    known = [value for value in values if value is not None]
    return _mean(known) if len(known) == len(values) else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
