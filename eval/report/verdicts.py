"""The tables of an evaluation in words: what beats the raw question, by Holm-adjusted p, and what does not.

A row *beats* or *is worse than* the baseline only where the adjusted p is below ALPHA; everything else *does not differ
significantly*, however large the difference looks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ...configs.evaluation import BEST_FREE, RAW, SpecConfig
from ..spec_tables import label
from ..table import Arm, Comparison, Table, format_p, signed


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


def main_baseline(spec: SpecConfig) -> str:
    """The baseline that verdicts refer to: the raw question, or the spec's first baseline if raw is not among them."""
    return RAW if RAW in spec.baselines else spec.baselines[0]


def verdicts(spec: SpecConfig, tables: Sequence[Table]) -> list[Verdict]:
    """One verdict per table and environment with a comparison."""
    return [
        verdict
        for table in tables
        for environment in table.environments
        if (verdict := _verdict(spec, table, environment)) is not None
    ]


def headline(outcomes: Sequence[Verdict], spec: SpecConfig) -> tuple[str, str]:
    """The outcome in one sentence, and its mood. `outcomes`: verdicts on single datasets or parts, not averages."""
    baseline = _phrase(main_baseline(spec))
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


def _verdict(spec: SpecConfig, table: Table, environment: str) -> Verdict | None:
    main = main_baseline(spec)
    statements: list[tuple[str, list[str]]] = []
    beaten = undercut = False
    for name in [*sorted(spec.baselines, key=lambda name: name != main), BEST_FREE]:
        rows = [row for row in table.comparisons if row.environment == environment and row.baseline.system == name]
        if not rows:
            continue
        decided = sorted((row for row in rows if row.significant), key=lambda row: -abs(row.test.difference))
        better = [row for row in decided if row.test.difference > 0]
        worse = [row for row in decided if row.test.difference < 0]
        same = [row for row in rows if row not in better and row not in worse]
        statements += _statements(spec, rows[0].baseline, better, worse, same)
        if name == main:
            beaten, undercut = bool(better), bool(worse)
    return Verdict(table.title, environment, beaten, undercut, statements) if statements else None


def _statements(
    spec: SpecConfig,
    baseline: Arm,
    better: Sequence[Comparison],
    worse: Sequence[Comparison],
    same: Sequence[Comparison],
) -> list[tuple[str, list[str]]]:
    reference = _phrase(baseline.system) if baseline.system in (RAW, BEST_FREE) else label(spec, baseline)
    statements = (
        [(f"Better than {reference}:", [_describe(spec, row) for row in better])]
        if better
        else [(f"Nothing beats {reference}.", [])]
    )
    if worse:
        statements.append((f"Worse than {reference}:", [_describe(spec, row) for row in worse]))
    if same:
        best = max(same, key=lambda row: row.test.difference)
        if len(same) == 1:
            claim = f"{'One other' if better or worse else 'The only other row'} does not differ significantly:"
        else:
            claim = f"{len(same)} others do not differ" if better or worse else f"None of {len(same)} differs"
            claim += " significantly; the best of them:"
        statements.append((claim, [_describe(spec, best)]))
    return statements


def _describe(spec: SpecConfig, row: Comparison) -> str:
    test = row.test
    return (
        f"{label(spec, row.arm)}, {test.mean_a:.3f} against {test.mean_b:.3f} ({signed(test.difference)}, 95% interval "
        f"{signed(test.low)} to {signed(test.high)}, Holm-adjusted p {format_p(row.p_holm)}, n = {test.n})"
    )


def _phrase(system: str) -> str:
    return {RAW: "the raw question", BEST_FREE: "the best training-free baseline"}.get(system, system)
