"""Datasets as BEIR folders: `corpus.jsonl`, `queries.jsonl`, `qrels/{train,dev,test}.tsv` (Thakur et al. 2021).

Every file may be gzipped. Questions may also be lines of id and text (`queries.tsv` or `topics.tsv`), and judgements
those of TREC.
A split holds exactly the questions with a judgement above 0 in its qrel file, in the order of the questions file; every
judged document of a split is in the corpus. Omissions are counted in `Dataset.notes`.
"""

import json
import os
import shutil
from collections.abc import Collection, Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..errors import DataError
from ..storage import atomic_folder, parse_json, write_lines
from .benchmark import splits_of, within_corpus
from .history import parse_history, records_of
from .jsonl import ALL_LINES, Span, identifier_of, plain_or_gzipped, read_records, text_of
from .rows import grade_of, strings_of
from .trec import JUDGEMENT_COLUMNS, read_judgements
from .types import Dataset, Document, Question, Split, relevant

_QREL_FILES = {"train": "train", "dev": "validation", "validation": "validation", "test": "test"}
_QREL_SUFFIXES = (".tsv", ".txt", ".qrels", ".trec")


def load_beir(
    path: str | Path, splits: Collection[str] | None = None, documents: Container[str] | None = None
) -> Dataset:
    """Read a BEIR folder. `splits` names those to read ("train", "validation", "test"); None reads all there are.

    A folder with neither questions nor judgements is a corpus: it has no splits. Without `qrels/`, each question's
    "split" in `queries.jsonl` says where it belongs: such questions have right answers and no judgements. With
    `documents`, the ids of a corpus stored elsewhere (in an index), `corpus.jsonl` is not read and `Dataset.corpus` is
    empty.

    The qrel files are tab-separated or in the form of TREC, with or without a header line. Judgements whose document
    or question does not exist are dropped and counted. Name, licence, `ignore_identical_ids` and `relevance_level` come
    from an optional `meta.json`.

    Raises DataError for a missing file or split, an empty corpus, a broken line, a duplicate id, a split without
    relevant documents, and as `splits_of` and `within_corpus`.
    """
    folder = beir_folder(path)
    name, licence = name_and_licence(folder)
    if splits is None and not (folder / "qrels").exists() and not _questions_file(folder).is_file():
        corpus = _read_documents(corpus_file(folder)) if documents is None else ()
        return Dataset(name, corpus, {}, (f"{name} is a corpus without questions.",), licence)
    if splits is None and not (folder / "qrels").exists() and (unjudged := _unjudged_splits(folder)):
        corpus = _read_documents(corpus_file(folder)) if documents is None else ()
        return Dataset(name, corpus, unjudged, (f"{name}: its questions have no judgements.",), licence)
    files = _qrel_files(folder / "qrels", splits)
    corpus = _read_documents(corpus_file(folder)) if documents is None else ()
    questions = _read_questions(folder)
    if documents is None:
        documents = {document.id for document in corpus}
    notes: list[str] = []
    qrels = {name: _read_qrels(file) for name, file in files.items()}
    for split, file in files.items():
        if not any(map(relevant, qrels[split].values())):
            raise DataError(f"{file} judges no document as relevant (score above 0); the {split} split would be empty.")
    loaded, dropped = within_corpus(folder.name, splits_of(folder.name, questions, qrels, notes), documents)
    notes += dropped
    meta = read_meta(folder)
    ignores, level = bool(meta.get("ignore_identical_ids", False)), int(str(meta.get("relevance_level", 1)))
    return Dataset(name, corpus, loaded, tuple(notes), licence, ignores, level)


def beir_folder(path: str | Path) -> Path:
    """The folder of that path. Raises DataError if there is none."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise DataError(
            f"dataset folder {folder} does not exist or is not a folder; "
            "expected one with corpus.jsonl, queries.jsonl and qrels/. Check dataset.path."
        )
    return folder


def corpus_file(folder: Path) -> Path:
    """The corpus of a BEIR folder: `corpus.jsonl`, or that gzipped; it need not exist."""
    return plain_or_gzipped(folder / "corpus.jsonl")


def link_corpus(corpus: Path, folder: Path) -> None:
    """Put the corpus file of one BEIR folder into another: the same file on the same disk, else a copy of its date."""
    file = corpus_file(corpus)
    try:
        os.link(file, folder / file.name)
    except OSError:
        shutil.copy2(file, folder / file.name)


def question_records(folder: Path) -> Iterator[tuple[Path, int, dict[str, object]]]:
    """Yield (file, line number, record with `_id` and `text`) for each question of a BEIR folder.

    Raises DataError for a missing or invalid file.
    """
    path = _questions_file(folder)
    yield from ((path, number, record) for number, record in read_records(path, "the questions, one per line"))


def _questions_file(folder: Path) -> Path:
    return plain_or_gzipped(folder / "queries.jsonl")


def name_and_licence(folder: Path) -> tuple[str, str]:
    """Name and licence from the folder's `meta.json`; by default the name of the folder and no licence."""
    meta = {key: value for key, value in read_meta(folder).items() if isinstance(value, str)}
    return meta.get("name") or folder.resolve().name, meta.get("licence") or meta.get("license") or ""


