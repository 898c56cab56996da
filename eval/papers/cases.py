"""One question step by step, as a paper's case study shows it: the first answer, what was missing, the final answer.

No figure comes of it. The question is the first of the task that every named system has an answer to, so nobody chose
it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...configs.paper import PaperCase, PaperConfig
from ...data.published import PublishedCase
from .records import PaperRecord

HEAD = ("", "system", "question", "first answer", "missing knowledge", "final answer")
_SHOWN = 300
"""Characters of a text that a cell shows."""


@dataclass(frozen=True, slots=True)
class CaseRow:
    """One system on the question of a case study."""

    title: str
    system: str
    question: str
    first: str
    missing: Sequence[str]
    final: str


def case_rows(paper: PaperConfig, cells: Mapping[tuple[str, str], Mapping[str, PaperRecord]]) -> list[CaseRow]:
    """The rows of all case studies; none for one without a question that all its systems answered."""
    rows: list[CaseRow] = []
    for case in paper.cases:
        own = {system: cells.get((case.task, system), {}) for system in case.rows}
        first = next(iter(own.values()), {})
        shared = (one for one in first if all(_answer(records.get(one)) is not None for records in own.values()))
        chosen = next(shared, None)
        if chosen is not None:
            rows += [_row(case, system, records[chosen]) for system, records in own.items()]
    return rows


def case_lines(case: PaperCase, here: str, rows: Sequence[CaseRow], theirs: Sequence[PublishedCase]) -> list[list[str]]:
    """The cells of one case study, ours first."""
    ours = [
        [here, row.system, row.question, row.first, "; ".join(row.missing), row.final]
        for row in rows
        if row.title == case.title
    ]
    paper = [
        [
            "paper",
            row.system,
            f"{one.question} (right: {', '.join(one.answers)})",
            row.first,
            "; ".join(row.missing),
            row.final,
        ]
        for one in theirs
        if one.table == case.published
        for row in one.rows
    ]
    return [[_short(cell) for cell in line] for line in (*ours, *paper)]


def _row(case: PaperCase, system: str, record: PaperRecord) -> CaseRow:
    drafts = record.notes.get("drafts") or [""]
    judgements = record.notes.get("judgements") or []
    missing = [piece for one in judgements if one["judge"] for piece in one["missing_knowledge"]]
    return CaseRow(case.title, system, record.question, str(drafts[0]), missing, _answer(record) or "")


def _answer(record: PaperRecord | None) -> str | None:
    return record.answer if record is not None and not record.failure else None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
