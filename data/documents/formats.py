"""Reads files of documents: Markdown, plain text, HTML (trafilatura), PDF (pypdf) and JSON lines.

A document is a title and texts under headings. A file that holds no readable text is `UnreadableDocumentError`, which
says why: the caller skips it and counts it. A missing library is an error of the whole call.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...errors import DataError, in_one_line
from ...sources import install_command
from ..jsonl import read_records, text_of
from .markdown import HeadedText, split_markdown

_TEXT_KEYS, _ID_KEYS = ("text", "contents", "content", "body"), ("_id", "id")
"""Fields of a JSON line that hold a document's text and its id; the first that a line has counts."""


class UnreadableDocumentError(DataError):
    """A file from which no document can be read; the message is the reason alone."""


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """A document as it was read, before it is cut into passages."""

    id: str
    title: str
    sections: tuple[HeadedText, ...]
    """In the order of the document; a text before the first heading has the heading ""."""


def is_readable(path: Path) -> bool:
    """Whether a file's suffix is that of a format that is read."""
    return _suffix(path) in _READERS


def _suffix(path: Path) -> str:
    name = path.name.lower()
    return ".jsonl" if name.endswith(".jsonl.gz") else Path(name).suffix


def read_documents(path: Path, name: str) -> list[SourceDocument]:
    """The documents of a readable file; `name` becomes their id, and that of a JSON line begins with it.

    Raises UnreadableDocumentError for a file without readable text, DataError where the library for it is missing.
    """
    try:
        documents = _READERS[_suffix(path)](path, name)
    except UnreadableDocumentError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableDocumentError(f"it cannot be read ({in_one_line(error)})") from error
    readable = [document for document in documents if any(section.text.strip() for section in document.sections)]
    if not readable:
        raise UnreadableDocumentError("it holds no text")
    return readable


def _decoded(path: Path) -> str:
    """UTF-8, or UTF-16 with its byte order mark."""
    data = path.read_bytes()
    text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    if "\0" in text:
        raise UnreadableDocumentError("it is no text (it holds null bytes)")
    return text.replace("\r\n", "\n")


def _title_of_file(path: Path) -> str:
    return " ".join(path.name.split(".")[0].replace("_", " ").replace("-", " ").split()) or path.name


def _read_markdown(path: Path, name: str) -> list[SourceDocument]:
    title, sections = split_markdown(_decoded(path))
    return [SourceDocument(name, title or _title_of_file(path), tuple(sections))]


def _read_text(path: Path, name: str) -> list[SourceDocument]:
    return [SourceDocument(name, _title_of_file(path), (HeadedText("", _decoded(path)),))]


def _read_html(path: Path, name: str) -> list[SourceDocument]:
    try:
        import trafilatura
    except ImportError as error:
        raise _missing_library(path, "trafilatura and lxml_html_clean", error) from error
    data = path.read_bytes()
    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)  # the reason for skipping a file is said once, here
    text = trafilatura.extract(data, output_format="markdown", include_comments=False, favor_recall=True)
    if not text:
        raise UnreadableDocumentError("it holds no text")
    metadata = trafilatura.extract_metadata(data)
    title, sections = split_markdown(text)
    return [SourceDocument(name, metadata.title or title or _title_of_file(path), tuple(sections))]


def _read_pdf(path: Path, name: str) -> list[SourceDocument]:
    try:
        import pypdf
    except ImportError as error:
        raise _missing_library(path, "pypdf", error) from error
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # as above
    try:
        reader = pypdf.PdfReader(path)
        if reader.is_encrypted and not reader.decrypt(""):
            raise UnreadableDocumentError("it is encrypted; save a copy without its password")
        pages = [page.extract_text() for page in reader.pages]
        title = (reader.metadata.title if reader.metadata is not None else None) or ""
    except (UnreadableDocumentError, OSError):
        raise
    except pypdf.errors.DependencyError as error:  # AES needs the package cryptography
        raise UnreadableDocumentError("it is encrypted; save a copy without its password") from error
    except Exception as error:  # a damaged PDF can raise anything
        raise UnreadableDocumentError(f"it is no readable PDF ({in_one_line(error)})") from error
    if not any(page.strip() for page in pages):
        reason = f"none of its {len(pages)} pages holds text; if it was scanned, run character recognition (OCR) on it"
        raise UnreadableDocumentError(reason)
    text = "\n\n".join(_unwrapped(page) for page in pages)
    return [SourceDocument(name, " ".join(title.split()) or _title_of_file(path), (HeadedText("", text),))]


def _unwrapped(page: str) -> str:
    """The text of a page with words that were hyphenated at the end of a line put together."""
    lines: list[str] = []
    for line in (line.strip() for line in page.splitlines()):
        if lines and lines[-1].endswith("-") and lines[-1][-2:-1].isalpha() and line[:1].islower():
            lines[-1] = lines[-1][:-1] + line
        else:
            lines.append(line)
    return "\n".join(lines)


def _read_jsonl(path: Path, name: str) -> list[SourceDocument]:
    documents = []
    try:
        for number, record in read_records(path, "documents, one JSON object per line"):
            key = next((key for key in _TEXT_KEYS if key in record), "text")
            text, title = text_of(record, key, path, number, None), text_of(record, "title", path, number, "")
            identifier = next((record[key] for key in _ID_KEYS if record.get(key) not in (None, "")), f"line{number}")
            label = title or _title_of_file(path)
            documents.append(SourceDocument(f"{name}:{identifier}", label, (HeadedText("", text),)))
    except DataError as error:
        raise UnreadableDocumentError(str(error)) from error
    return documents


def _missing_library(path: Path, library: str, error: ImportError) -> DataError:
    return DataError(
        f"{path} is read with {library}, which is not installed ({in_one_line(error)}). Install it: "
        f"{install_command('documents')}; or leave such files out."
    )


_READERS: Mapping[str, Callable[[Path, str], list[SourceDocument]]] = {
    **dict.fromkeys((".md", ".markdown"), _read_markdown),
    **dict.fromkeys((".txt", ".text"), _read_text),
    **dict.fromkeys((".html", ".htm", ".xhtml"), _read_html),
    ".pdf": _read_pdf,
    ".jsonl": _read_jsonl,
}
"""By suffix."""
