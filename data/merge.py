"""Merges several BEIR folders into one knowledge base (seed 004, section 3.1).

A document id gets the name of its source as a prefix, `wiki/12`. Of passages with the same MD5 only the first is kept,
and inherits the judgements of the others. Question ids are unchanged. A question of several sources is merged into one,
with all judgements, in the latest of its splits (train < validation < test): a test question of one source is never
trained on because it is in another's training split. Corpora are read document by document.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..storage import write_lines
from .beir import beir_folder, load_beir, name_and_licence, new_beir_folder, qrel_lines, read_corpus
from .jsonl import identifier_of, read_records
from .leakage import fingerprint
from .types import Dataset, Question

_SPLITS = ("train", "validation", "test")
"""In ascending order: a question of two splits goes to the later one."""


@dataclass(frozen=True, slots=True)
class MergeSource:
    """A folder, and the prefix of its document ids."""

    name: str
    folder: Path


@dataclass
class _MergedQuestion:
    """A question with the judgements of all sources: (source, document) → grade."""

    question: Question
    record: dict[str, Any]
    split: str
    judged: dict[tuple[str, str], int] = field(default_factory=dict)


class _AnyDocument:
    """Stands for the ids of a corpus not yet read; missing documents are found by `_fingerprints`."""

    def __contains__(self, _: object) -> bool:
        return True


def merge(
    sources: Sequence[MergeSource], target: Path, asking: Sequence[str] | None = None, name: str | None = None
) -> dict[str, Any]:
    """Write the folder `target` and return its meta.json.

    `asking` names the sources whose questions are used; None uses every folder with qrels. Raises DataError for
    invalid source names, for an unusable folder or question, and if `target` exists; StorageError if the files cannot
    be written.
    """
    _refuse_names(sources, asking)
    folders = {source.name: beir_folder(source.folder) for source in sources}
    with new_beir_folder(target, f"the merged dataset of {', '.join(folders)}") as folder:
        with_qrels = [source for source, path in folders.items() if asking is None and (path / "qrels").is_dir()]
        merged, notes = _questions({source: folders[source] for source in asking or with_qrels})
        judged = {key for entry in merged.values() for key in entry.judged}
        fingerprints = _fingerprints(folders, judged)
        merged_ids = dict.fromkeys(fingerprints.values(), "")
        counts = {source: {"documents": 0, "duplicates": 0} for source in folders}
        write_lines(folder / "corpus.jsonl", _corpus_lines(folders, merged_ids, counts))
        records = (json.dumps(entry.record, ensure_ascii=False) for entry in merged.values())
        write_lines(folder / "queries.jsonl", records)
        splits = {split: _qrels(merged, split, fingerprints, merged_ids) for split in _SPLITS}
        for split, qrels in splits.items():
            if qrels:
                write_lines(folder / "qrels" / f"{'dev' if split == 'validation' else split}.tsv", qrel_lines(qrels))
        licences = {source: name_and_licence(path)[1] for source, path in folders.items()}
        meta: dict[str, Any] = {
            "name": name or target.name,
            "licence": "; ".join(f"{source}: {licence or 'not stated'}" for source, licence in licences.items()),
            "made_from": {source: str(path) for source, path in folders.items()},
            "sources": counts,
            "questions": {split: len(qrels) for split, qrels in splits.items() if qrels},
            "notes": notes,
        }
        write_lines(folder / "meta.json", [json.dumps(meta, ensure_ascii=False, indent=1)])
    return meta


def summary(meta: Mapping[str, Any]) -> list[str]:
    """Report on a merged folder: a line per source, then totals and notes."""
    lines = [
        f"{source}: {count['documents']} documents, {count['duplicates']} that stood before left out"
        for source, count in meta["sources"].items()
    ]
    total = sum(count["documents"] for count in meta["sources"].values())
    questions = ", ".join(f"{count} {split}" for split, count in meta["questions"].items())
    return [*lines, f"{meta['name']}: {total} documents; questions: {questions}", *meta["notes"]]


def _refuse_names(sources: Sequence[MergeSource], asking: Sequence[str] | None) -> None:
    names = [source.name for source in sources]
    invalid = [name for name in names if not name or set(name) & set("/\t\r\n ")]
    if invalid or len(set(names)) < len(names) or len(names) < 2:
        raise DataError(
            f"the sources are {', '.join(map(repr, names)) or 'none'}; expected two or more different names without "
            "slash or space, each with its folder: wiki=FOLDER qa=FOLDER."
        )
    unknown = [name for name in asking or () if name not in names]
    if unknown:
        raise DataError(f"questions of {unknown[0]!r} are wanted; the sources are {', '.join(map(repr, names))}.")


def _questions(folders: Mapping[str, Path]) -> tuple[dict[str, _MergedQuestion], list[str]]:
    merged: dict[str, _MergedQuestion] = {}
    notes: list[str] = []
    for source, folder in folders.items():
        dataset = load_beir(folder, documents=_AnyDocument())
        if dataset.ignore_identical_ids:
            raise DataError(
                f"{folder} says ignore_identical_ids: a document that bears the id of the question does not count. "
                "Merged documents bear other ids. Take the questions of other sources, with --questions."
            )
        records = _records(folder)
        for split in _SPLITS:
            _add_questions(merged, source, dataset, split, records)
        notes += dataset.notes
    if not merged:
        raise DataError("none of the sources has questions; at least one folder must have queries.jsonl and qrels/.")
    return merged, notes


def _add_questions(
    merged: dict[str, _MergedQuestion], source: str, dataset: Dataset, split: str, records: Mapping[str, dict[str, Any]]
) -> None:
    if split not in dataset.splits:
        return
    for question in dataset.splits[split].questions:
        entry = merged.setdefault(question.id, _MergedQuestion(question, records[question.id], split))
        if entry.question != question:
            raise DataError(
                f"question {question.id!r} of {source} reads {question.text!r}, and that of a source before it "
                f"{entry.question.text!r}. Rename one, or take the questions of one source, with --questions."
            )
        entry.split = max(entry.split, split, key=_SPLITS.index)
        for document, grade in dataset.splits[split].qrels[question.id].items():
            entry.judged[source, document] = grade


def _records(folder: Path) -> dict[str, dict[str, Any]]:
    """Records of queries.jsonl by id; they may have further fields, such as answers."""
    path = folder / "queries.jsonl"
    return {
        identifier_of(record, path, number): record
        for number, record in read_records(path, "the questions, one per line")
    }


def _fingerprints(folders: Mapping[str, Path], judged: set[tuple[str, str]]) -> dict[tuple[str, str], bytes]:
    """(source, document) → MD5 of each judged document. Raises DataError if one is not in its corpus."""
    fingerprints: dict[tuple[str, str], bytes] = {}
    for source in dict.fromkeys(source for source, _ in sorted(judged)):
        for _, document in read_corpus(folders[source] / "corpus.jsonl"):
            if (source, document.id) in judged:
                fingerprints[source, document.id] = fingerprint(document)
    if missing := sorted(judged - fingerprints.keys()):
        source, document_id = missing[0]
        raise DataError(
            f"{folders[source]}: document {document_id!r} is judged but is not in corpus.jsonl ({len(missing)} such "
            "documents in all sources). Add it, or remove its judgements."
        )
    return fingerprints


def _corpus_lines(
    folders: Mapping[str, Path], merged_ids: dict[bytes, str], counts: dict[str, dict[str, int]]
) -> Iterator[str]:
    """Yield the lines of the merged corpus; sets `counts`, and the new ids of the fingerprints in `merged_ids`."""
    digests: set[bytes] = set()
    for source, folder in folders.items():
        for _, document in read_corpus(folder / "corpus.jsonl"):
            digest = fingerprint(document)
            counts[source]["duplicates" if digest in digests else "documents"] += 1
            if digest in digests:
                continue
            digests.add(digest)
            merged_id = f"{source}/{document.id}"
            if digest in merged_ids:
                merged_ids[digest] = merged_id
            yield json.dumps({"_id": merged_id, "title": document.title, "text": document.text}, ensure_ascii=False)


def _qrels(
    merged: Mapping[str, _MergedQuestion],
    split: str,
    fingerprints: Mapping[tuple[str, str], bytes],
    merged_ids: Mapping[bytes, str],
) -> dict[str, dict[str, int]]:
    qrels: dict[str, dict[str, int]] = {}
    for question_id, entry in merged.items():
        if entry.split == split:
            grades = qrels.setdefault(question_id, {})
            for key, grade in entry.judged.items():
                document = merged_ids[fingerprints[key]]
                grades[document] = max(grade, grades.get(document, grade))
    return qrels