def save_beir(dataset: Dataset, path: str | Path) -> None:
    """Write a dataset as a new BEIR folder that `load_beir` reads back equal (but for its notes).

    The write is atomic: into a temporary folder beside `path`, which is then renamed.

    Raises DataError if `path` exists already or an id does not fit into a qrel file, StorageError if the files cannot
    be written.
    """
    questions: dict[str, Question] = {}
    for question in (question for split in dataset.splits.values() for question in split.questions):
        if questions.setdefault(question.id, question) != question:
            raise DataError(f"two questions have the id {question.id!r}; ids must be unique. Rename one.")
    meta = {"name": dataset.name, "licence": dataset.licence, **judging(dataset)}
    with new_beir_folder(path) as folder:
        write_lines(folder / "corpus.jsonl", map(document_line, dataset.corpus))
        write_lines(folder / "queries.jsonl", map(question_line, questions.values()))
        write_qrels(folder, dataset.splits)
        write_meta(folder, meta)


@contextmanager
def new_beir_folder(path: str | Path) -> Iterator[Path]:
    """A temporary folder with an empty `qrels/`, which becomes `path` when the block ends.

    Raises DataError if `path` exists already, StorageError if the block cannot write its files.
    """
    target = Path(path).expanduser()
    refuse_existing(target)
    with atomic_folder(target) as folder:
        (folder / "qrels").mkdir()
        yield folder


def refuse_existing(target: Path) -> None:
    """Raise DataError if the folder to write exists already."""
    if target.exists():
        raise DataError(
            f"{target} exists already; a dataset is only written to a new folder. Remove it or name another."
        )


def document_line(document: Document) -> str:
    return to_json({"_id": document.id, "title": document.title, "text": document.text})


def question_line(question: Question, more: Mapping[str, object] | None = None) -> str:
    """A line of queries.jsonl; `more` are further fields of it."""
    optional: dict[str, object] = {
        "options": question.options,
        "history": records_of(question.history),
        "reference_rewrite": question.reference_rewrite,
        "excluded_ids": question.excluded,
    }
    present = {name: value for name, value in optional.items() if value}
    return to_json({"_id": question.id, "text": question.text, **present, **(more or {})})


def write_qrels(folder: Path, splits: Mapping[str, Split]) -> None:
    """Write `qrels/` of a BEIR folder, in the order of the questions.

    Raises DataError if an id contains a tab or a line break, OSError.
    """
    for name, split in splits.items():
        lines = ["\t".join(JUDGEMENT_COLUMNS)]
        for question in split.questions:
            for document, grade in split.qrels[question.id].items():
                if any(character in question.id + document for character in "\t\r\n"):
                    raise DataError(
                        f"ids {question.id!r}, {document!r}: a qrel file takes no tab or line break in an id."
                    )
                lines.append(f"{question.id}\t{document}\t{grade}")
        write_lines(folder / "qrels" / f"{'dev' if name == 'validation' else name}.tsv", lines)


def judging(dataset: Dataset) -> dict[str, object]:
    """The fields of `meta.json` that say how judgements count, as far as they differ from the defaults."""
    fields: dict[str, object] = {}
    if dataset.ignore_identical_ids:
        fields["ignore_identical_ids"] = True
    if dataset.relevance_level != 1:
        fields["relevance_level"] = dataset.relevance_level
    return fields


def write_meta(folder: Path, meta: Mapping[str, object]) -> None:
    write_lines(folder / "meta.json", [json.dumps(meta, ensure_ascii=False, indent=1)])


def to_json(value: Mapping[str, object]) -> str:
    """One line of JSON, non-ASCII characters as they are."""
    return json.dumps(value, ensure_ascii=False)


