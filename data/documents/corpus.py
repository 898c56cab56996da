"""Writes a folder of documents as a corpus in BEIR form, one line per passage.

`passages.jsonl` beside it says of which document each passage is. A corpus in BEIR form is taken as it is: each of its
documents is one passage.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

from ...errors import DataError
from ...logs import Progress
from ...storage import data_sha256, write_lines
from ..beir import (
    corpus_file,
    document_line,
    name_and_licence,
    new_beir_folder,
    no_document,
    read_corpus,
    refuse_existing,
    to_json,
    write_meta,
)
from ..jsonl import identifier_of, read_records, text_of
from ..leakage import fingerprint
from ..types import Document
from .formats import SourceDocument, UnreadableDocumentError, is_readable, read_documents
from .passages import OVERLAP, WORDS, passages_of, word_count

log = logging.getLogger(__name__)

PASSAGES = "passages.jsonl"


@dataclass(frozen=True, slots=True)
class CorpusSummary:
    """The counts of a written corpus."""

    documents: int
    passages: int
    repeated: int
    """Passages left out because an earlier one has the same title and text."""
    words: int
    """Mean words of a passage."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Files without readable text, and why."""
    other_files: int = 0
    """Files of other formats."""

    def lines(self, name: str) -> list[str]:
        """The summary as lines of text."""
        left_out = f"{self.repeated} repeated ones left out" if self.repeated else "none repeated"
        lines = [
            f"{name}: {self.documents:,} documents in {self.passages:,} passages of {self.words} words on average, "
            f"{left_out}"
        ]
        if self.skipped:
            lines.append(f"skipped {len(self.skipped)} files: {', '.join(self.skipped)}")
        if self.other_files:
            lines.append(f"{self.other_files} files of other formats were not read")
        return lines


def write_corpus(
    source: Path, target: Path, words: int = WORDS, overlap: int = OVERLAP, progress: Progress | None = None
) -> CorpusSummary:
    """Write the documents of a file or folder as the new BEIR folder `target`, a corpus without questions.

    Files without readable text are skipped: each is logged with the reason, and listed in meta.json. Raises DataError
    if `source` does not exist or holds no readable document, if the library for one of its formats is missing, or if
    `target` exists; StorageError if the files cannot be written.
    """
    source, target = source.expanduser(), target.expanduser()
    if overlap * 2 >= words:
        message = f"passages of {words} words cannot repeat {overlap} of them; give less than half."
        raise DataError(message)
    if (beir := _beir_corpus(source)) is not None:
        name, licence = name_and_licence(beir.parent)
        with new_beir_folder(target) as folder:
            alone = ((document.id, [document]) for _, document in read_corpus(beir))
            summary = _write_passages(folder, source, alone, distinct=False)
            return _describe(folder, source, summary, {"name": name, "licence": licence})
    refuse_existing(target)
    files, other_files = _files(source)
    documents, skipped = _read(files, progress)
    if not documents:
        raise DataError(
            f"{source} holds no readable document: {len(skipped)} of {len(files)} files were skipped{_first(skipped)}. "
            "Give Markdown, text, HTML, PDF or JSONL files."
        )
    cut = ((document.id, passages_of(document, words, overlap)) for document in documents)
    with new_beir_folder(target) as folder:
        counts = _write_passages(folder, source, cut, distinct=True)
        name = source.resolve().stem if source.is_file() else source.resolve().name
        summary = replace(counts, skipped=skipped, other_files=other_files)
        return _describe(folder, source, summary, {"name": name, "words": words, "overlap": overlap})


def documents_of_passages(folder: Path) -> dict[str, str]:
    """Passage id → document id, for a corpus folder that `write_corpus` wrote. Raises DataError for another folder."""
    path = folder / PASSAGES
    return {
        identifier_of(record, path, number): text_of(record, "document", path, number, None)
        for number, record in read_records(path, "the document of each passage")
    }


def source_digest(source: Path) -> str:
    """Hash of names, sizes and times of change of the files that `write_corpus` reads, to notice that they changed."""
    source = source.expanduser()
    beir = _beir_corpus(source)
    files = {beir.name: beir} if beir is not None else _files(source)[0]
    return data_sha256(
        [(name, stat.st_size, stat.st_mtime_ns) for name, file in files.items() for stat in [file.stat()]]
    )


