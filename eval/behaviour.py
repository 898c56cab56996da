"""Properties of answers besides their score: format, truncation, and whether rewrites only repeat the question.

A mean score hides a policy that repeats every question, so every table shows these shares next to it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..data.leakage import words
from ..rewriters.repeats import repeats
from .records import EvalRecord

CUT_OFTEN = 0.1
"""From this share of answers cut at their token limit on, a table carries a warning."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Shares of the answers of one system at one turn."""

    format_ok: float
    """Answers in the requested format."""
    repeats: float | None
    """Answers whose rewrites all have the words of the question, ignoring case and punctuation, among those with a
    rewrite. None where no model wrote, or no answer has a rewrite."""
    cut: float | None
    """Answers cut at the token limit; None where this is unknown for any answer."""


def behaviour(records: Sequence[EvalRecord]) -> Behaviour:
    """The shares over `records`, of which there must be at least one."""
    by_model = [record for record in records if record.turn]
    rewritten = [record for record in by_model if record.rewrites]
    cut_flags = [record.cut for record in by_model if record.cut is not None]
    return Behaviour(
        format_ok=_share([record.format_ok for record in records]) or 0.0,
        repeats=_share([repeats(record.rewrites, {words(record.question)}) for record in rewritten]),
        cut=_share(cut_flags) if len(cut_flags) == len(by_model) else None,
    )


def with_fall_back(record: EvalRecord, raw: Mapping[str, EvalRecord], metric: str) -> float | None:
    """The score of an answer, or that of the raw question where the answer's format failed.

    `raw` has the records of the raw questions by question id. None where the search that counts has no score.
    """
    if record.format_ok:
        return record.metrics[metric]
    question = raw.get(record.question_id)
    return question.metrics[metric] if question is not None else None


def percent(share: float | None) -> str:
    """A share as display text."""
    return "–" if share is None else f"{100 * share:.1f}%"


def cut_warning(label: str, cut: float | None, remedy: str) -> list[str]:
    """The note on a row whose answers were often cut at their token limit, with what to do; none below `CUT_OFTEN`."""
    if (cut or 0) < CUT_OFTEN:
        return []
    return [
        f"{label}: {percent(cut)} of its answers were cut at their token limit, so it is judged by unfinished text. "
        f"{remedy}"
    ]


def _share(values: Sequence[bool]) -> float | None:
    return math.fsum(values) / len(values) if values else None
