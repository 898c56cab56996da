"""Builds the knowledge bases of Misknow-RAG (its paper, section 3.1): chunks of documents, question-answer pairs, and
several BEIR folders merged into one.

A chunk has fewer than a given number of words of a document, in order and without overlap, under the title of the
document. In scripts without spaces each character counts as a word. Judgements of a document pass to all of its chunks,
because nothing says which of them holds the answer; a question that excludes a document excludes its chunks.

A pair is a document with the question as title and the answer as text; its question is kept as a training question
whose relevant document it is.

In a merged folder, a document id has the name of its source as a prefix, `wiki/12`. A question of several sources is
merged into one, with all judgements, in the latest of its splits (train < validation < test): a test question of one
source is never trained on because it is in another's training split.

Of passages with the same MD5 only the first is kept, and inherits the judgements of the others. Corpora are read
document by document.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, Field

from ..errors import DataError
from .beir import (
    beir_folder,
    documents_of,
    judging,
    load_beir,
    new_beir_folder,
    questions_of,
    read_meta,
    write_documents,
    write_meta,
    write_questions,
)
from .judgements import moved_judgements
from .leakage import fingerprint
from .rows import Id, Row, read_rows, refuse_list_text
from .types import SPLITS, AllDocuments, Document, Question, Split

CHUNK_WORDS = 300
"""The paper's chunks of Wikipedia have fewer words; its chunks of the Chinese encyclopedia have 400 tokens."""
_SPACELESS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Kana and Chinese characters, which are written without spaces between words, as a range of a pattern."""
WORD = re.compile(rf"[{_SPACELESS}]|[^\s{_SPACELESS}]+")
"""A word; in scripts without spaces each character is one."""


def chunks_of(text: str, words: int) -> list[str]:
    """The text in parts of fewer than `words` words; a text without a word is one part."""
    spans = [match.span() for match in WORD.finditer(text)]
    size = max(1, words - 1)
    parts = [spans[start : start + size] for start in range(0, len(spans), size)]
    return [text[part[0][0] : part[-1][1]] for part in parts] or [text]


def write_chunks(source: Path, target: Path, words: int = CHUNK_WORDS) -> list[str]:
    """Write the BEIR folder `target` with the documents of `source` in chunks; return what to report.

    The first chunk of document `12` is `12#1`. Raises DataError for an unusable folder and if `target` exists.
    """
    folder = beir_folder(source)
    dataset = load_beir(folder, documents=AllDocuments())
    chunk_ids: dict[str, list[str]] = {}
    first_ids: dict[bytes, str] = {}

    def chunks() -> Iterator[Document]:
        for document in documents_of(folder):
            for number, text in enumerate(chunks_of(document.text, words), start=1):
                chunk = replace(document, id=f"{document.id}#{number}", text=text)
                first = first_ids.setdefault(fingerprint(chunk), chunk.id)
                chunk_ids.setdefault(document.id, []).append(first)
                if first == chunk.id:
                    yield chunk

    with new_beir_folder(target) as new:
        write_documents(new, chunks())
        splits = {
            name: Split(split.questions, moved_judgements(split.qrels, lambda document: chunk_ids.get(document, ())))
            for name, split in dataset.splits.items()
        }
        fields: dict[str, dict[str, object]] = {}
        for question, more in questions_of(folder) if splits else ():
            ids = (*question.excluded, *([question.id] if dataset.ignore_identical_ids else ()))
            excluded = [chunk for document in ids for chunk in chunk_ids.get(document, ())]
            fields[question.id] = {**more, **({"excluded_ids": excluded} if ids else {})}
        write_questions(new, splits, fields)
        meta = {"name": target.name, "licence": dataset.licence, "made_from": str(folder), "chunk_words": words}
        write_meta(new, {**meta, **judging(dataset)})
    total = sum(map(len, chunk_ids.values()))
    return [
        f"{dataset.name}: {len(chunk_ids)} documents in {len(first_ids)} chunks of fewer than {words} words, "
        f"{total - len(first_ids)} that stood before left out"
    ]


class _PairLine(Row):
    id: Id = Field(alias="_id")
    question: str = Field(validation_alias=AliasChoices("question", "text"))
    answers: Any = Field(None, validation_alias=AliasChoices("answers", "answer"))


def write_pairs(source: Path, target: Path) -> list[str]:
    """Write the BEIR folder `target` with the pairs of a file of JSON lines; return what to report.

    A line has `_id`, `question` (or `text`) and `answers` (a list, joined by "; ") or `answer`; one without an answer
    is skipped and counted. Raises as `write_chunks`, and DataError for a broken line and for an answer that is the text
    of a list.
    """
    documents: dict[bytes, Document] = {}
    repeated = skipped = 0
    for location, row in read_rows(source, _PairLine):
        answers = row.answers if isinstance(row.answers, list) else [row.answers]
        refuse_list_text(answers, location)
        texts = [str(answer).strip() for answer in answers if answer]
        if not any(texts) or not row.question.strip():
            skipped += 1
            continue
        document = Document(row.id, row.question, "; ".join(filter(None, texts)))
        repeated += documents.setdefault(fingerprint(document), document) is not document
    if not documents:
        raise DataError(f"{source} holds no question with an answer; expected the fields 'question' and 'answers'.")
    questions = [Question(document.id, document.title) for document in documents.values()]
    with new_beir_folder(target) as folder:
        write_documents(folder, documents.values())
        write_questions(folder, {"train": Split(questions, {question.id: {question.id: 1} for question in questions})})
        write_meta(folder, {"name": target.name, "made_from": str(source)})
    left_out = f"{repeated} that stood before left out, {skipped} without an answer skipped"
    return [f"{target.name}: {len(documents)} pairs, {left_out}"]


def merge(sources: Mapping[str, Path], target: Path, question_sources: Sequence[str] | None = None) -> list[str]:
    """Write the BEIR folder `target` with the documents of several; return what to report.

    `sources` is by the prefix of document ids. `question_sources` names those whose questions are used; None uses every
    folder with qrels. Without any, the new folder is a corpus. Raises DataError for invalid source names, for an
    unusable folder, for questions that cannot be merged, and if `target` exists.
    """
    if len(sources) < 2 or any(not name or set(name) & set("/\t\r\n ") for name in sources):
        raise DataError(f"the sources are {list(sources)}; expected two names or more, without slash or space.")
    if unknown := [name for name in question_sources or () if name not in sources]:
        raise DataError(f"--questions names {unknown[0]!r}; the sources are {list(sources)}.")
    folders = {source: beir_folder(folder) for source, folder in sources.items()}
    questions: dict[str, Question] = {}
    fields: dict[str, dict[str, object]] = {}
    split_of: dict[str, str] = {}
    judged: dict[str, dict[str, int]] = {}
    """Question → SOURCE/ID of a document → grade."""
    levels: dict[int, str] = {}
    for source in question_sources or [source for source, path in folders.items() if (path / "qrels").is_dir()]:
        dataset = load_beir(folders[source], documents=AllDocuments())
        levels[dataset.relevance_level] = source
        more = {question.id: extra for question, extra in questions_of(folders[source])} if dataset.splits else {}
        for name, question in (
            (name, question) for name, split in dataset.splits.items() for question in split.questions
        ):
            if dataset.ignore_identical_ids or question.excluded:
                raise DataError(
                    f"{folders[source]}: its questions leave out documents by their ids, and merged documents bear "
                    "other ids. Take the questions of other sources, with --questions."
                )
            if questions.setdefault(question.id, question) != question:
                raise DataError(
                    f"question {question.id!r} of {source} is {question.text!r}, and in an earlier source "
                    f"{questions[question.id].text!r}. Rename one, or take one source, with --questions."
                )
            fields.setdefault(question.id, more[question.id])
            split_of[question.id] = max(split_of.get(question.id, name), name, key=SPLITS.index)
            grades = dataset.splits[name].qrels[question.id]
            judged.setdefault(question.id, {}).update(
                (f"{source}/{document}", grade) for document, grade in grades.items()
            )
    if len(levels) > 1:
        raise DataError(
            f"the sources have different relevance levels ({levels}), so one grade would mean two things. Take the "
            "questions of sources with one level, with --questions."
        )
    judged_documents = {document for grades in judged.values() for document in grades}
    new_ids: dict[str, str] = {}
    new, repeated = Counter[str](), Counter[str]()

    def documents() -> Iterator[Document]:
        first: dict[bytes, str] = {}
        for source, folder in folders.items():
            for document in documents_of(folder):
                digest, merged_id = fingerprint(document), f"{source}/{document.id}"
                first_time = digest not in first
                (new if first_time else repeated)[source] += 1
                first.setdefault(digest, merged_id)
                if merged_id in judged_documents:
                    new_ids[merged_id] = first[digest]
                if first_time:
                    yield replace(document, id=merged_id)

    with new_beir_folder(target) as folder:
        write_documents(folder, documents())
        qrels = moved_judgements(judged, lambda document: [new_ids[document]] if document in new_ids else [])
        splits = {
            name: Split([question for key, question in questions.items() if split_of[key] == name], qrels)
            for name in SPLITS
            if name in split_of.values()
        }
        write_questions(folder, splits, fields)
        licences = {source: read_meta(path).licence for source, path in folders.items()}
        meta = {
            "name": target.name,
            "licence": "; ".join(f"{source}: {licence or 'not stated'}" for source, licence in licences.items()),
            "made_from": {source: str(path) for source, path in folders.items()},
        }
        write_meta(folder, {**meta, "relevance_level": next(iter(levels), 1)})
    counts = ", ".join(f"{len(split.questions)} {name}" for name, split in splits.items()) or "none"
    return [
        *(f"{name}: {new[name]} documents, {repeated[name]} that stood before left out" for name in folders),
        f"{target.name}: {new.total()} documents; questions: {counts}",
    ]
