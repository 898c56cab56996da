"""Judgements of relevance: read in BEIR's form or TREC's, attached to questions, and kept to what a corpus has.

A split holds exactly the questions with a judgement above 0. What is left out is counted in notes.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path

from ..errors import DataError
from .jsonl import grade_of, read_lines
from .types import SPLITS, Qrels, Question, Split, relevant

COLUMNS = ("query-id", "corpus-id", "score")
_ITERATION = {"0", "q0", "iter", "iteration", "iter_id", "unused"}
_GRADE = {"score", "rel", "relevance", "label", "grade"}
"""What a header line of TREC's form may call its second and fourth column."""


def read_judgements(path: Path) -> dict[str, dict[str, int]]:
    """Question id → document id → grade: lines of three fields with tabs, or of TREC's four with any white space.

    The first line may be a header. Raises DataError for another line, and for a pair with two grades.
    """
    qrels: dict[str, dict[str, int]] = {}
    for index, (number, line) in enumerate(read_lines(path, "judgements, one per line")):
        fields, trec = line.split("\t"), line.split()
        names = [field.lower() for field in trec] if index == 0 else []
        if tuple(names) == COLUMNS or (len(names) == 4 and names[1] in _ITERATION and names[3] in _GRADE):
            continue
        if len(fields) != 3 and len(trec) != 4:
            raise DataError(
                f"{path}, line {number}: {line!r}; expected 'query-id<TAB>corpus-id<TAB>score' (a header may only be "
                "the first line), or TREC's 'query-id 0 corpus-id score'. Correct the line."
            )
        question, document, score = fields if len(fields) == 3 else (trec[0], trec[2], trec[3])
        add_judgement(qrels, question, document, grade_of(score, path, number), f"{path}, line {number}")
    return qrels


def add_judgement(qrels: dict[str, dict[str, int]], question: str, document: str, grade: int, line: str) -> None:
    """Add a judgement. DataError, beginning with `line`, where the pair has another grade."""
    previous = qrels.setdefault(question, {}).setdefault(document, grade)
    if previous != grade:
        raise DataError(
            f"{line}: question {question!r} and document {document!r} are judged {grade} here and {previous} before. "
            "Keep one of the two lines."
        )


def splits_of(
    name: str, questions: Mapping[str, Question], qrels: Mapping[str, Qrels], notes: list[str]
) -> dict[str, Split]:
    """Splits of the questions (id → Question) that have a relevant document, in the order of `questions`.

    `qrels` is by split; grades of 0 or less are kept. Notes on what is left out are appended to `notes`. Raises
    DataError for a split without a relevant document, and where more than half of its judged questions do not exist.
    """
    splits: dict[str, Split] = {}
    for split in filter(qrels.get, SPLITS):
        judged = qrels[split]
        unknown = [question for question in judged if question not in questions]
        if 2 * len(unknown) > len(judged):
            raise DataError(
                f"{name}, {split}: {len(unknown)} of {len(judged)} judged questions, {unknown[0]!r} among them, do not "
                "exist. Questions and judgements do not belong together: fetch or copy them again."
            )
        if unknown:
            notes.append(
                f"{name}, {split}: the judgements of {len(unknown)} of {len(judged)} questions are dropped, "
                f"{unknown[0]!r} among them: these questions do not exist."
            )
        usable = [identifier for identifier in questions if relevant(judged.get(identifier, {}))]
        if not usable:
            raise DataError(f"{name}: the {split} split judges no document as relevant (grade above 0).")
        splits[split] = Split(tuple(questions[id_] for id_ in usable), {id_: judged[id_] for id_ in usable})
    if not splits:
        raise DataError(f"{name}: no question has a relevant document (grade above 0). Look at the judgements.")
    if skipped := len(questions.keys() - {question.id for split in splits.values() for question in split.questions}):
        notes.append(
            f"{name}: {skipped} of {len(questions)} questions have no relevant document in {', '.join(splits)} and are "
            "skipped."
        )
    return splits


def within_corpus(
    name: str, splits: Mapping[str, Split], documents: Container[str]
) -> tuple[dict[str, Split], list[str]]:
    """The splits without judgements of documents that are not in the corpus, and notes on what was dropped.

    Raises DataError where more than half of the relevant documents of a split are missing, because corpus and
    judgements then do not belong together.
    """
    restricted: dict[str, Split] = {}
    notes: list[str] = []
    for split_name, split in splits.items():
        qrels = {
            question: {document: grade for document, grade in judged.items() if document in documents}
            for question, judged in split.qrels.items()
        }
        remaining = Split(tuple(question for question in split.questions if relevant(qrels[question.id])), qrels)
        lost = split.relevant - remaining.relevant
        if 2 * lost > split.relevant:
            missing = sorted({document for judged in split.qrels.values() for document in judged} - _ids(qrels))
            raise DataError(
                f"{name}, {split_name}: {lost} of {split.relevant} relevant documents, {missing[0]!r} among them, are "
                "not in the corpus. Corpus and judgements do not belong together: fetch or copy them again."
            )
        judged, dropped = (sum(map(len, grades.values())) for grades in (split.qrels, qrels))
        if judged == dropped:
            restricted[split_name] = split
            continue
        restricted[split_name] = Split(
            remaining.questions, {question.id: qrels[question.id] for question in remaining.questions}
        )
        notes.append(
            f"{name}, {split_name}: {judged - dropped} of {judged} judgements are dropped, {lost} of them of relevant "
            f"documents: their documents are not in the corpus. {len(split.questions) - len(remaining.questions)} "
            "questions had no other relevant document and are left out."
        )
    return restricted, notes


def moved_judgements(qrels: Qrels, new_ids: Callable[[str], Iterable[str]]) -> dict[str, dict[str, int]]:
    """The judgements with the grade of each document moved to its `new_ids`; of several grades the highest counts."""
    moved: dict[str, dict[str, int]] = {}
    for question, judged in qrels.items():
        grades = moved.setdefault(question, {})
        for document, grade in judged.items():
            for new_id in new_ids(document):
                grades[new_id] = max(grade, grades.get(new_id, grade))
    return moved


def _ids(qrels: Qrels) -> set[str]:
    return {document for judged in qrels.values() for document in judged}
