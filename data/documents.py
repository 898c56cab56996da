"""Writes a folder of documents as a corpus of passages in BEIR form, one line per passage.

`passages.jsonl` beside it says of which document each passage is. A corpus in BEIR form is taken as it is: each of its
documents is one passage.

A passage has at most a given number of words, a character of a script without spaces counting as one, and begins with
the last sentences of the passage before it in its section. Documents are cut at headings first, then at paragraphs,
sentences and words. Sections of a few words are joined with their neighbours, under the headings that they share; the
other headings stand in the text.
"""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from urllib.parse import quote

from pydantic import Field

from ..errors import DataError
from ..logs import Progress
from ..sources import optional_packages
from ..storage import data_sha256
from .beir import corpus_file, documents_of, new_beir_folder, read_meta, refuse_existing, write_documents, write_meta
from .document_readers import SourceDocument, TextSection, UnreadableDocumentError, is_readable, read_documents
from .knowledge_bases import WORD
from .leakage import fingerprint
from .rows import Id, Row, read_rows, write_rows
from .types import Document

log = logging.getLogger(__name__)

WORDS, OVERLAP = 200, 30
"""The packaged limits: words of a passage, and those of them that may repeat the end of the one before."""
PASSAGES = "passages.jsonl"
_SEPARATOR = " > "
"""Joins the headings above a text."""
_SHORT = 4
"""A section of fewer than 1 / `_SHORT` of a passage's words is joined with its neighbour."""
_SAME_TITLE = 5
"""Least documents with one title, and at least every tenth, that are worth a warning."""


class _PassageLine(Row):
    id: Id = Field(alias="_id")
    document: str


def write_corpus(
    source: Path, target: Path, words: int = WORDS, overlap: int = OVERLAP, progress: Progress | None = None
) -> list[str]:
    """Write the documents of a file or folder as the new BEIR folder `target`, a corpus without questions; return what
    to report.

    Files without readable text are skipped: each is logged with the reason, and listed in meta.json. Of equal passages
    of files only the first is written. Raises DataError if `source` does not exist or holds no readable document, or if
    `target` exists; MissingPackageError without the library for one of its formats.
    """
    source, target = source.expanduser(), target.expanduser()
    if overlap * 2 >= words:
        raise DataError(f"passages of {words} words cannot repeat {overlap} of them; give less than half.")
    refuse_existing(target)
    skipped: dict[str, str] = {}
    unread = 0
    documents: Iterable[tuple[str, Iterable[Document]]]
    if (beir := _beir_corpus(source)) is not None:
        documents = ((document.id, [document]) for document in documents_of(beir.parent))
        origin = read_meta(beir.parent)
        meta: dict[str, object] = {"name": origin.name, "licence": origin.licence}
    else:
        files, unread = _files(source)
        parsed = _parsed(files, skipped, progress)
        documents = ((document.id, passages_of(document, words, overlap)) for document in parsed)
        meta = {"name": source.stem if source.is_file() else source.resolve().name, "words": words, "overlap": overlap}
    fingerprints: set[bytes] = set()
    of_passages: list[dict[str, object]] = []
    counts = Counter[str]()

    def passages() -> Iterator[Document]:
        for document, parts in documents:
            counts["documents"] += 1
            for passage in parts:
                digest = fingerprint(passage)
                if beir is None and digest in fingerprints:
                    counts["repeated"] += 1
                    continue
                fingerprints.add(digest)
                counts["words"] += word_count(passage.text)
                # no white space in an id, which the qrel files of other programs do not take
                name = passage.id if beir else re.sub(r"[\s%]", lambda match: quote(match[0]), passage.id)
                of_passages.append({"_id": name, "document": document})
                yield replace(passage, id=name)

    with new_beir_folder(target) as folder:
        write_documents(folder, passages())
        write_rows(folder / PASSAGES, of_passages)
        created = {"made_from": str(source), "source_digest": source_digest(source), "skipped": skipped, **counts}
        write_meta(folder, {**meta, **created})
    lines = [
        f"{target}: {counts['documents']:,} documents in {len(of_passages):,} passages of "
        f"{counts['words'] / len(of_passages):.0f} words on average, {counts['repeated']} repeated ones left out"
    ]
    if skipped:
        lines.append(f"skipped {len(skipped)} files: {', '.join(skipped)}")
    return [*lines, f"{unread} files of other formats were not read"] if unread else lines


def documents_of_passages(folder: Path) -> dict[str, str]:
    """Passage id → document id, for a corpus folder that `write_corpus` wrote. Raises DataError for another folder."""
    return {row.id: row.document for _, row in read_rows(folder / PASSAGES, _PassageLine)}


def source_digest(source: Path) -> str:
    """Hash of names, sizes and times of change of the files that `write_corpus` reads, to notice that they changed."""
    source = source.expanduser()
    beir = _beir_corpus(source)
    files = {beir.name: beir} if beir is not None else _files(source)[0]
    return data_sha256(
        [(name, stat.st_size, stat.st_mtime_ns) for name, file in files.items() for stat in [file.stat()]]
    )


def passages_of(document: SourceDocument, words: int = WORDS, overlap: int = OVERLAP) -> list[Document]:
    """The passages of a document in their order, with the ids `ID#1`, `ID#2`, …

    The title of a passage is that of the document and the headings above it. `overlap` must be less than `words`.
    """
    with optional_packages("documents"):
        from semantic_text_splitter import TextSplitter
    splitter = TextSplitter.from_callback(word_count, words, overlap=overlap)
    titled = [
        (_SEPARATOR.join(filter(None, (document.title, *section.headings))), text)
        for section in _joined(document.sections, words)
        for text in splitter.chunks(section.text)
    ]
    return [Document(f"{document.id}#{number}", title, text) for number, (title, text) in enumerate(titled, start=1)]


def word_count(text: str) -> int:
    """The number of words; a character of a script without spaces is one."""
    return sum(1 for _ in WORD.finditer(text))


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


def _parsed(files: Mapping[str, Path], skipped: dict[str, str], progress: Progress | None) -> list[SourceDocument]:
    """The documents of every file; why a file has none is added to `skipped`. Warns where many have one title."""
    documents: list[SourceDocument] = []
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
    if not documents:
        raise DataError(f"no file of {len(files)} holds a readable document: {skipped}.")
    ((title, count),) = Counter(document.title for document in documents).most_common(1)
    if count >= max(_SAME_TITLE, len(documents) / 10):
        message = "%d of %d documents have the title %r, which tells them not apart: look at where the files state it."
        log.warning(message, count, len(documents), title)
    return documents


def _joined(sections: Sequence[TextSection], words: int) -> list[TextSection]:
    joined: list[list[TextSection]] = []
    for section in sections:
        previous = _together(joined[-1]) if joined else TextSection((), "")
        smaller = min(word_count(previous.text), word_count(section.text))
        if joined and smaller < words // _SHORT and word_count(_together([*joined[-1], section]).text) <= words:
            joined[-1].append(section)
        else:
            joined.append([section])
    return list(map(_together, joined))


def _together(sections: Sequence[TextSection]) -> TextSection:
    """Several sections as one, under the headings that they share."""
    levels = zip(*(section.headings for section in sections), strict=False)
    shared = tuple(names[0] for names in takewhile(lambda names: len(set(names)) == 1, levels))
    parts = [
        part
        for section in sections
        for part in (_SEPARATOR.join(section.headings[len(shared) :]), section.text)
        if part
    ]
    return TextSection(shared, "\n\n".join(parts) or "".join(shared[-1:]))
