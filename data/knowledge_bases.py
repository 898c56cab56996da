"""Builds the knowledge bases of Misknow-RAG (its paper, section 3.1): chunks of documents, question-answer pairs.

A chunk has fewer than a given number of words of a document, in order and without overlap, under the title of the
document. In scripts without spaces each character counts as a word. Of passages with the same MD5 only the first is
kept. Judgements of a document pass to all of its chunks, because nothing says which of them holds the answer; a
question that excludes a document excludes its chunks.

A pair is a document with the question as title and the answer as text; its question is kept as a training question
whose relevant document it is. `data merge` puts both kinds into one knowledge base.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from ..errors import DataError
from .beir import (
    beir_folder,
    documents_of,
    judging,
    load_beir,
    name_and_licence,
    new_beir_folder,
    questions_of,
    write_documents,
    write_meta,
    write_questions,
)
from .jsonl import identifier_of, read_records, refuse_list_text, text_of
from .judgements import moved_judgements
from .leakage import fingerprint
from .types import AllDocuments, Document, Question, Split

CHUNK_WORDS = 300
"""The paper's chunks of Wikipedia have fewer words; its chunks of the Chinese encyclopedia have 400 tokens."""
SPACELESS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Kana and Chinese characters, which are written without spaces between words, as a range of a pattern."""
WORD = re.compile(rf"[{SPACELESS}]|[^\s{SPACELESS}]+")
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
                chunk = Document(f"{document.id}#{number}", document.title, text)
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
        for question, record in questions_of(folder) if splits else ():
            ids = (*question.excluded, *([question.id] if dataset.ignore_identical_ids else ()))
            excluded = [chunk for document in ids for chunk in chunk_ids.get(document, ())]
            fields[question.id] = {**record, **({"excluded_ids": excluded} if ids else {})}
        write_questions(new, splits, fields)
        name, licence = name_and_licence(folder)
        meta = {"name": target.name, "licence": licence, "made_from": str(folder), "chunk_words": words}
        write_meta(new, {**meta, **judging(dataset)})
    total = sum(map(len, chunk_ids.values()))
    return [
        f"{name}: {len(chunk_ids)} documents in {len(first_ids)} chunks of fewer than {words} words, "
        f"{total - len(first_ids)} that stood before left out"
    ]


def write_pairs(source: Path, target: Path) -> list[str]:
    """Write the BEIR folder `target` with the pairs of a file of JSON lines; return what to report.

    A line has `_id`, `question` (or `text`) and `answers` (a list, joined by "; ") or `answer`; one without an answer
    is skipped and counted. Raises as `write_chunks`, and DataError for a broken line and for an answer that is the text
    of a list.
    """
    documents: dict[bytes, Document] = {}
    repeated = skipped = 0
    for number, record in read_records(source, "questions with answers, one per line"):
        question = text_of(record, "question" if "question" in record else "text", source, number, None)
        answers = record.get("answers", record.get("answer"))
        answers = answers if isinstance(answers, list) else [answers]
        refuse_list_text(answers, f"{source}, line {number}")
        texts = [str(answer).strip() for answer in answers if answer]
        if not any(texts) or not question.strip():
            skipped += 1
            continue
        document = Document(identifier_of(record, source, number), question, "; ".join(filter(None, texts)))
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
