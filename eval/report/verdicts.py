"""What the tables of an evaluation say, in words: what beats the raw question, by Holm-adjusted p, and what does not.

A row *beats* or *is worse than* the baseline only where the adjusted p is below ALPHA; everything else *does not differ
significantly*, however large the difference looks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ...configs.evaluation import BEST_FREE, RAW, PlanConfig
from ..grid.table import Comparison, GridTable, label
from ..table import Arm, format_p, signed


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one table says of one environment."""

    table: str
    environment: str
    beaten: bool
    """Whether something beats the main baseline."""
    undercut: bool
    """Whether something is worse than it."""
    statements: list[tuple[str, list[str]]]
    """Each with the rows that it is about, in figures."""

    @property
    def mood(self) -> str:
        """`good` where something is better and nothing worse, `bad` the other way round, else `mixed`."""
        return "mixed" if self.beaten == self.undercut else "good" if self.beaten else "bad"


def main_baseline(plan: PlanConfig) -> str:
    """What the verdict is about: the raw question, or the plan's first baseline where that is none of them."""
    return RAW if RAW in plan.baselines else plan.baselines[0]


def verdicts(plan: PlanConfig, tables: Sequence[GridTable]) -> list[Verdict]:
    """One for each table and environment that has anything to compare."""
    return [
        verdict
        for table in tables
        for environment in table.environments
        if (verdict := _verdict(plan, table, environment)) is not None
    ]


def headline(found: Sequence[Verdict], plan: PlanConfig) -> tuple[str, str]:
    """The outcome in one sentence, and its mood. `found` are the verdicts of single datasets or parts, not averages."""
    what = _phrase(main_baseline(plan))
    if not found:
        return f"No system could be compared with {what}.", "mixed"
    beaten = sum(verdict.beaten for verdict in found)
    moods = {verdict.mood for verdict in found}
    mood = moods.pop() if len(moods) == 1 else "mixed"
    who = "Something" if beaten else "Nothing"
    if len(found) == 1:
        return f"{who} beats {what} on {found[0].table} in {found[0].environment}.", mood
    of = f"{len(found)} combinations of dataset and environment"
    share = "any of" if not beaten else "all" if beaten == len(found) else f"{beaten} of"
    return f"{who} beats {what} in {share} {of}.", mood


def _verdict(plan: PlanConfig, table: GridTable, environment: str) -> Verdict | None:
    main = main_baseline(plan)
    statements: list[tuple[str, list[str]]] = []
    beaten = undercut = False
    for name in [*sorted(plan.baselines, key=lambda name: name != main), BEST_FREE]:
        found = [row for row in table.comparisons if row.environment == environment and row.baseline.system == name]
        if not found:
            continue
        decided = sorted((row for row in found if row.significant), key=lambda row: -abs(row.test.difference))
        better = [row for row in decided if row.test.difference > 0]
        worse = [row for row in decided if row.test.difference < 0]
        same = [row for row in found if row not in better and row not in worse]
        statements += _statements(plan, found[0].baseline, better, worse, same)
        if name == main:
            beaten, undercut = bool(better), bool(worse)
    return Verdict(table.title, environment, beaten, undercut, statements) if statements else None


def _statements(
    plan: PlanConfig,
    baseline: Arm,
    better: Sequence[Comparison],
    worse: Sequence[Comparison],
    same: Sequence[Comparison],
) -> list[tuple[str, list[str]]]:
    what = _phrase(baseline.system) if baseline.system in (RAW, BEST_FREE) else label(plan, baseline)
    said = (
        [(f"Better than {what}:", [_told(plan, row) for row in better])] if better else [(f"Nothing beats {what}.", [])]
    )
    if worse:
        said.append((f"Worse than {what}:", [_told(plan, row) for row in worse]))
    if same:
        best = max(same, key=lambda row: row.test.difference)
        if len(same) == 1:
            claim = f"{'One other' if better or worse else 'The only other row'} does not differ significantly:"
        else:
            claim = f"{len(same)} others do not differ" if better or worse else f"None of {len(same)} differs"
            claim += " significantly; the best of them:"
        said.append((claim, [_told(plan, best)]))
    return said


def _told(plan: PlanConfig, row: Comparison) -> str:
    test = row.test
    return (
        f"{label(plan, row.arm)}, {test.mean_a:.3f} against {test.mean_b:.3f} ({signed(test.difference)}, 95% interval "
        f"{signed(test.low)} to {signed(test.high)}, Holm-adjusted p {format_p(row.p_holm)}, n = {test.n})"
    )


def _phrase(system: str) -> str:
    return {RAW: "the raw question", BEST_FREE: "the best training-free baseline"}.get(system, system)
