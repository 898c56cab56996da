"""Writes a folder of documents as a corpus in BEIR form, one line per passage.

`passages.jsonl` beside it says of which document each passage is. A corpus in BEIR form is taken as it is: each of its
documents is one passage.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import quote

from pydantic import Field

from ...errors import DataError
from ...logs import Progress
from ...storage import data_sha256, write_lines
from ..beir import (
    corpus_file,
    documents_of,
    new_beir_folder,
    read_meta,
    refuse_existing,
    write_documents,
    write_meta,
)
from ..leakage import fingerprint
from ..rows import Id, Row, read_rows
from ..types import Document
from .passages import OVERLAP, WORDS, passages_of, word_count
from .readers import SourceDocument, UnreadableDocumentError, is_readable, read_documents

log = logging.getLogger(__name__)

PASSAGES = "passages.jsonl"
_SAME_TITLE = 5
"""Least documents with one title, and at least every tenth, that are worth a warning."""


class _Passage(Row):
    id: Id = Field(alias="_id")
    document: str


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
    if `source` does not exist or holds no readable document, or if `target` exists; MissingPackageError without the
    library for one of its formats.
    """
    source, target = source.expanduser(), target.expanduser()
    if overlap * 2 >= words:
        raise DataError(f"passages of {words} words cannot repeat {overlap} of them; give less than half.")
    refuse_existing(target)
    if (beir := _beir_corpus(source)) is not None:
        origin = read_meta(beir.parent)
        alone = ((document.id, [document]) for document in documents_of(beir.parent))
        return _write(source, target, alone, {"name": origin.name, "licence": origin.licence})
    files, other_files = _files(source)
    documents, skipped = _read(files, progress)
    if not documents:
        example = next((f" (for instance {name}: {reason})" for name, reason in skipped.items()), "")
        raise DataError(
            f"{source} holds no readable document: {len(skipped)} of {len(files)} files were skipped{example}. "
            "Give Markdown, text, HTML, PDF or JSONL files."
        )
    _warn_of_titles(documents)
    cut = ((document.id, passages_of(document, words, overlap)) for document in documents)
    meta = {"name": (source.stem if source.is_file() else source.resolve().name), "words": words, "overlap": overlap}
    return _write(source, target, cut, meta, skipped, other_files)


def documents_of_passages(folder: Path) -> dict[str, str]:
    """Passage id → document id, for a corpus folder that `write_corpus` wrote. Raises DataError for another folder."""
    return {row.id: row.document for _, row in read_rows(folder / PASSAGES, _Passage)}


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
        paths = {source.name: source}
    else:
        paths = {path.relative_to(source).as_posix(): path for path in sorted(source.rglob("*")) if path.is_file()}
    visible = {name: path for name, path in paths.items() if not re.search(r"(^|/)\.", name)}
    files = {name: path for name, path in visible.items() if is_readable(path)}
    if not files:
        raise DataError(
            f"{source} is or holds no Markdown, text, HTML, PDF or JSONL file (.md, .txt, .html, .pdf, .jsonl); "
            f"{len(visible)} are of other formats. Check the path."
        )
    return files, len(visible) - len(files)


def _read(files: Mapping[str, Path], progress: Progress | None) -> tuple[list[SourceDocument], dict[str, str]]:
    """The documents of every file, and why a file has none."""
    documents: list[SourceDocument] = []
    skipped: dict[str, str] = {}
    for number, (name, path) in enumerate(files.items(), start=1):
        printable = name.encode("utf-8", "replace").decode()
        try:
            if printable != name:
                raise UnreadableDocumentError("its name is not UTF-8; rename it")
            documents += read_documents(path, name)
        except UnreadableDocumentError as error:
            skipped[printable] = str(error)
            log.warning("%s is skipped: %s", printable, error)
        if progress is not None:
            progress(number, len(files))
    return documents, skipped


def _warn_of_titles(documents: Sequence[SourceDocument]) -> None:
    ((title, count),) = Counter(document.title for document in documents).most_common(1)
    if count >= max(_SAME_TITLE, len(documents) / 10):
        log.warning(
            "%d of %d documents have the title %r, which tells them not apart: look at where the files state it.",
            count,
            len(documents),
            title,
        )


def _write(
    source: Path,
    target: Path,
    documents: Iterable[tuple[str, Iterable[Document]]],
    meta: Mapping[str, object],
    skipped: Mapping[str, str] | None = None,
    other_files: int = 0,
) -> CorpusSummary:
    """Write corpus and `PASSAGES`; of files (not of a corpus, `skipped` None), each passage once."""
    fingerprints: set[bytes] = set()
    of_passages: list[str] = []
    words = count = repeated = 0

    def passages() -> Iterator[Document]:
        nonlocal words, count, repeated
        for document, parts in documents:
            count += 1
            for passage in parts:
                digest = fingerprint(passage)
                if skipped is not None and digest in fingerprints:
                    repeated += 1
                    continue
                fingerprints.add(digest)
                words += word_count(passage.text)
                # no white space in an id, which the qrel files of other programs do not take
                name = passage.id if skipped is None else _quoted(passage.id)
                of_passages.append(json.dumps({"_id": name, "document": document}, ensure_ascii=False))
                yield Document(name, passage.title, passage.text)

    with new_beir_folder(target) as folder:
        write_documents(folder, passages())
        write_lines(folder / PASSAGES, of_passages)
        mean = round(words / len(of_passages))
        summary = CorpusSummary(count, len(of_passages), repeated, mean, skipped or {}, other_files)
        origin = {"made_from": str(source), "source_digest": source_digest(source), "summary": asdict(summary)}
        write_meta(folder, {**meta, **origin})
    return summary


def _quoted(identifier: str) -> str:
    return re.sub(r"[\s%]", lambda character: quote(character[0]), identifier)
