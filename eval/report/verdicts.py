"""The tables of an evaluation in words: what beats the raw question, by Holm-adjusted p, and what does not.

A row *beats* or *is worse than* the baseline only where the adjusted p is below ALPHA; everything else *does not differ
significantly*, however large the difference looks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ...configs.evaluation import BEST_FREE, RAW, PlanConfig
from ..grid.table import GridComparison, GridTable, label
from ..table import Arm, format_p, signed


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of one table on one environment."""

    table: str
    environment: str
    beaten: bool
    """Whether a row is significantly better than the main baseline."""
    undercut: bool
    """Whether a row is significantly worse than the main baseline."""
    statements: list[tuple[str, list[str]]]
    """(Statement, rows that it is about, as text)."""

    @property
    def mood(self) -> str:
        """`good` if a row is better and none is worse, `bad` if the reverse holds, else `mixed`."""
        return "mixed" if self.beaten == self.undercut else "good" if self.beaten else "bad"


def main_baseline(plan: PlanConfig) -> str:
    """The baseline that verdicts refer to: the raw question, or the plan's first baseline if raw is not among them."""
    return RAW if RAW in plan.baselines else plan.baselines[0]


def verdicts(plan: PlanConfig, tables: Sequence[GridTable]) -> list[Verdict]:
    """One verdict per table and environment with a comparison."""
    return [
        verdict
        for table in tables
        for environment in table.environments
        if (verdict := _verdict(plan, table, environment)) is not None
    ]


def headline(outcomes: Sequence[Verdict], plan: PlanConfig) -> tuple[str, str]:
    """The outcome in one sentence, and its mood. `outcomes`: verdicts on single datasets or parts, not averages."""
    baseline = _phrase(main_baseline(plan))
    if not outcomes:
        return f"No system could be compared with {baseline}.", "mixed"
    beaten = sum(verdict.beaten for verdict in outcomes)
    moods = {verdict.mood for verdict in outcomes}
    mood = moods.pop() if len(moods) == 1 else "mixed"
    subject = "Something" if beaten else "Nothing"
    if len(outcomes) == 1:
        return f"{subject} beats {baseline} on {outcomes[0].table} in {outcomes[0].environment}.", mood
    combinations = f"{len(outcomes)} combinations of dataset and environment"
    share = "any of" if not beaten else "all" if beaten == len(outcomes) else f"{beaten} of"
    return f"{subject} beats {baseline} in {share} {combinations}.", mood


def _verdict(plan: PlanConfig, table: GridTable, environment: str) -> Verdict | None:
    main = main_baseline(plan)
    statements: list[tuple[str, list[str]]] = []
    beaten = undercut = False
    for name in [*sorted(plan.baselines, key=lambda name: name != main), BEST_FREE]:
        rows = [row for row in table.comparisons if row.environment == environment and row.baseline.system == name]
        if not rows:
            continue
        decided = sorted((row for row in rows if row.significant), key=lambda row: -abs(row.test.difference))
        better = [row for row in decided if row.test.difference > 0]
        worse = [row for row in decided if row.test.difference < 0]
        same = [row for row in rows if row not in better and row not in worse]
        statements += _statements(plan, rows[0].baseline, better, worse, same)
        if name == main:
            beaten, undercut = bool(better), bool(worse)
    return Verdict(table.title, environment, beaten, undercut, statements) if statements else None


def _statements(
    plan: PlanConfig,
    baseline: Arm,
    better: Sequence[GridComparison],
    worse: Sequence[GridComparison],
    same: Sequence[GridComparison],
) -> list[tuple[str, list[str]]]:
    reference = _phrase(baseline.system) if baseline.system in (RAW, BEST_FREE) else label(plan, baseline)
    statements = (
        [(f"Better than {reference}:", [_describe(plan, row) for row in better])]
        if better
        else [(f"Nothing beats {reference}.", [])]
    )
    if worse:
        statements.append((f"Worse than {reference}:", [_describe(plan, row) for row in worse]))
    if same:
        best = max(same, key=lambda row: row.test.difference)
        if len(same) == 1:
            claim = f"{'One other' if better or worse else 'The only other row'} does not differ significantly:"
        else:
            claim = f"{len(same)} others do not differ" if better or worse else f"None of {len(same)} differs"
            claim += " significantly; the best of them:"
        statements.append((claim, [_describe(plan, best)]))
    return statements


def _describe(plan: PlanConfig, row: GridComparison) -> str:
    test = row.test
    return (
        f"{label(plan, row.arm)}, {test.mean_a:.3f} against {test.mean_b:.3f} ({signed(test.difference)}, 95% interval "
        f"{signed(test.low)} to {signed(test.high)}, Holm-adjusted p {format_p(row.p_holm)}, n = {test.n})"
    )


def _phrase(system: str) -> str:
    return {RAW: "the raw question", BEST_FREE: "the best training-free baseline"}.get(system, system)