def _beir_corpus(source: Path) -> Path | None:
    """The corpus file if the source is a folder in BEIR form, or the file of one."""
    file = corpus_file(source) if source.is_dir() else source
    return file if file.is_file() and file.name in ("corpus.jsonl", "corpus.jsonl.gz") else None


def _files(source: Path) -> tuple[dict[str, Path], int]:
    """The files to read by name, in order of their names, and how many others there are. Hidden ones are neither."""
    if source.is_file():
        if not is_readable(source):
            message = f"{source} is no Markdown, text, HTML, PDF or JSONL file (.md, .txt, .html, .pdf, .jsonl)."
            raise DataError(message)
        return {source.name: source}, 0
    if not source.is_dir():
        raise DataError(f"{source} does not exist; expected a file or folder of documents. Check the path.")
    paths = {path.relative_to(source): path for path in sorted(source.rglob("*")) if path.is_file()}
    visible = {
        name.as_posix(): path for name, path in paths.items() if not any(part.startswith(".") for part in name.parts)
    }
    files = {name: path for name, path in visible.items() if is_readable(path)}
    if not files:
        raise DataError(f"{source} holds no Markdown, text, HTML, PDF or JSONL file ({len(visible)} of other formats).")
    return files, len(visible) - len(files)


def _read(files: Mapping[str, Path], progress: Progress | None) -> tuple[list[SourceDocument], dict[str, str]]:
    """The documents of every file, and why a file has none."""
    documents: list[SourceDocument] = []
    skipped: dict[str, str] = {}
    for number, (name, path) in enumerate(files.items(), start=1):
        printable = name.encode("utf-8", "replace").decode()
        try:
            documents += _read_one(printable, name, path)
        except UnreadableDocumentError as error:
            skipped[printable] = str(error)
            log.warning("%s is skipped: %s", path, error)
        if progress is not None:
            progress(number, len(files))
    return documents, skipped


def _read_one(printable: str, name: str, path: Path) -> Sequence[SourceDocument]:
    if printable != name:
        raise UnreadableDocumentError("its name is not UTF-8; rename it")
    # no tab or line break in an id, and no space, which the qrel files of other programs do not take
    return read_documents(path, re.sub(r"[\s%]", lambda character: quote(character[0]), name))


def _write_passages(
    folder: Path, source: Path, documents: Iterable[tuple[str, Iterable[Document]]], distinct: bool
) -> CorpusSummary:
    """Write corpus and `PASSAGES`; `distinct` leaves out passages with the title and text of an earlier one."""
    ids: set[str] = set()
    fingerprints: set[bytes] = set()
    of_passages: list[str] = []
    words = count = 0

    def lines() -> Iterator[str]:
        nonlocal words, count
        for document, passages in documents:
            count += 1
            for passage in passages:
                _refuse_id(passage.id, ids, source)
                ids.add(passage.id)
                digest = fingerprint(passage)
                if distinct and digest in fingerprints:
                    continue
                fingerprints.add(digest)
                words += word_count(passage.text)
                of_passages.append(to_json({"_id": passage.id, "document": document}))
                yield document_line(passage)

    write_lines(folder / "corpus.jsonl", lines())
    if not of_passages:
        raise no_document(source)
    write_lines(folder / PASSAGES, of_passages)
    (folder / "qrels").rmdir()
    return CorpusSummary(count, len(of_passages), len(ids) - len(of_passages), round(words / len(of_passages)))


def _refuse_id(identifier: str, ids: set[str], source: Path) -> None:
    if identifier in ids:
        message = f"{source}: two passages have the id {identifier!r}; ids must be unique. Rename one."
        raise DataError(message)
    if any(character in identifier for character in "\t\r\n"):
        message = f"{source}: the id {identifier!r} holds a tab or a line break. Rename it."
        raise DataError(message)


def _describe(folder: Path, source: Path, summary: CorpusSummary, more: Mapping[str, object]) -> CorpusSummary:
    origin = {"made_from": str(source), "source_digest": source_digest(source), "summary": asdict(summary)}
    write_meta(folder, {**more, **origin})
    return summary


def _first(skipped: Mapping[str, str]) -> str:
    return next((f" (for instance {name}: {reason})" for name, reason in skipped.items()), "")
