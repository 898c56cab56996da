"""Reads files of documents: Markdown, plain text, HTML (trafilatura), PDF (pypdf) and JSON lines.

A document is a title and sections, each a text under the headings above it. A file without a readable document raises
`UnreadableDocumentError`, which says why: the caller skips it. A missing library is an error of the whole call.
"""

import logging
import re
import tomllib
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pydantic import AliasChoices, Field
from ruamel.yaml.error import YAMLError

from ..configs.load import parse_yaml
from ..errors import DataError, MissingPackageError, in_one_line
from ..sources import optional_packages
from .leakage import words
from .rows import Row, Text, read_rows
from .topics import without_tags

log = logging.getLogger(__name__)
for library in ("pypdf", "trafilatura"):
    logging.getLogger(library).setLevel(logging.CRITICAL)  # the reason for skipping a file is said once, here

_FRONT_MATTER = re.compile(r"\A(---|\+\+\+)[ \t]*\n(.*?)\n(?:\1|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_TITLE_LINE = re.compile(r"""^title[ \t]*[:=][ \t]*(["']?)(?![ \t]*[\[{])(.*?)\1[ \t]*(?:#.*)?$""", re.MULTILINE)
_BRACKETED = r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]"
_LINK = re.compile(rf"!?{_BRACKETED}(?:\((?:[^()\n]|\([^()\n]*\))*\)|\[[^\[\]\n]*\])")
"""A link or image with its address or the label of one."""
_LOST = re.compile("\0|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]")
"""NULs, and surrogates without the other half."""
_INVISIBLE = re.compile("[\0\u00ad\u200b\ufeff]")
_PRESENTATION = re.compile("[\ufb00-\ufdff\ufe70-\ufefc]+")
"""Ligatures and other presentation forms, which a PDF may hold in place of letters."""
_DOUBLED_F = re.compile("f(?=[\ufb03\ufb04])")
"""The f before ffi or ffl, where a font has its ligature fi or fl in their place."""
_HEADINGS = "//*[self::h1 or self::h2 or self::h3 or self::h4 or self::h5 or self::h6]"


class UnreadableDocumentError(DataError):
    """No document can be read from a file; the message is the reason alone."""


@dataclass(frozen=True, slots=True)
class TextSection:
    """A text and the headings above it, outermost first. A heading without a text is a section too."""

    headings: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """A document as it was read, before it is cut into passages."""

    id: str
    title: str
    sections: tuple[TextSection, ...]


def is_readable(path: Path) -> bool:
    """Whether a file's suffix is that of a format that is read."""
    return _suffix(path) in _READERS


def read_documents(path: Path, name: str) -> list[SourceDocument]:
    """The documents of a readable file, at least one; `name` becomes their id, and that of a JSON line begins with it.

    Raises UnreadableDocumentError for a file without readable text, MissingPackageError without the library for it.
    """
    try:
        documents = _READERS[_suffix(path)](path, name)
    except (UnreadableDocumentError, MissingPackageError):
        raise
    except Exception as error:  # a damaged file may raise anything in its parser
        raise UnreadableDocumentError(f"it cannot be read ({in_one_line(error)})") from error
    lost = sum(len(_LOST.findall(section.text)) for document in documents for section in document.sections)
    if lost:
        log.warning("%s: %d characters are lost, as where a PDF's font does not say which letters they are", path, lost)
    cleaned = [
        SourceDocument(document.id, clean(document.title), tuple(map(_clean_section, document.sections)))
        for document in documents
    ]
    readable = [document for document in cleaned if any(any((*s.headings, s.text)) for s in document.sections)]
    if not readable:
        raise UnreadableDocumentError("it holds no text")
    return readable


def clean(text: str) -> str:
    """The text with surrogates paired or replaced, ligatures as letters, and without NULs and soft hyphens."""
    paired = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    paired = _DOUBLED_F.sub("", paired)
    expanded = _PRESENTATION.sub(lambda match: unicodedata.normalize("NFKC", match[0]), paired)
    return _INVISIBLE.sub("", expanded)


def split_markdown(markdown: str) -> tuple[str, list[TextSection]]:
    """The title, "" without one, and the sections (CommonMark). Links and images are reduced to their texts.

    The title is that of the front matter, else the first heading if it is of level 1; as the title it is no part of the
    headings of sections.
    """
    title, markdown = _front_matter(markdown)
    lines = markdown.split("\n")
    headings: list[tuple[int, int, int, str]] = []
    """First line, line after the last, level and text of each."""
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown)
    for token, inline in pairwise(tokens):
        if token.type == "heading_open" and token.level == 0 and token.map is not None:
            headings.append((token.map[0], token.map[1], int(token.tag[1]), _heading(inline)))
        elif inline.map is not None and any(child.type in ("image", "link_open") for child in inline.children or ()):
            block = slice(*inline.map)
            lines[block] = _without_links("\n".join(lines[block])).split("\n")
    if not title and headings and headings[0][2] == 1:
        title = headings[0][3]
    sections = [TextSection((), "\n".join(lines[: headings[0][0] if headings else None]).strip())]
    path: dict[int, str] = {}
    for number, (_, start, level, text) in enumerate(headings):
        path = {outer: name for outer, name in path.items() if outer < level} | ({level: text} if text else {})
        end = headings[number + 1][0] if number + 1 < len(headings) else None
        names = tuple(path.values())
        sections.append(TextSection(names[names[:1] == (title,) :], "\n".join(lines[start:end]).strip()))
    next_headings = [*(section.headings for section in sections[1:]), ()]
    result = [
        section
        for section, after in zip(sections, next_headings, strict=True)
        # a heading without text stands in the path of the headings below it
        if section.text or (section.headings and after[: len(section.headings)] != section.headings)
    ]
    return title, result or [TextSection((), title)] * bool(title)


