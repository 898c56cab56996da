"""Example rewrites for the report, chosen by a fixed rule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...data.sampling import spread
from ..table import Answers

EXAMPLES = 12
"""Rows of one table: a third gains, a third losses, a third unchanged."""
RULE = (
    "Chosen by a fixed rule, not by hand: a third of the rows are the largest gains in {metric} of {after} over "
    "{before}, a third the largest losses, a third unchanged questions at even distances through the split; equal "
    "values in the order of the split. Where a group has too few questions its rows stay empty. Of all {total} "
    "questions that both have a score for, {gained} gained, {lost} lost and {unchanged} stayed the same."
)
_DIGITS = 9
"""Decimals that a change is rounded to, so that floating-point noise does not break ties."""


@dataclass(frozen=True, slots=True)
class Side:
    """What one system wrote (its first sample), and its score."""

    rewrites: tuple[str, ...]
    score: float | None
    format_ok: bool


@dataclass(frozen=True, slots=True)
class Example:
    """One question, with the result of every compared system."""

    question: str
    change: float
    sides: Sequence[Side]
    """In the order of `Examples.labels`."""


@dataclass(frozen=True, slots=True)
class Examples:
    """The chosen rows, the systems they show, and the rule."""

    title: str
    labels: Sequence[str]
    rows: Sequence[Example]
    rule: str


def choose_examples(
    sides: Mapping[str, Answers], metric: str, title: str = "Rewrites before and after", count: int = EXAMPLES
) -> Examples:
    """Choose up to `count` questions, a third of each group, by the change of the last side from the one before.

    `sides` are the answers to the same questions by label, those of the raw questions first.
    """
    labels, answers = list(sides), list(sides.values())
    scores = [dict(zip(side.questions, side.scores(metric), strict=True)) for side in answers]
    changes = {
        question: round(after - before, _DIGITS)
        for question, after in scores[-1].items()
        if len(answers) > 1 and after is not None and (before := scores[-2].get(question)) is not None
    }
    gained = sorted((key for key, value in changes.items() if value > 0), key=lambda key: -changes[key])
    lost = sorted((key for key, value in changes.items() if value < 0), key=lambda key: changes[key])
    unchanged = [key for key, value in changes.items() if value == 0]
    sizes = [count // 3 + (part < count % 3) for part in range(3)]
    chosen = [*gained[: sizes[0]], *lost[: sizes[1]], *spread(unchanged, sizes[2])]
    records = [{record.question_id: record for record in reversed(side.records)} for side in answers]

    def side_of(number: int, question: str) -> Side:
        record = records[number].get(question)
        rewrites = record.rewrites if record is not None and record.turn else ()
        return Side(rewrites, scores[number].get(question), record is None or record.format_ok)

    rows = [
        Example(
            question=records[-1][question].display_text,
            change=changes[question],
            sides=[side_of(number, question) for number in range(len(answers))],
        )
        for question in chosen
    ]
    rule = RULE.format(
        metric=metric,
        after=labels[-1],
        before=labels[-2 if len(labels) > 1 else -1],
        total=len(changes),
        gained=len(gained),
        lost=len(lost),
        unchanged=len(unchanged),
    )
    return Examples(title, labels, rows, rule)
