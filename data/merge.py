"""Merges several BEIR folders into one knowledge base (the Misknow-RAG paper, section 3.1).

A document id gets the name of its source as a prefix, `wiki/12`. Of passages with the same MD5 only the first is kept,
and inherits the judgements of the others. Question ids are unchanged. A question of several sources is merged into one,
with all judgements, in the latest of its splits (train < validation < test): a test question of one source is never
trained on because it is in another's training split. Corpora are read document by document.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import DataError
from .beir import (
    beir_folder,
    documents_of,
    load_beir,
    name_and_licence,
    new_beir_folder,
    questions_of,
    write_documents,
    write_meta,
    write_questions,
)
from .leakage import fingerprint
from .types import SPLITS, AllDocuments, Document, Question, Split

Key = tuple[str, str]
"""(source, document id)."""


class _Questions:
    """The merged questions, their splits, records, and judgements: question → (source, document) → grade."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        """Read the questions of every source. Raises DataError for questions that cannot be merged."""
        self.by_id: dict[str, Question] = {}
        self.records: dict[str, dict[str, object]] = {}
        self.splits: dict[str, str] = {}
        self.judged: dict[str, dict[Key, int]] = {}
        levels: dict[int, str] = {}
        for source, folder in folders.items():
            dataset = load_beir(folder, documents=AllDocuments())
            levels[dataset.relevance_level] = source
            records = {question.id: record for question, record in questions_of(folder)} if dataset.splits else {}
            for name, split in dataset.splits.items():
                for question in split.questions:
                    if dataset.ignore_identical_ids or question.excluded:
                        raise DataError(
                            f"{folder}: its questions leave out documents by their ids, and merged documents bear "
                            "other ids. Take the questions of other sources, with --questions."
                        )
                    if self.by_id.setdefault(question.id, question) != question:
                        raise DataError(
                            f"question {question.id!r} of {source} is {question.text!r}, and in an earlier source "
                            f"{self.by_id[question.id].text!r}. Rename one, or take one source, with --questions."
                        )
                    self.records.setdefault(question.id, records[question.id])
                    self.splits[question.id] = max(self.splits.get(question.id, name), name, key=SPLITS.index)
                    grades = {(source, document): grade for document, grade in split.qrels[question.id].items()}
                    self.judged.setdefault(question.id, {}).update(grades)
        if len(levels) > 1:
            raise DataError(
                f"the sources have different relevance levels ({levels}), so one grade would mean two things. Take "
                "the questions of sources with one level, with --questions."
            )
        self.level = next(iter(levels), 1)

    def split(self, name: str, new_ids: Mapping[Key, str]) -> Split:
        """A split, judged with the ids of the merged documents; of several grades the highest counts."""
        questions = [question for identifier, question in self.by_id.items() if self.splits[identifier] == name]
        qrels: dict[str, dict[str, int]] = {question.id: {} for question in questions}
        for question, grades in qrels.items():
            for key, grade in self.judged[question].items():
                if key in new_ids:
                    grades[new_ids[key]] = max(grade, grades.get(new_ids[key], grade))
        return Split(questions, qrels)


def merge(sources: Mapping[str, Path], target: Path, question_sources: Sequence[str] | None = None) -> list[str]:
    """Write the folder `target`; return a report.

    `sources` is by the prefix of document ids. `question_sources` names those whose questions are used; None uses every
    folder with qrels. Without any, the new folder is a corpus without questions. Raises DataError for invalid source
    names, for an unusable folder or question, for a named source without questions, and if `target` exists.
    """
    if len(sources) < 2 or any(not name or set(name) & set("/\t\r\n ") for name in sources):
        raise DataError(
            f"the sources are {', '.join(map(repr, sources)) or 'none'}; expected two or more different names without "
            "slash or space, each with its folder: wiki=FOLDER qa=FOLDER."
        )
    if unknown := [name for name in question_sources or () if name not in sources]:
        raise DataError(f"--questions names {unknown[0]!r}; the sources are {', '.join(map(repr, sources))}.")
    folders = {source: beir_folder(folder) for source, folder in sources.items()}
    asked = question_sources or [source for source, path in folders.items() if (path / "qrels").is_dir()]
    questions = _Questions({source: folders[source] for source in asked})
    if question_sources is not None and not questions.by_id:
        raise DataError(f"the sources {', '.join(question_sources)} have no questions. Take those of others.")
    judged = {key for grades in questions.judged.values() for key in grades}
    new_ids: dict[Key, str] = {}
    written, repeated = Counter[str](), Counter[str]()

    def documents() -> Iterator[Document]:
        first: dict[bytes, str] = {}
        for source, folder in folders.items():
            for document in documents_of(folder):
                digest, merged_id = fingerprint(document), f"{source}/{document.id}"
                new = digest not in first
                (written if new else repeated)[source] += 1
                merged_id = first.setdefault(digest, merged_id)
                if (source, document.id) in judged:
                    new_ids[source, document.id] = merged_id
                if new:
                    yield replace(document, id=merged_id)

    with new_beir_folder(target) as folder:
        write_documents(folder, documents())
        splits = {name: split for name in SPLITS if (split := questions.split(name, new_ids)).questions}
        write_questions(folder, splits, questions.records)
        licences = {source: name_and_licence(path)[1] for source, path in folders.items()}
        meta = {
            "name": target.name,
            "licence": "; ".join(f"{source}: {licence or 'not stated'}" for source, licence in licences.items()),
            "made_from": {source: str(path) for source, path in folders.items()},
        }
        write_meta(folder, {**meta, "relevance_level": questions.level})
    counts = ", ".join(f"{len(split.questions)} {name}" for name, split in splits.items()) or "none"
    return [
        *(f"{name}: {written[name]} documents, {repeated[name]} that stood before left out" for name in folders),
        f"{target.name}: {written.total()} documents; questions: {counts}",
    ]
