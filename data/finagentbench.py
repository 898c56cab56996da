"""FinAgentBench (Choi et al. 2025): one prompt per row, and grades by candidate number.

A prompt is parsed into its question and its candidates. Questions with equal texts are merged, candidates likewise,
and each pair of them keeps its highest grade (Yuan et al., appendix B). Each task has its own corpus: `chunks` ranks
passages of filings, `documents` ranks document types. Rows without grades add their candidates to the corpus, but no
question.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from ..errors import DataError
from .benchmark import Benchmark
from .jsonl import grade_of
from .judgements import splits_of
from .rows import document_id, read_rows
from .types import Document, Question

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


def open_finagentbench(folder: Path, task: str = "chunks") -> Benchmark:
    """Read the questions of the published JSON-lines files as the test split.

    Raises DataError for an unknown task or missing file, a prompt in another form, and an invalid grade.
    """
    if task not in _FORMS:
        raise DataError(f"--subset is {task!r}; FinAgentBench has {' and '.join(_FORMS)}.")
    form, name = _FORMS[task], f"finagentbench/{task}"
    files = sorted(folder.glob(form.files))
    if not files:
        raise DataError(f"{folder} holds no file {form.files} of FinAgentBench's task {task!r}. Put it there.")
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
                raise DataError(f"{file}, line {number}: candidate {index!r} of {len(candidates)} is graded.")
            grade, document = grade_of(value, file, number), document_id(candidates[int(index)])
            contradicting += judged.get(document, grade) != grade
            judged[document] = max(grade, judged.get(document, grade))
    notes = []
    if unjudged:
        notes.append(f"{name}: {unjudged} rows have no grades: their candidates are in the corpus, nothing is asked.")
    if contradicting:
        notes.append(f"{name}: {contradicting} pairs of question and candidate have two grades; the higher one counts.")
    splits = splits_of(name, questions, {"test": qrels}, notes)
    return Benchmark(name, lambda: _documents(files, form), splits, notes=notes)


def _rows(files: list[Path], form: _Form) -> Iterator[tuple[Path, int, str, list[str], dict[str, object] | None]]:
    """(file, line number, question, candidates, grades) of each row; grades is None if the row has none."""
    for file in files:
        for number, row in read_rows(file, ("messages",)):
            prompt = next((str(message["content"]) for message in row["messages"] if message["role"] == "user"), "")
            question, candidates = _parse_prompt(prompt, form, f"{file}, line {number}")
            yield file, number, question, candidates, row.get("qrel")


def _parse_prompt(prompt: str, form: _Form, line: str) -> tuple[str, list[str]]:
    """The question and the candidates. Only the next number in order begins a candidate; others are part of a text."""
    start = prompt.find(_QUESTION)
    heading = prompt.find(form.heading, start)
    ending = prompt.rfind(f"\n{form.ending}")
    if start < 0 or heading < 0 or ending < heading:
        raise DataError(
            f"{line}: expected a prompt with '{_QUESTION} …', '{form.heading} …', '{form.ending} …'. It may be "
            "a file of the other task."
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
        raise DataError(f"{line}: the prompt has no question or no [{form.candidate} 0].")
    return question, candidates


def _documents(files: list[Path], form: _Form) -> Iterator[Document]:
    ids: set[str] = set()
    for _, _, _, candidates, _ in _rows(files, form):
        for text in candidates:
            identifier = document_id(text)
            if text and identifier not in ids:
                ids.add(identifier)
                yield Document(identifier, "", text)
