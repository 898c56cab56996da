"""Judgements of relevance: read in BEIR's form, TREC's or a table's, and attached to questions.

A split holds exactly the questions with a judgement above 0. What is left out is counted in notes.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path

from pydantic import Field

from ..errors import DataError
from .rows import Id, Row, read_lines, read_rows
from .types import SPLITS, Qrels, Question, Split, relevant

COLUMNS = ("query-id", "corpus-id", "score")
_ITERATION = {"0", "q0", "iter", "iteration", "iter_id", "unused"}
_GRADE = {"score", "rel", "relevance", "label", "grade"}
"""What a header line of TREC's form may call its second and fourth column."""


class _JudgementRow(Row):
    question: Id = Field(alias="query-id")
    document: Id = Field(alias="corpus-id")
    score: int


def read_judgements(*paths: Path) -> dict[str, dict[str, int]]:
    """Question id → document id → grade, of Parquet, JSON lines or lines of text.

    These have BEIR's three fields with tabs, or TREC's four with any white space; the first line may be a header.
    Raises DataError for another line, and for a pair with two grades.
    """
    qrels: dict[str, dict[str, int]] = {}
    for path in paths:
        for location, question, document, grade in _judgements(path):
            previous = qrels.setdefault(question, {}).setdefault(document, grade)
            if previous != grade:
                raise DataError(
                    f"{location}: question {question!r} and document {document!r} are judged {grade} here and "
                    f"{previous} before. Keep one of the two lines."
                )
    return qrels


def _judgements(path: Path) -> Iterator[tuple[str, str, str, int]]:
    if path.suffix == ".parquet" or ".jsonl" in path.suffixes:
        yield from (
            (location, row.question, row.document, row.score) for location, row in read_rows(path, _JudgementRow)
        )
        return
    for index, (number, line) in enumerate(read_lines(path)):
        fields, trec = line.split("\t"), line.split()
        names = [field.lower() for field in trec] if index == 0 else []
        if tuple(names) == COLUMNS or (len(names) == 4 and names[1] in _ITERATION and names[3] in _GRADE):
            continue
        location = f"{path}, line {number}"
        if len(fields) != 3 and len(trec) != 4:
            raise DataError(
                f"{location}: {line!r}; expected 'query-id<TAB>corpus-id<TAB>score' (a header may only be the first "
                "line), or TREC's 'query-id 0 corpus-id score'. Correct the line."
            )
        question, document, score = fields if len(fields) == 3 else (trec[0], trec[2], trec[3])
        try:
            grade = float(score)
        except ValueError:
            grade = 0.5
        if grade % 1 != 0:
            raise DataError(f"{location}: the grade is {score!r}; expected a whole number such as 0, 1 or 2.")
        yield location, question, document, int(grade)


def judged_splits(
    name: str,
    questions: Mapping[str, Question],
    qrels: Mapping[str, Qrels],
    documents: Container[str],
    notes: list[str],
) -> dict[str, Split]:
    """Splits of the questions (id → Question) that have a relevant document, in the order of `questions`.

    `qrels` is by split; grades of 0 or less are kept. Judgements of questions and documents that do not exist are
    dropped. Notes on what is left out are appended to `notes`. Raises DataError where a split has no relevant document,
    or loses more than half of them: questions, judgements and corpus then do not belong together.
    """
    splits: dict[str, Split] = {}
    for split in filter(qrels.get, SPLITS):
        judged = {
            question: {document: grade for document, grade in grades.items() if document in documents}
            for question, grades in qrels[split].items()
            if question in questions
        }
        usable = [identifier for identifier in questions if relevant(judged.get(identifier, {}))]
        splits[split] = Split(tuple(questions[name] for name in usable), {name: judged[name] for name in usable})
        expected, total = Split([], qrels[split]).relevant, sum(map(len, qrels[split].values()))
        lost, dropped = expected - splits[split].relevant, total - sum(map(len, judged.values()))
        if not expected:
            raise DataError(f"{name}: the {split} split judges no document as relevant (grade above 0).")
        if dropped:
            pairs = ((question, document) for question, grades in qrels[split].items() for document in grades)
            missing = next(pair for pair in pairs if pair[0] not in questions or pair[1] not in documents)
            note = (
                f"{name}, {split}: {dropped} of {total} judgements ({lost} of {expected} above 0) are of questions "
                f"or documents that do not exist, such as {missing}"
            )
            if 2 * lost > expected:
                raise DataError(f"{note}: questions, judgements and corpus do not belong together. Fetch them again.")
            notes.append(f"{note}: they are dropped.")
    if questions and not splits:
        raise DataError(f"{name}: no question has a relevant document (grade above 0). Look at the judgements.")
    if splits and (skipped := len(questions.keys() - {q.id for split in splits.values() for q in split.questions})):
        notes.append(f"{name}: {skipped} of {len(questions)} questions have no relevant document and are skipped.")
    return splits


def moved_judgements(qrels: Qrels, new_ids: Callable[[str], Iterable[str]]) -> dict[str, dict[str, int]]:
    """The judgements with the grade of each document moved to its `new_ids`; of several grades the highest counts."""
    moved: dict[str, dict[str, int]] = {}
    for question, judged in qrels.items():
        grades = moved.setdefault(question, {})
        for document, grade in judged.items():
            for new_id in new_ids(document):
                grades[new_id] = max(grade, grades.get(new_id, grade))
    return moved
