"""FinAgentBench (Choi et al. 2025) in its published form: one prompt per row, and grades by candidate number.

A prompt is parsed into its question and its candidates. Questions with equal texts are merged, candidates likewise,
and each pair of them keeps its highest grade (Yuan et al., appendix B). Each task has its own corpus: `chunks` ranks
passages of filings, `documents` ranks document types. Rows without grades add their candidates to the corpus, but no
question.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..errors import DataError
from .benchmark import Benchmark, splits_of
from .jsonl import read_records
from .rows import document_id, grade_of
from .types import Document, Question

Task = Literal["chunks", "documents"]
LICENCE = (
    "FinAgentBench: no licence is stated with the files that this was read from. Cite: Choi et al. FinAgentBench: A "
    "Benchmark Dataset for Agentic Retrieval in Financial Question Answering. 2025."
)

_QUESTION = "Question:"


class _Form(NamedTuple):
    """File names of a task, and the markers in its prompts."""

    files: str
    heading: str
    candidate: str
    ending: str


_FORMS = {
    "chunks": _Form("*chunk_ranking*.jsonl", "Text chunks:", "Chunk Index", "Task: Select and rank"),
    "documents": _Form(
        "*document_ranking*.jsonl", "Document Types to rank:", "Document Index", "Your response must be a list"
    ),
}


def open_finagentbench(path: str | Path, task: Task = "chunks") -> Benchmark:
    """Read the questions of a folder with the published JSON-lines files, or of one such file, as the test split.

    Raises DataError for a missing file, a prompt in another form, and an invalid grade.
    """
    form = _FORMS[task]
    files = _files(Path(path).expanduser(), task, form)
    questions: dict[str, Question] = {}
    qrels: dict[str, dict[str, int]] = {}
    unjudged = contradicting = 0
    for file, number, question, candidates, grades in _rows(files, form):
        if grades is None:
            unjudged += 1
            continue
        identifier = f"q{document_id(question)}"
        questions.setdefault(identifier, Question(identifier, question))
        judged = qrels.setdefault(identifier, {})
        for index, value in grades.items():
            if not index.isdecimal() or int(index) >= len(candidates):
                raise DataError(
                    f"{file}, line {number}: candidate {index!r} is graded, and the prompt has {len(candidates)}, from "
                    "0 on. The row is damaged; fetch the file again."
                )
            grade, document = grade_of(value, file, number), document_id(candidates[int(index)])
            contradicting += judged.get(document, grade) != grade
            judged[document] = max(grade, judged.get(document, grade))
    name = f"finagentbench/{task}"
    notes = []
    if unjudged:
        notes.append(f"{name}: {unjudged} rows have no grades: their candidates are in the corpus, nothing is asked.")
    if contradicting:
        notes.append(f"{name}: {contradicting} pairs of question and candidate have two grades; the higher one counts.")
    return Benchmark(
        name=name,
        documents=lambda: _documents(files, form),
        splits=splits_of(name, questions, {"test": qrels}, notes),
        about={"kind": "finagentbench", "task": task, "files": [file.name for file in files]},
        notes=tuple(notes),
        licence=LICENCE,
    )


def _files(path: Path, task: str, form: _Form) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(path.glob(form.files)) if path.is_dir() else []
    if not files:
        listing = ", ".join(sorted(file.name for file in path.iterdir())[:8]) if path.is_dir() else "does not exist"
        raise DataError(
            f"{path} holds no file {form.files} for the task {task!r} of FinAgentBench ({listing or 'it is empty'}). "
            "Put the published files there, or choose the other task with dataset.task."
        )
    return files


def _rows(files: list[Path], form: _Form) -> Iterator[tuple[Path, int, str, list[str], dict[str, object] | None]]:
    """(file, line number, question, candidates, grades) of each row; grades is None if the row has none."""
    for file in files:
        count = 0
        for number, row in read_records(file, "rows of FinAgentBench, one per line"):
            count += 1
            question, candidates = _parse_prompt(_prompt(row, file, number), form, file, number)
            yield file, number, question, candidates, row.get("qrel")
        if not count:
            raise DataError(f"{file} is empty; expected rows of FinAgentBench, one per line. Fetch it again.")


def _prompt(row: dict[str, Any], file: Path, number: int) -> str:
    for message in row.get("messages") or ():
        if message["role"] == "user":
            return str(message["content"])
    raise DataError(f"{file}, line {number}: no message of the user. It may be a file of something else.")


def _parse_prompt(prompt: str, form: _Form, file: Path, number: int) -> tuple[str, list[str]]:
    """The question and the candidates. Only the next number in order begins a candidate; others are part of a text."""
    start = prompt.find(_QUESTION)
    heading = prompt.find(form.heading, start)
    ending = prompt.rfind(f"\n{form.ending}")
    if start < 0 or heading < 0 or ending < heading:
        missing = [word for word in (_QUESTION, form.heading, form.ending) if word not in prompt]
        raise DataError(
            f"{file}, line {number}: the prompt does not hold {', '.join(missing) or 'its parts in their order'}; "
            f"expected '{_QUESTION} …', '{form.heading} …', '{form.ending} …'. It may be a file of the other task."
        )
    question = prompt[start + len(_QUESTION) : heading].strip()
    body = prompt[heading + len(form.heading) : ending]
    markers: list[tuple[int, int]] = []
    for match in re.finditer(rf"(?:^|\n)[ \t]*\[{form.candidate} (\d+)\]", body):
        if int(match[1]) == len(markers):
            markers.append(match.span())
    edges = [*markers, (len(body), len(body))]
    candidates = [body[marker[1] : next_marker[0]].strip() for marker, next_marker in pairwise(edges)]
    if not question or not any(candidates):
        raise DataError(
            f"{file}, line {number}: the prompt has no question or no [{form.candidate} 0]. Correct the row."
        )
    return question, candidates


def _documents(files: list[Path], form: _Form) -> Iterator[Document]:
    ids: set[str] = set()
    for _, _, _, candidates, _ in _rows(files, form):
        for text in candidates:
            identifier = document_id(text)
            if text and identifier not in ids:
                ids.add(identifier)
                yield Document(identifier, "", text)
