"""Evaluation records as one long DataFrame, which all tables, examples and figures are computed from.

One row per dataset, environment, system, turn and question, with the means over the samples of the answer. Every
question that was asked has a row; what failed or never came is NaN there, and is never 0.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import pandas as pd

from ..data.leakage import words
from ..rewriters.case import repeats
from .records import RAW, EvalRecord
from .table import COSTS, FALL_BACK, SHARES

KEYS = ["dataset", "environment", "system", "turn"]


def frame_of(
    records: Iterable[EvalRecord],
    questions: Mapping[str, Sequence[str]],
    metrics: Sequence[str],
    *,
    samples: Mapping[str, int] | None = None,
    parts: Collection[str] = (),
) -> pd.DataFrame:
    """The frame, indexed by KEYS and "question".

    `questions` are the ids of all that were asked, by dataset; `samples` the answers per question of systems that
    sample: a question has a score if every sample has one. Columns are the metrics, FALL_BACK, SHARES, COSTS, `answers`
    (the number of records) and `part`: for datasets in `parts` the beginning of the question id, PART/…, else "".
    """
    records = list(records)
    raw = {
        (record.dataset, record.environment, record.question_id): record.metrics.get(metrics[0])
        for record in records
        if record.system == RAW
    }
    rows = [
        (
            record.dataset,
            record.environment,
            record.system,
            record.turn,
            record.question_id,
            *map(record.metrics.get, metrics),
            record.metrics.get(metrics[0])
            if record.format_ok
            else raw.get((record.dataset, record.environment, record.question_id)),
            record.format_ok,
            repeats(record.rewrites, {words(record.question)}) if record.rewrites and record.turn else None,
            record.cut,
            None if record.truncated is None else record.truncated > 0,
            record.unsearched,
            record.calls,
            record.searches,
            record.prompt_tokens,
            record.tokens,
            record.seconds,
        )
        for record in records
    ]
    index, values = [*KEYS, "question"], [*metrics, FALL_BACK, *SHARES, *COSTS]
    table = pd.DataFrame(rows, columns=[*index, *values]).astype(dict.fromkeys(values, float))
    grouped = table.groupby(index, sort=False)
    frame, present, answers = grouped.mean(), grouped.count(), grouped.size()
    expected = answers.index.get_level_values("system").map(lambda name: (samples or {}).get(name, 1)).to_numpy()
    unknown = present.ne(answers, axis=0) & ~present.columns.isin(["repeats", "truncated"])
    unknown[list(metrics)] |= (answers.to_numpy() != expected)[:, None]
    frame = frame.mask(unknown).assign(answers=answers)
    arms = answers.index.droplevel("question").unique()
    expected_rows = [(*arm, question) for arm in arms for question in questions[arm[0]]]
    frame = frame.reindex(pd.MultiIndex.from_frame(pd.DataFrame(expected_rows, columns=index))).fillna({"answers": 0})
    return frame.assign(part=[key[-1].partition("/")[0] if key[0] in parts else "" for key in expected_rows])


def select(frame: pd.DataFrame, **keys: object) -> pd.DataFrame:
    """The rows whose index levels have these values."""
    for level, value in keys.items():
        frame = frame[frame.index.get_level_values(level) == value]
    return frame
