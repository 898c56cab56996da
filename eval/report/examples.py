"""Example rewrites for the report, chosen by a fixed rule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...data.sampling import spread
from ..records import RAW, TRAINED, UNTRAINED, EvalRecord
from ..run_table import MAIN_METRIC, arms_of
from ..table import Arm

RULE = (
    "Chosen by a fixed rule, not by hand: a third of the rows are the largest gains in nDCG@10 of {after} over "
    "{before}, a third the largest losses, a third unchanged questions at even distances through the split; equal "
    "values in the order of the split. Where a group has too few questions its rows stay empty. Of all {total} "
    "questions that both have a score for, {gained} gained, {lost} lost and {unchanged} stayed the same."
)

_DIGITS = 9
"""Decimals that a change is rounded to."""


@dataclass(frozen=True, slots=True)
class Side:
    """One system's rewrites and the rank of its first relevant document."""

    rewrites: tuple[str, ...]
    rank: int | None
    """Rank of the first relevant document, from 1; None if none is in the top ten."""
    score: float
    format_ok: bool


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """One question, with the result of every compared arm."""

    group: str
    """`gain`, `loss` or `unchanged`."""
    question: str
    gold: str
    """Title of the best relevant document; "" if it is unknown."""
    change: float
    sides: tuple[Side, ...]
    """In the order of `Examples.arms`."""


@dataclass(frozen=True, slots=True)
class Examples:
    """The chosen rows, the arms they show, and the rule."""

    arms: tuple[Arm, ...]
    rows: list[BeforeAfter]
    rule: str


def choose_examples(records: Sequence[EvalRecord], count: int, gold: Mapping[str, str] | None = None) -> Examples:
    """Choose up to `count` questions, a third of each group, comparing the last turn of the last two systems.

    These are trained against untrained if both ran, else untrained against raw. `gold` maps question ids to titles.
    """
    arms = arms_of(records)
    compared = [Arm(RAW, 0)] + [
        _last(arms, name) for name in (UNTRAINED, TRAINED) if any(a.system == name for a in arms)
    ]
    cells = {(Arm(r.system, r.turn), r.question_id): r for r in records}
    changes: dict[str, float] = {}
    for question in dict.fromkeys(record.question_id for record in records):
        arm_records = [cells.get((arm, question)) for arm in compared]
        scores = [record.metrics[MAIN_METRIC] for record in arm_records if record is not None]
        if len(compared) > 1 and len(scores) == len(compared) and None not in scores:
            changes[question] = change(scores[-1] or 0.0, scores[-2] or 0.0)
    gained, lost, unchanged = by_change(changes)
    sizes = [count // 3 + (part < count % 3) for part in range(3)]
    groups = (("gain", gained[: sizes[0]]), ("loss", lost[: sizes[1]]), ("unchanged", spread(unchanged, sizes[2])))
    rows = [
        BeforeAfter(
            group=group,
            question=cells[(compared[0], question)].display_text,
            gold=(gold or {}).get(question, ""),
            change=changes[question],
            sides=tuple(_side(cells[(arm, question)]) for arm in compared),
        )
        for group, chosen in groups
        for question in chosen
    ]
    rule = RULE.format(
        after=compared[-1].phrase,
        before=compared[-2 if len(compared) > 1 else -1].phrase,
        total=len(changes),
        gained=len(gained),
        lost=len(lost),
        unchanged=len(unchanged),
    )
    return Examples(arms=tuple(compared), rows=rows, rule=rule)


def change(score: float, baseline: float) -> float:
    """The difference of two scores, rounded so that floating-point noise does not break ties."""
    return round(float(score) - float(baseline), _DIGITS)


def by_change(changes: Mapping[str, float]) -> tuple[list[str], list[str], list[str]]:
    """Keys that gained and keys that lost, the largest changes first, and unchanged keys; ties keep their order."""
    gained = sorted((key for key, value in changes.items() if value > 0), key=lambda key: -changes[key])
    lost = sorted((key for key, value in changes.items() if value < 0), key=lambda key: changes[key])
    return gained, lost, [key for key, value in changes.items() if value == 0]


def gold_titles(qrels: Mapping[str, Mapping[str, int]], titles: Mapping[str, str]) -> dict[str, str]:
    """Title of each question's best document: highest grade, then smallest id. Without a title, its id."""
    best = {question: min(grades, key=lambda doc: (-grades[doc], doc)) for question, grades in qrels.items() if grades}
    return {question: titles.get(document) or document for question, document in best.items()}


def _last(arms: Sequence[Arm], system: str) -> Arm:
    return max(arm for arm in arms if arm.system == system)


def _side(record: EvalRecord) -> Side:
    reciprocal = record.metrics["mrr@10"] or 0.0
    return Side(
        rewrites=record.rewrites,
        rank=round(1 / reciprocal) if reciprocal > 0 else None,
        score=record.metrics[MAIN_METRIC] or 0.0,
        format_ok=record.format_ok,
    )
