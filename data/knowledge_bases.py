"""Builds the knowledge bases of Misknow-RAG (its paper, section 3.1): chunks of documents, question-answer pairs.

A chunk has fewer than a given number of words of a document, in order and without overlap, under the title of the
document. In scripts without spaces each character counts as a word. Of passages with the same MD5 only the first is
kept. Judgements of a document pass to all of its chunks, because nothing says which of them holds the answer.

A pair is a document with the question as title and the answer as text; its question is kept as a training question
whose relevant document it is. `data merge` puts both kinds into one knowledge base.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import DataError
from ..storage import write_lines
from .beir import (
    beir_folder,
    corpus_file,
    document_line,
    load_beir,
    name_and_licence,
    new_beir_folder,
    question_line,
    read_corpus,
    write_meta,
    write_qrels,
)
from .benchmark import moved_judgements
from .folding import SPACELESS
from .jsonl import identifier_of, read_records, text_of
from .leakage import fingerprint
from .rows import refuse_list_text
from .types import AllDocuments, Document, Question, Split

CHUNK_WORDS = 300
"""The paper's chunks of Wikipedia have fewer words; its chunks of the Chinese encyclopedia have 400 tokens."""
WORD = re.compile(rf"[{SPACELESS}]|[^\s{SPACELESS}]+")
"""A word; in scripts without spaces each character is one."""


@dataclass
class _Kept:
    """The distinct passages so far, and how many repeated ones were left out."""

    ids: dict[bytes, str] = field(default_factory=dict)
    """Id of the first passage with that fingerprint."""
    duplicates: int = 0

    def add(self, document: Document) -> tuple[str, bool]:
        """The id of the first passage with this text, and whether this one is new."""
        first = self.ids.setdefault(fingerprint(document), document.id)
        self.duplicates += first != document.id
        return first, first == document.id


def chunks_of(text: str, words: int) -> list[str]:
    """The text in parts of fewer than `words` words; a text without a word is one part."""
    spans = [match.span() for match in WORD.finditer(text)]
    size = max(1, words - 1)
    parts = [spans[start : start + size] for start in range(0, len(spans), size)]
    return [text[part[0][0] : part[-1][1]] for part in parts] or [text]


def write_chunks(source: Path, target: Path, words: int = CHUNK_WORDS) -> list[str]:
    """Write the BEIR folder `target` with the documents of `source` in chunks; return what to report.

    The first chunk of document `12` is `12#1`. Raises DataError for an unusable folder and if `target` exists,
    StorageError if a file cannot be written.
    """
    folder = beir_folder(source)
    dataset = load_beir(folder, documents=AllDocuments())
    chunk_ids: dict[str, list[str]] = {}
    corpus = _Kept()

    def lines() -> Iterator[str]:
        for _, document in read_corpus(corpus_file(folder)):
            for number, text in enumerate(chunks_of(document.text, words), start=1):
                chunk = Document(f"{document.id}#{number}", document.title, text)
                first, new = corpus.add(chunk)
                chunk_ids.setdefault(document.id, []).append(first)
                if new:
                    yield document_line(chunk)

    with new_beir_folder(target) as new_folder:
        write_lines(new_folder / "corpus.jsonl", lines())
        questions = {question.id: question for split in dataset.splits.values() for question in split.questions}
        write_lines(new_folder / "queries.jsonl", map(question_line, questions.values()))
        splits = {
            name: Split(split.questions, moved_judgements(split.qrels, lambda document: chunk_ids.get(document, ())))
            for name, split in dataset.splits.items()
        }
        write_qrels(new_folder, splits)
        name, licence = name_and_licence(folder)
        meta = {"name": target.name, "licence": licence, "made_from": str(folder), "chunk_words": words}
        write_meta(new_folder, {**meta, "relevance_level": dataset.relevance_level})
    return [
        f"{name}: {len(chunk_ids)} documents in {len(corpus.ids)} chunks of fewer than {words} words, "
        f"{corpus.duplicates} that stood before left out"
    ]


def write_pairs(source: Path, target: Path) -> list[str]:
    """Write the BEIR folder `target` with the pairs of a file of JSON lines; return what to report.

    A line has `_id`, `question` (or `text`) and `answers` (a list, joined by "; ") or `answer`; one without an answer
    is skipped and counted. Raises as `write_chunks`, and DataError for a broken line and for an answer that is the text
    of a list.
    """
    kept, skipped = _Kept(), 0
    documents: list[Document] = []
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
        if kept.add(document)[1]:
            documents.append(document)
    if not documents:
        raise DataError(
            f"{source} holds no question with an answer ({skipped} lines without one); expected the fields 'question' "
            "and 'answers'."
        )
    questions = [Question(document.id, document.title) for document in documents]
    with new_beir_folder(target) as folder:
        write_lines(folder / "corpus.jsonl", map(document_line, documents))
        write_lines(folder / "queries.jsonl", map(question_line, questions))
        write_qrels(folder, {"train": Split(questions, {document.id: {document.id: 1} for document in documents})})
        write_meta(folder, {"name": target.name, "made_from": str(source)})
    left_out = f"{kept.duplicates} that stood before left out, {skipped} without an answer skipped"
    return [f"{target.name}: {len(documents)} pairs, {left_out}"]
