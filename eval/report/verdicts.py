"""The tables of an evaluation in words: what beats the raw question, by Holm-adjusted p, and what does not.

A row *beats* or *is worse than* the baseline only where the adjusted p is below ALPHA; everything else *does not differ
significantly*, however large the difference looks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ...configs.evaluation import BEST_FREE, RAW, SpecConfig
from ..spec_tables import label, phrase
from ..table import Comparison, Table


@dataclass(frozen=True, slots=True)
class TableVerdict:
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


def verdicts(spec: SpecConfig, tables: Sequence[Table]) -> list[TableVerdict]:
    """One verdict per table and environment with a comparison."""
    return [
        verdict
        for table in tables
        for environment in table.environments
        if (verdict := _verdict(spec, table, environment)) is not None
    ]


def headline(outcomes: Sequence[TableVerdict], spec: SpecConfig, tables: Sequence[Table]) -> tuple[str, str]:
    """The outcome in one sentence, and its mood. `outcomes` and `tables`: of single datasets or parts, not averages."""
    baseline = phrase(main_baseline(spec))
    if not outcomes and (only := _raw_alone(spec.metrics[0], tables)):
        return only, "mixed"
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


def _raw_alone(metric: str, tables: Sequence[Table]) -> str:
    """The figures of the raw question where nothing else ran; "" where something else did, or nothing has a score."""
    if any(row.arm.system != RAW for table in tables for row in table.rows):
        return ""
    means = [
        (mean, f"on {table.title} in {environment}")
        for table in tables
        for row in table.rows
        for environment, score in row.scores.items()
        if score is not None and (mean := score.metrics[metric]) is not None
    ]
    if not means:
        return ""
    if len(means) == 1:
        return f"Only the raw question was evaluated: {metric} is {means[0][0]:.3f} {means[0][1]}."
    low, high = min(means), max(means)
    ends = f"{low[0]:.3f} ({low[1]}) and {high[0]:.3f} ({high[1]})"
    return f"Only the raw question was evaluated: {metric} is between {ends}."


def _verdict(spec: SpecConfig, table: Table, environment: str) -> TableVerdict | None:
    main = main_baseline(spec)
    statements: list[tuple[str, list[str]]] = []
    beaten = undercut = False
    for name in [*sorted(spec.baselines, key=lambda name: name != main), BEST_FREE]:
        rows = [row for row in table.comparisons if row.environment == environment and row.baseline.system == name]
        if not rows:
            continue
        statements += _statements(spec, rows)
        if name == main:
            beaten, undercut = (any(row.outcome == outcome for row in rows) for outcome in ("better", "worse"))
    return TableVerdict(table.title, environment, beaten, undercut, statements) if statements else None


def _statements(spec: SpecConfig, rows: Sequence[Comparison]) -> list[tuple[str, list[str]]]:
    """The statements about all comparisons with one baseline."""
    better, worse, same = (
        sorted((row for row in rows if row.outcome == outcome), key=lambda row: -abs(row.test.difference))
        for outcome in ("better", "worse", "same")
    )
    baseline = rows[0].baseline
    reference = phrase(baseline.system) if baseline.system in (RAW, BEST_FREE) else label(spec, baseline)

    def describe(row: Comparison) -> str:
        return f"{label(spec, row.arm)}: {row.figures(reference)}, n = {row.test.n}"

    statements = (
        [(f"Better than {reference}:", list(map(describe, better)))]
        if better
        else [(f"Nothing beats {reference}.", [])]
    )
    if worse:
        statements.append((f"Worse than {reference}:", list(map(describe, worse))))
    if same:
        best = max(same, key=lambda row: row.test.difference)
        if len(same) == 1:
            claim = f"{'One other' if better or worse else 'The only other row'} does not differ significantly:"
        else:
            claim = f"{len(same)} others do not differ" if better or worse else f"None of {len(same)} differs"
            claim += " significantly; the best of them:"
        statements.append((claim, [describe(best)]))
    return statements
