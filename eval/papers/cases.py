"""One question step by step, as a paper's case study shows it: what was written, searched, found and answered.

No metric is computed from it. The question is the task's first one that all named systems answered, so it is not
hand-picked; a case may ask that some of them answer it rightly, and others wrongly.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...configs.paper import PaperCase, PaperConfig
from ...data.published import PublishedCase
from .records import PaperRecord

HEAD = ("", "system", "step", "text")
_MAX_CHARACTERS = 300
"""Characters of a text that a cell shows."""
_NO_QUESTION = "(none of those that were asked fits)"
_HYPOTHESES = {"H_plus": "target hypothesis", "H_minus": "mimic hypothesis"}


@dataclass(frozen=True, slots=True)
class CaseRow:
    """One system on the question of a case study."""

    title: str
    system: str
    question: str
    steps: Sequence[tuple[str, str]]
    """What was written, searched and found, in order: name of the step and text. The last one is the answer."""


def case_rows(paper: PaperConfig, cells: Mapping[tuple[str, str], Mapping[str, PaperRecord]]) -> list[CaseRow]:
    """The rows of all case studies; none for one without a question that fits."""
    rows: list[CaseRow] = []
    for case in paper.cases:
        answered = {
            system: {
                question: record
                for question, record in cells.get((case.task, system), {}).items()
                if record.answer is not None and not record.failure and _fits(case, system, record)
            }
            for system in case.rows
        }
        first, *remaining = answered.values()
        shared = next((question for question in first if all(question in side for side in remaining)), None)
        if shared is not None:
            rows += [
                CaseRow(case.title, system, records[shared].question, tuple(_steps(records[shared])))
                for system, records in answered.items()
            ]
    return rows


def case_lines(
    case: PaperCase, label: str, rows: Sequence[CaseRow], published_cases: Sequence[PublishedCase]
) -> list[list[str]]:
    """The cells of one case study, ours first."""
    case_rows = [row for row in rows if row.title == case.title]
    lines = [[label, "", "question", case_rows[0].question if case_rows else _NO_QUESTION]]
    lines += [[label, row.system, name, text] for row in case_rows for name, text in row.steps]
    for published in published_cases:
        if published.table == case.published:
            lines.append(["paper", "", "question", f"{published.question} (right: {', '.join(published.answers)})"])
            lines += [["paper", row.system, name, text] for row in published.rows for name, text in row.steps.items()]
    return [[_short(cell) for cell in line] for line in lines]


def _fits(case: PaperCase, system: str, record: PaperRecord) -> bool:
    score = record.scores.get("accuracy")
    return (system not in case.right or score == 1) and (system not in case.wrong or score == 0)


def _steps(record: PaperRecord) -> Iterator[tuple[str, str]]:
    notes = record.notes
    yield from ((label, str(notes[name])) for name, label in _HYPOTHESES.items() if notes.get(name))
    for name, value in (notes.get("first_stage") or {}).items():
        yield name.replace("_", " "), "; ".join(value) if isinstance(value, list | tuple) else str(value)
    yield from _numbered("query", notes.get("rewrites") or ())
    yield from (("first answer", str(draft)) for draft in (notes.get("drafts") or ())[:1])
    judgements = notes.get("judgements") or []
    if missing := [piece for judgement in judgements if judgement["judge"] for piece in judgement["missing_knowledge"]]:
        yield "missing knowledge", "; ".join(missing)
    yield from _numbered("query", [query for queries in notes.get("queries") or () for query in queries])
    yield from _numbered("document", record.shown)
    verdict = "" if "accuracy" not in record.scores else " (right)" if record.scores["accuracy"] == 1 else " (wrong)"
    yield "answer", f"{record.answer}{verdict}"


def _numbered(name: str, texts: Iterable[object]) -> Iterator[tuple[str, str]]:
    return ((f"{name} {number}", str(text)) for number, text in enumerate(texts, start=1))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_CHARACTERS else f"{line[:_MAX_CHARACTERS]}…"
