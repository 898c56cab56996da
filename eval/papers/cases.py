"""One question step by step, as a paper's case study shows it: the first answer, what was missing, the final answer.

No metric is computed from it. The question is the task's first one that all named systems answered, so it is not
hand-picked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...configs.paper import PaperCase, PaperConfig
from ...data.published import PublishedCase
from .records import PaperRecord

HEAD = ("", "system", "question", "first answer", "missing knowledge", "final answer")
_MAX_CHARACTERS = 300
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
        answered = [
            {
                question: record
                for question, record in cells.get((case.task, system), {}).items()
                if record.answer is not None and not record.failure
            }
            for system in case.rows
        ]
        shared = next((question for question in answered[0] if all(question in side for side in answered)), None)
        if shared is not None:
            rows += [_row(case, system, records[shared]) for system, records in zip(case.rows, answered, strict=True)]
    return rows


def case_lines(
    case: PaperCase, label: str, rows: Sequence[CaseRow], published_cases: Sequence[PublishedCase]
) -> list[list[str]]:
    """The cells of one case study, ours first."""
    lines = [
        [label, row.system, row.question, row.first, "; ".join(row.missing), row.final]
        for row in rows
        if row.title == case.title
    ]
    for published in published_cases:
        if published.table == case.published:
            question = f"{published.question} (right: {', '.join(published.answers)})"
            lines += [
                ["paper", row.system, question, row.first, "; ".join(row.missing), row.final] for row in published.rows
            ]
    return [[_short(cell) for cell in line] for line in lines]


def _row(case: PaperCase, system: str, record: PaperRecord) -> CaseRow:
    drafts = record.notes.get("drafts") or [""]
    judgements = record.notes.get("judgements") or []
    missing = [piece for judgement in judgements if judgement["judge"] for piece in judgement["missing_knowledge"]]
    return CaseRow(case.title, system, record.question, str(drafts[0]), missing, record.answer or "")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_CHARACTERS else f"{line[:_MAX_CHARACTERS]}…"
