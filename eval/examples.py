"""Example rewrites for the page, chosen by a fixed rule, and the differences of all questions."""

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from ..data.sampling import spread
from .records import EvalRecord
from .results import Example, Examples, Side
from .table import Arm

EXAMPLES = 12
"""Rows of one table: a third gains, a third losses, a third unchanged."""
CHANGES = 300
"""The most differences that are listed: the largest."""
DOCUMENTS = 5
"""Documents shown of a ranking."""
RULE = (
    "Chosen by a fixed rule, not by hand: a third of the rows are the largest gains in {metric} of {after} over "
    "{before}, a third the largest losses, a third unchanged questions at even distances through the split; equal "
    "values in the order of the split. Of all {total} questions that both have a score for, {gained} gained, {lost} "
    "lost and {unchanged} stayed the same."
)


def choose_examples(
    frame: pd.DataFrame,
    records: Iterable[EvalRecord],
    arms: Mapping[str, Arm],
    metric: str,
    title: str,
    relevant: Mapping[str, Mapping[str, int]] | None = None,
    count: int = EXAMPLES,
) -> Examples | None:
    """Choose up to `count` questions, a third of each group, by the change of the last arm from the one before.

    `frame` and `records` are those of one dataset in one environment, `arms` the compared arms by label, `relevant` the
    grades of documents by question. None without a question that both have a score for.
    """
    labels = list(arms)
    scores = [frame.xs(tuple(arm), level=("system", "turn"))[metric].droplevel([0, 1]) for arm in arms.values()]
    before, after = scores[-2], scores[-1].reindex(scores[-2].index)
    change = (after - before).round(9).dropna()  # floating-point noise must not break ties
    if change.empty:
        return None
    gained = change[change > 0].sort_values(ascending=False, kind="stable")
    lost = change[change < 0].sort_values(kind="stable")
    unchanged = change[change == 0]
    sizes = [count // 3 + (group < count % 3) for group in range(3)]
    chosen = [*gained.index[: sizes[0]], *lost.index[: sizes[1]], *spread(list(unchanged.index), sizes[2])]
    first = {(record.system, record.turn, record.question_id): record for record in records if record.sample == 0}
    texts = {record.question_id: record.display_text for record in first.values()}
    rows = [
        Example(
            question=texts[question],
            change=float(change[question]),
            sides=[
                _side(first.get((*arm, question)), values.get(question))
                for arm, values in zip(arms.values(), scores, strict=True)
            ],
            relevant=tuple(document for document, grade in (relevant or {}).get(question, {}).items() if grade > 0),
        )
        for question in chosen
    ]
    largest = change[change != 0].sort_values(key=abs, ascending=False, kind="stable")[:CHANGES]
    differences = largest.sort_values(ascending=False, kind="stable").index
    rule = RULE.format(
        metric=metric,
        after=labels[-1],
        before=labels[-2],
        total=len(change),
        gained=len(gained),
        lost=len(lost),
        unchanged=len(unchanged),
    )
    changes = [(texts[question], float(before[question]), float(after[question])) for question in differences]
    return Examples(title, labels, rule, rows, changes)


def _side(record: EvalRecord | None, score: float | None) -> Side:
    rewrites: Sequence[str] = record.rewrites if record is not None and record.turn else ()
    ranking = record.ranking[:DOCUMENTS] if record is not None else ()
    value = float(score) if score is not None and score == score else None
    return Side(tuple(rewrites), value, record is None or record.format_ok, tuple(ranking))
