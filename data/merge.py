"""Merges several BEIR folders into one knowledge base (the Misknow-RAG paper, section 3.1).

A document id gets the name of its source as a prefix, `wiki/12`. Of passages with the same MD5 only the first is kept,
and inherits the judgements of the others. Question ids are unchanged. A question of several sources is merged into one,
with all judgements, in the latest of its splits (train < validation < test): a test question of one source is never
trained on because it is in another's training split. Corpora are read document by document.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict

from ..errors import DataError
from ..storage import write_lines
from .beir import (
    beir_folder,
    corpus_file,
    document_line,
    load_beir,
    name_and_licence,
    new_beir_folder,
    question_records,
    read_corpus,
    to_json,
    write_meta,
    write_qrels,
)
from .jsonl import identifier_of
from .leakage import fingerprint
from .types import SPLITS, Question, Split


@dataclass(frozen=True, slots=True)
class MergeSource:
    """A folder, and the prefix of its document ids."""

    name: str
    folder: Path


class MergedMeta(TypedDict):
    """meta.json of a merged folder; `sources` counts documents and duplicates."""

    name: str
    licence: str
    made_from: dict[str, str]
    sources: dict[str, dict[str, int]]
    questions: dict[str, int]
    relevance_level: int
    notes: list[str]


@dataclass
class _MergedQuestion:
    """A question with the judgements of all sources: (source, document) → grade."""

    question: Question
    record: dict[str, object]
    split: str
    judged: dict[tuple[str, str], int] = field(default_factory=dict)


def merge(sources: Sequence[MergeSource], target: Path, question_sources: Sequence[str] | None = None) -> MergedMeta:
    """Write the folder `target` and return its meta.json.

    `question_sources` names the sources whose questions are used; None uses every folder with qrels. Without any, the
    new folder is a corpus without questions. Raises DataError for invalid source names, for an unusable folder or
    question, for a named source without questions, and if `target` exists; StorageError if the files cannot be written.
    """
    _refuse_names(sources, question_sources)
    folders = {source.name: beir_folder(source.folder) for source in sources}
    with new_beir_folder(target) as folder:
        with_qrels = [
            source for source, path in folders.items() if question_sources is None and (path / "qrels").is_dir()
        ]
        merged, notes, level = _questions({source: folders[source] for source in question_sources or with_qrels})
        fingerprints = _fingerprints(folders, {key for entry in merged.values() for key in entry.judged})
        merged_ids = dict.fromkeys(fingerprints.values(), "")
        counts = {source: {"documents": 0, "duplicates": 0} for source in folders}
        write_lines(folder / "corpus.jsonl", _corpus_lines(folders, merged_ids, counts))
        if merged:
            write_lines(folder / "queries.jsonl", (to_json(entry.record) for entry in merged.values()))
        splits = {
            split: judgements
            for split in SPLITS
            if (judgements := _split(merged, split, fingerprints, merged_ids)).qrels
        }
        write_qrels(folder, splits)
        if not splits:
            (folder / "qrels").rmdir()
        licences = {source: name_and_licence(path)[1] for source, path in folders.items()}
        meta: MergedMeta = {
            "name": target.name,
            "licence": "; ".join(f"{source}: {licence or 'not stated'}" for source, licence in licences.items()),
            "made_from": {source: str(path) for source, path in folders.items()},
            "sources": counts,
            "questions": {name: len(split.qrels) for name, split in splits.items()},
            "relevance_level": level,
            "notes": notes,
        }
        write_meta(folder, meta)
    return meta


def summary(meta: MergedMeta) -> list[str]:
    """Report on a merged folder: a line per source, then totals and notes."""
    lines = [
        f"{source}: {count['documents']} documents, {count['duplicates']} that stood before left out"
        for source, count in meta["sources"].items()
    ]
    total = sum(count["documents"] for count in meta["sources"].values())
    questions = ", ".join(f"{count} {split}" for split, count in meta["questions"].items()) or "none"
    return [*lines, f"{meta['name']}: {total} documents; questions: {questions}", *meta["notes"]]


def _refuse_names(sources: Sequence[MergeSource], question_sources: Sequence[str] | None) -> None:
    names = [source.name for source in sources]
    invalid = [name for name in names if not name or set(name) & set("/\t\r\n ")]
    if invalid or len(set(names)) < len(names) or len(names) < 2:
        raise DataError(
            f"the sources are {', '.join(map(repr, names)) or 'none'}; expected two or more different names without "
            "slash or space, each with its folder: wiki=FOLDER qa=FOLDER."
        )
    unknown = [name for name in question_sources or () if name not in names]
    if unknown:
        raise DataError(f"questions of {unknown[0]!r} are wanted; the sources are {', '.join(map(repr, names))}.")


def _questions(folders: Mapping[str, Path]) -> tuple[dict[str, _MergedQuestion], list[str], int]:
    """The merged questions by id, notes, and the relevance level that all folders share."""
    merged: dict[str, _MergedQuestion] = {}
    notes: list[str] = []
    levels: dict[int, str] = {}
    for source, folder in folders.items():
        dataset = load_beir(folder, documents={document.id for _, document in read_corpus(corpus_file(folder))})
        if not dataset.splits:
            continue
        excluding = (question.excluded for split in dataset.splits.values() for question in split.questions)
        if dataset.ignore_identical_ids or any(excluding):
            raise DataError(
                f"{folder}: its questions leave out documents by their ids (ignore_identical_ids, excluded_ids), and "
                "merged documents bear other ids. Take the questions of other sources, with --questions."
            )
        levels[dataset.relevance_level] = source
        # a record may have further fields, such as answers
        records = {identifier_of(record, path, number): record for path, number, record in question_records(folder)}
        for name, split in dataset.splits.items():
            for question in split.questions:
                entry = merged.setdefault(question.id, _MergedQuestion(question, records[question.id], name))
                if entry.question != question:
                    raise DataError(
                        f"question {question.id!r} of {source} reads {question.text!r}, and in an earlier source "
                        f"{entry.question.text!r}. Rename one, or take the questions of one source, with --questions."
                    )
                entry.split = max(entry.split, name, key=SPLITS.index)
                entry.judged |= {(source, document): grade for document, grade in split.qrels[question.id].items()}
        notes += dataset.notes
    if folders and not merged:
        raise DataError(f"the sources {', '.join(folders)} have no questions. Take those of others, with --questions.")
    if len(levels) > 1:
        described = " and ".join(f"{level} in {source}" for level, source in sorted(levels.items()))
        raise DataError(
            f"the sources have different relevance levels ({described}), so one grade would mean two things. Take the "
            "questions of sources with one level, with --questions."
        )
    return merged, notes, next(iter(levels), 1)


def _fingerprints(folders: Mapping[str, Path], judged: set[tuple[str, str]]) -> dict[tuple[str, str], bytes]:
    """(source, document) → MD5 of each judged document."""
    fingerprints: dict[tuple[str, str], bytes] = {}
    for source in dict.fromkeys(source for source, _ in sorted(judged)):
        for _, document in read_corpus(corpus_file(folders[source])):
            if (source, document.id) in judged:
                fingerprints[source, document.id] = fingerprint(document)
    return fingerprints


def _corpus_lines(
    folders: Mapping[str, Path], merged_ids: dict[bytes, str], counts: dict[str, dict[str, int]]
) -> Iterator[str]:
    """Yield the lines of the merged corpus; sets `counts`, and the new ids of the fingerprints in `merged_ids`."""
    digests: set[bytes] = set()
    for source, folder in folders.items():
        for _, document in read_corpus(corpus_file(folder)):
            digest = fingerprint(document)
            counts[source]["duplicates" if digest in digests else "documents"] += 1
            if digest in digests:
                continue
            digests.add(digest)
            merged_document = replace(document, id=f"{source}/{document.id}")
            if digest in merged_ids:
                merged_ids[digest] = merged_document.id
            yield document_line(merged_document)


def _split(
    merged: Mapping[str, _MergedQuestion],
    split: str,
    fingerprints: Mapping[tuple[str, str], bytes],
    merged_ids: Mapping[bytes, str],
) -> Split:
    questions = [entry for entry in merged.values() if entry.split == split]
    qrels: dict[str, dict[str, int]] = {}
    for entry in questions:
        grades = qrels.setdefault(entry.question.id, {})
        for key, grade in ((key, grade) for key, grade in entry.judged.items() if key in fingerprints):
            document = merged_ids[fingerprints[key]]
            grades[document] = max(grade, grades.get(document, grade))
    return Split([entry.question for entry in questions], qrels)