def _front_matter(markdown: str) -> tuple[str, str]:
    """The title in the head (YAML, or TOML between +++), and the text below the head."""
    front = _FRONT_MATTER.match(markdown)
    if front is None:
        return "", markdown
    try:
        values = parse_yaml(front[2]) if front[1] == "---" else tomllib.loads(front[2])
    except (YAMLError, ValueError):  # such as `title: Part 1: the pump`
        line = _TITLE_LINE.search(front[2])
        values = {"title": line[2] if line else ""}
    if not isinstance(values, dict):  # text between two rules
        return "", markdown
    title = values.get("title")
    stated = "" if title is None or isinstance(title, list | dict) else str(title)
    return " ".join(stated.split()), markdown[front.end() :]


def _heading(inline: Token) -> str:
    """The text of a heading without marks of emphasis and code, tags, and links that show no word ("¶")."""
    parts: list[str] = []
    for child in inline.children or ():
        if child.type == "link_open":
            start = len(parts)
        elif child.type == "link_close":
            parts[start:] = ["".join(parts[start:])] if re.search(r"\w", "".join(parts[start:])) else []
        else:
            parts.append("\n" if child.type in ("softbreak", "hardbreak") else child.content)
    return " ".join(without_tags("".join(parts)).split())


def _without_links(text: str) -> str:
    """The text with the texts of links and images in their place; an image may be that of a link."""
    return _LINK.sub(r"\1", _LINK.sub(r"\1", text))


def _clean_section(section: TextSection) -> TextSection:
    return TextSection(tuple(map(clean, section.headings)), clean(section.text).strip())


def _suffix(path: Path) -> str:
    name = path.name.lower()
    return ".jsonl" if name.endswith(".jsonl.gz") else Path(name).suffix


def _decoded(path: Path) -> str:
    """UTF-8, or UTF-16 with its byte order mark; line ends become LF."""
    data = path.read_bytes()
    text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    if "\0" in text:
        raise UnreadableDocumentError("it is no text (it holds null bytes)")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _title_of_file(path: Path) -> str:
    return " ".join(path.name.split(".")[0].replace("_", " ").replace("-", " ").split()) or path.name


def _read_markdown(path: Path, name: str) -> list[SourceDocument]:
    title, sections = split_markdown(_decoded(path))
    return [SourceDocument(name, title or _title_of_file(path), tuple(sections))]