def _qrel_files(folder: Path, splits: Collection[str] | None) -> dict[str, Path]:
    """Split name → qrel file, for the requested splits."""
    files: dict[str, Path] = {}
    for stem, split in _QREL_FILES.items():
        for file in (plain_or_gzipped(folder / f"{stem}{suffix}") for suffix in _QREL_SUFFIXES):
            if file.is_file():
                files.setdefault(split, file)
    if not files:
        raise DataError(
            f"{folder} holds no qrel file; expected train.tsv, dev.tsv or test.tsv with lines "
            "'query-id<TAB>corpus-id<TAB>score' or TREC's 'query-id 0 corpus-id score'. Add at least one, or, for "
            'questions with right answers and no judgements, a "split" to each line of queries.jsonl.'
        )
    if splits is None:
        return files
    if missing := [split for split in splits if split not in files]:
        raise DataError(f"{folder} has no split {', '.join(missing)}; it has {', '.join(files)}. Ask for those.")
    return {split: file for split, file in files.items() if split in splits}


def read_corpus(path: Path, span: Span = ALL_LINES) -> Iterator[tuple[int, Document]]:
    """Yield (line number, document) for the lines of a `corpus.jsonl`, one at a time; ids may repeat.

    Raises DataError for a missing file and for an invalid line.
    """
    for number, record in read_records(path, "the corpus, one document per line", span):
        title, text = text_of(record, "title", path, number, ""), text_of(record, "text", path, number, None)
        yield number, Document(identifier_of(record, path, number), title, text)


def no_document(path: Path) -> DataError:
    return DataError(f'{path} holds no document; expected lines like {{"_id": …, "title": …, "text": …}}. Fill it.')


def _read_documents(path: Path) -> tuple[Document, ...]:
    corpus: list[Document] = []
    lines: dict[str, int] = {}
    for number, document in read_corpus(path):
        _refuse_second(document.id, number, lines, path, "document")
        corpus.append(document)
    if not corpus:
        raise no_document(path)
    return tuple(corpus)


def _read_questions(folder: Path) -> dict[str, Question]:
    questions: dict[str, Question] = {}
    lines: dict[str, int] = {}
    for path, number, record in question_records(folder):
        identifier = identifier_of(record, path, number)
        _refuse_second(identifier, number, lines, path, "question")
        text = text_of(record, "text", path, number, None)
        if not text.strip():
            raise DataError(
                f"{path}, line {number}: question {identifier!r} has no text. Fill it in or remove the line."
            )
        options = record.get("options", [])
        if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
            raise DataError(f"{path}, line {number}: 'options' is {options!r}; expected a list of strings.")
        try:
            history = parse_history(record.get("history"))
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}. Correct the line.") from error
        reference = text_of(record, "reference_rewrite", path, number, "")
        excluded = tuple(strings_of(record, "excluded_ids", path, number)) if "excluded_ids" in record else ()
        questions[identifier] = Question(identifier, text, tuple(options), history, reference.strip(), excluded)
    return questions


def _unjudged_splits(folder: Path) -> dict[str, Split]:
    """The splits that the questions name themselves; empty if none does. Raises DataError for an unknown one."""
    questions = _read_questions(folder)
    by_split: dict[str, list[Question]] = {}
    for path, number, record in question_records(folder):
        split = record.get("split")
        if split is None:
            continue
        if not isinstance(split, str) or split not in _QREL_FILES:
            raise DataError(
                f"{path}, line {number}: 'split' is {split!r}; expected {', '.join(_QREL_FILES)}. Correct or remove it."
            )
        by_split.setdefault(_QREL_FILES[split], []).append(questions[identifier_of(record, path, number)])
    return {
        name: Split(by_split[name], {question.id: {} for question in by_split[name]})
        for name in dict.fromkeys(_QREL_FILES.values())
        if name in by_split
    }


def _read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """question id → document id → grade, of a file in the form of BEIR or of TREC."""
    qrels: dict[str, dict[str, int]] = {}
    for number, (question, document, score) in read_judgements(path):
        grade = grade_of(score, path, number)
        if qrels.setdefault(question, {}).setdefault(document, grade) != grade:
            raise DataError(
                f"{path}, line {number}: question {question!r} and document {document!r} are judged {grade} here and "
                f"{qrels[question][document]} before. Keep one of the two lines."
            )
    return qrels


def read_meta(folder: Path) -> dict[str, object]:
    """The folder's `meta.json`; empty if there is none. Raises DataError if it is no JSON object."""
    path = folder / "meta.json"
    if not path.is_file():
        return {}
    try:
        meta = parse_json(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise DataError(f"{path} is not valid JSON ({error}). Correct or remove it.") from error
    if not isinstance(meta, dict):
        raise DataError(f"{path} is a JSON {type(meta).__name__}; expected an object. Correct or remove it.")
    return meta


def _refuse_second(identifier: str, number: int, lines: dict[str, int], path: Path, kind: str) -> None:
    first = lines.setdefault(identifier, number)
    if first != number:
        raise DataError(
            f"{path}, line {number}: {kind} id {identifier!r} is on line {first} already; ids must be unique. "
            "Rename or remove one of the two."
        )
