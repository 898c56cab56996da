"""Several BEIR folders as one: a merged knowledge base (seed 004, section 3.1).

A document gets the name of its source before its id, `wiki/12`; a passage that stands twice, told by its MD5, is kept
where it stands first, and its judgements follow. A question keeps its id. One that several sources ask in the same
words is one question, with the judgements of all, in the split that is tested last: what one source tests on is not
trained on because another trains on it. Corpora are read document by document.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import DataError
from .beir import beir_folder, load_beir, name_and_licence, new_beir_folder, qrel_lines, read_corpus
from .duplicates import fingerprint
from .files import write_lines
from .jsonl import identifier_of, read_records
from .types import Dataset, Question

_SPLITS = ("train", "validation", "test")
"""A question that stands in two goes to the later one."""


@dataclass(frozen=True, slots=True)
class Source:
    """One folder and the name that its documents get."""

    name: str
    folder: Path


@dataclass
class _Asked:
    """A question with the judgements of all sources, by (source, document)."""

    question: Question
    record: dict[str, Any]
    split: str
    judged: dict[tuple[str, str], int] = field(default_factory=dict)


class _Anything:
    """A corpus that is taken to hold every document; what it does not hold is found when it is read."""

    def __contains__(self, _: object) -> bool:
        return True


def merge(
    sources: Sequence[Source], target: Path, asking: Sequence[str] | None = None, name: str | None = None
) -> dict[str, Any]:
    """Write the folder `target` and return its meta.json.

    `asking` names the sources whose questions are taken; None takes those of every folder that has qrels. Raises
    DataError for names that are no names, for a folder or question that is not usable, and where `target` exists;
    StorageError where the disk does not take the files.
    """
    _refuse_names(sources, asking)
    folders = {source.name: beir_folder(source.folder) for source in sources}
    with new_beir_folder(target, f"the merged dataset of {', '.join(folders)}") as folder:
        with_questions = [one for one, found in folders.items() if asking is None and (found / "qrels").is_dir()]
        asked, notes = _questions({one: folders[one] for one in asking or with_questions})
        judged = {place for one in asked.values() for place in one.judged}
        fingerprints = _fingerprints(folders, judged)
        kept = dict.fromkeys(fingerprints.values(), "")
        counts = {one: {"documents": 0, "duplicates": 0} for one in folders}
        write_lines(folder / "corpus.jsonl", _corpus_lines(folders, kept, counts))
        write_lines(folder / "queries.jsonl", (json.dumps(one.record, ensure_ascii=False) for one in asked.values()))
        splits = {split: _qrels(asked, split, fingerprints, kept) for split in _SPLITS}
        for split, qrels in splits.items():
            if qrels:
                write_lines(folder / "qrels" / f"{'dev' if split == 'validation' else split}.tsv", qrel_lines(qrels))
        licences = {one: name_and_licence(found)[1] for one, found in folders.items()}
        meta: dict[str, Any] = {
            "name": name or target.name,
            "licence": "; ".join(f"{one}: {licence or 'not stated'}" for one, licence in licences.items()),
            "made_from": {one: str(found) for one, found in folders.items()},
            "sources": counts,
            "questions": {split: len(qrels) for split, qrels in splits.items() if qrels},
            "notes": notes,
        }
        write_lines(folder / "meta.json", [json.dumps(meta, ensure_ascii=False, indent=1)])
    return meta


def summary(meta: Mapping[str, Any]) -> list[str]:
    """What was written, a line for each source and one for the questions."""
    lines = [
        f"{source}: {count['documents']} documents, {count['duplicates']} that stood before left out"
        for source, count in meta["sources"].items()
    ]
    total = sum(count["documents"] for count in meta["sources"].values())
    questions = ", ".join(f"{count} {split}" for split, count in meta["questions"].items())
    return [*lines, f"{meta['name']}: {total} documents; questions: {questions}", *meta["notes"]]


def _refuse_names(sources: Sequence[Source], asking: Sequence[str] | None) -> None:
    names = [source.name for source in sources]
    wrong = [name for name in names if not name or set(name) & set("/\t\r\n ")]
    if wrong or len(set(names)) < len(names) or len(names) < 2:
        raise DataError(
            f"the sources are {', '.join(map(repr, names)) or 'none'}; expected two or more different names without "
            "slash or space, each with its folder: wiki=FOLDER qa=FOLDER."
        )
    unknown = [name for name in asking or () if name not in names]
    if unknown:
        raise DataError(f"questions of {unknown[0]!r} are wanted; the sources are {', '.join(map(repr, names))}.")


def _questions(folders: Mapping[str, Path]) -> tuple[dict[str, _Asked], list[str]]:
    asked: dict[str, _Asked] = {}
    notes: list[str] = []
    for source, folder in folders.items():
        dataset = load_beir(folder, documents=_Anything())
        if dataset.ignore_identical_ids:
            raise DataError(
                f"{folder} says ignore_identical_ids: a document that bears the id of the question does not count. "
                "Merged documents bear other ids. Take the questions of other sources, with --questions."
            )
        records = _records(folder)
        for split in _SPLITS:
            _take(asked, source, dataset, split, records)
        notes += dataset.notes
    if not asked:
        raise DataError("none of the sources has questions; at least one folder must have queries.jsonl and qrels/.")
    return asked, notes


def _take(
    asked: dict[str, _Asked], source: str, dataset: Dataset, split: str, records: Mapping[str, dict[str, Any]]
) -> None:
    if split not in dataset.splits:
        return
    for question in dataset.splits[split].questions:
        known = asked.setdefault(question.id, _Asked(question, records[question.id], split))
        if known.question != question:
            raise DataError(
                f"question {question.id!r} of {source} reads {question.text!r}, and that of a source before it "
                f"{known.question.text!r}. Rename one, or take the questions of one source, with --questions."
            )
        known.split = max(known.split, split, key=_SPLITS.index)
        for document, grade in dataset.splits[split].qrels[question.id].items():
            known.judged[source, document] = grade


def _records(folder: Path) -> dict[str, dict[str, Any]]:
    """Lines of queries.jsonl by id: they may hold more than a question, such as right answers."""
    path = folder / "queries.jsonl"
    return {
        identifier_of(record, path, number): record
        for number, record in read_records(path, "the questions, one per line")
    }


def _fingerprints(folders: Mapping[str, Path], judged: set[tuple[str, str]]) -> dict[tuple[str, str], bytes]:
    """(source, document) → MD5 of each judged document. Raises DataError where one is not in its corpus."""
    found: dict[tuple[str, str], bytes] = {}
    for source in dict.fromkeys(source for source, _ in sorted(judged)):
        for _, document in read_corpus(folders[source] / "corpus.jsonl"):
            if (source, document.id) in judged:
                found[source, document.id] = fingerprint(document)
    if missing := sorted(judged - found.keys()):
        source, document_id = missing[0]
        raise DataError(
            f"{folders[source]}: document {document_id!r} is judged but is not in corpus.jsonl ({len(missing)} such "
            "documents in all sources). Add it, or remove its judgements."
        )
    return found


def _corpus_lines(
    folders: Mapping[str, Path], kept: dict[bytes, str], counts: dict[str, dict[str, int]]
) -> Iterator[str]:
    """The lines of the documents that stay; the ids of those with a fingerprint in `kept` are put there."""
    seen: set[bytes] = set()
    for source, folder in folders.items():
        for _, document in read_corpus(folder / "corpus.jsonl"):
            mark = fingerprint(document)
            counts[source]["duplicates" if mark in seen else "documents"] += 1
            if mark in seen:
                continue
            seen.add(mark)
            merged = f"{source}/{document.id}"
            if mark in kept:
                kept[mark] = merged
            yield json.dumps({"_id": merged, "title": document.title, "text": document.text}, ensure_ascii=False)


def _qrels(
    asked: Mapping[str, _Asked], split: str, fingerprints: Mapping[tuple[str, str], bytes], kept: Mapping[bytes, str]
) -> dict[str, dict[str, int]]:
    qrels: dict[str, dict[str, int]] = {}
    for question, one in asked.items():
        if one.split == split:
            mine = qrels.setdefault(question, {})
            for place, grade in one.judged.items():
                document = kept[fingerprints[place]]
                mine[document] = max(grade, mine.get(document, grade))
    return qrels