def _read_text(path: Path, name: str) -> list[SourceDocument]:
    return [SourceDocument(name, _title_of_file(path), (TextSection((), _decoded(path)),))]


def _read_html(path: Path, name: str) -> list[SourceDocument]:
    """Its title is the first h1 of `main` or `article`, then `<title>`, then the first heading of the text."""
    with optional_packages("documents"):
        import trafilatura
    page = trafilatura.load_html(path.read_bytes())
    if page is None:
        raise UnreadableDocumentError("it holds no text")
    for element in page.xpath(f"{_HEADINGS}//br | {_HEADINGS}//a"):
        if element.tag == "br":
            element.tail = f" {element.tail or ''}"
            element.drop_tag()
        elif not re.search(r"\w", element.text_content()):  # a link to the heading itself: "¶"
            element.drop_tree()
    elements = [*page.xpath("//main//h1 | //article//h1"), *page.xpath("//head/title")]
    stated = [" ".join(element.text_content().split()) for element in elements]
    text = trafilatura.extract(page, output_format="markdown", include_comments=False, favor_recall=True)
    if not text:
        raise UnreadableDocumentError("it holds no text")
    first, sections = split_markdown(text)
    title = next(filter(None, stated), "") or first or _title_of_file(path)
    above = (first,) if _letters(first) not in _letters(title) else ()
    return [SourceDocument(name, title, tuple(TextSection((*above, *part.headings), part.text) for part in sections))]


def _letters(text: str) -> str:
    return words(text).replace(" ", "")


def _read_pdf(path: Path, name: str) -> list[SourceDocument]:
    with optional_packages("documents"):
        import pypdf
    reader = pypdf.PdfReader(path)
    if reader.is_encrypted and not reader.decrypt(""):
        raise UnreadableDocumentError("it is encrypted; save a copy without its password")
    pages = [page.extract_text() for page in reader.pages]
    if not any(page.strip() for page in pages):
        reason = f"none of its {len(pages)} pages holds text; if it was scanned, run character recognition (OCR) on it"
        raise UnreadableDocumentError(reason)
    title = " ".join(((reader.metadata.title if reader.metadata is not None else None) or "").split())
    text = "\n\n".join(_unwrapped(page) for page in pages)
    return [SourceDocument(name, title or _title_of_file(path), (TextSection((), text),))]


def _unwrapped(page: str) -> str:
    """The text of a page with words that were hyphenated at the end of a line put together.

    The hyphen of a compound such as state-of-the-art stays.
    """
    lines: list[str] = []
    for line in (line.strip() for line in page.splitlines()):
        last = lines[-1].split()[-1] if lines and lines[-1] else ""
        if last[-1:] in ("-", "\u00ad") and last[-2:-1].isalpha() and line[:1].islower():
            lines[-1] = (lines[-1] if "-" in last[:-1] else lines[-1][:-1]) + line
        else:
            lines.append(line)
    return "\n".join(lines)


class _DocumentLine(Row):
    id: str | int | None = Field(None, validation_alias=AliasChoices("_id", "id"))
    title: Text = ""
    text: str = Field(validation_alias=AliasChoices("text", "contents", "content", "body"))


def _read_jsonl(path: Path, name: str) -> list[SourceDocument]:
    documents: dict[str, SourceDocument] = {}
    for location, row in read_rows(path, _DocumentLine):
        line = location.rpartition(", ")[2].replace(" ", "")
        identifier = f"{name}:{line if row.id in (None, '') else row.id}"
        if identifier in documents:
            raise UnreadableDocumentError(f"two of its documents have the id {str(row.id)!r}")
        documents[identifier] = SourceDocument(
            identifier, row.title or _title_of_file(path), (TextSection((), row.text),)
        )
    return list(documents.values())


_READERS: Mapping[str, Callable[[Path, str], list[SourceDocument]]] = {
    **dict.fromkeys((".md", ".markdown"), _read_markdown),
    **dict.fromkeys((".txt", ".text"), _read_text),
    **dict.fromkeys((".html", ".htm", ".xhtml"), _read_html),
    ".pdf": _read_pdf,
    ".jsonl": _read_jsonl,
}
"""By suffix."""
