"""What answers look like, whatever they score: their format, their length, and whether they say anything new.

A mean hides a policy that repeats every question; so these shares stand beside it in every table.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..data.leakage import words
from ..rewriters.repeats import repeats
from .records import EvalRecord


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Shares of the answers of one system at one turn."""

    format_ok: float
    """In the asked format."""
    repeats: float | None
    """Of those that hold a rewrite: all rewrites have the words of the question, case and punctuation aside. None where
    no model wrote, or none holds a rewrite."""
    cut: float | None
    """Cut at the token limit; None where that is not known of every answer."""


def behaviour(records: Sequence[EvalRecord]) -> Behaviour:
    """The shares among some records, at least one."""
    by_model = [record for record in records if record.turn]
    rewritten = [record for record in by_model if record.rewrites]
    known = [record.cut for record in by_model if record.cut is not None]
    return Behaviour(
        format_ok=_share([record.format_ok for record in records]) or 0.0,
        repeats=_share([repeats(record.rewrites, {words(record.question)}) for record in rewritten]),
        cut=_share(known) if len(known) == len(by_model) else None,
    )


def with_fall_back(record: EvalRecord, raw: Mapping[str, EvalRecord], metric: str) -> float | None:
    """The score of an answer where one whose format failed is replaced by the question as it stands.

    `raw` are the records of the raw questions by question id. None where the search that counts has no score.
    """
    if record.format_ok:
        return record.metrics[metric]
    question = raw.get(record.question_id)
    return question.metrics[metric] if question is not None else None


def percent(share: float | None) -> str:
    """A share for readers."""
    return "–" if share is None else f"{100 * share:.1f}%"


def _share(values: Sequence[bool]) -> float | None:
    return math.fsum(values) / len(values) if values else None
