"""The passages of a conversational benchmark, beside its questions in one folder.

`corpus.jsonl` is in BEIR's form; else the files in `collection/` are read as they are published: JSON lines with `id`
and `contents` (or `text`), or tab-separated lines of id, text and, where there is one, title. Every file may be
gzipped.
"""

from collections.abc import Iterator
from pathlib import Path

from ..errors import DataError
from .beir import read_corpus
from .jsonl import plain_or_gzipped, read_lines, read_records
from .rows import id_of, string_of, title_of
from .types import Document

_EXPECTED = "passages, one a line"
_HEADER = ("id", "text")


def passage_files(folder: Path) -> list[Path]:
    """The files with passages, in the order of their names; empty if there are none."""
    corpus = plain_or_gzipped(folder / "corpus.jsonl")
    if corpus.is_file():
        return [corpus]
    files = sorted(path for path in (folder / "collection").rglob("*") if path.is_file())
    return [path for path in files if _kind(path) in (".jsonl", ".tsv")]


def published_folder(path: str | Path) -> Path:
    """The folder of that path. Raises DataError if there is none."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise DataError(f"{folder} does not exist. Give the folder with the published files.")
    return folder


def needed_passages(folder: Path) -> list[Path]:
    """`passage_files`. Raises DataError if there are none."""
    files = passage_files(folder)
    if not files:
        raise DataError(
            f"{folder} holds no passages; expected corpus.jsonl, or .jsonl or .tsv files in collection/. Put the "
            "published passages there."
        )
    return files


def read_passages(files: list[Path]) -> Iterator[Document]:
    """Yield the passages of all files. Raises DataError for a line that is none."""
    for path in files:
        if path.name.startswith("corpus.jsonl"):
            yield from (document for _, document in read_corpus(path))
        elif _kind(path) == ".jsonl":
            for number, row in read_records(path, _EXPECTED):
                text = "contents" if "contents" in row else "text"
                title = title_of(row, path, number)
                yield Document(id_of(row, "id", path, number), title, string_of(row, text, path, number))
        else:
            yield from _tabbed(path)


def _tabbed(path: Path) -> Iterator[Document]:
    for number, line in read_lines(path, _EXPECTED):
        fields = line.split("\t")
        if number == 1 and tuple(fields[:2]) == _HEADER:
            continue
        if len(fields) not in (2, 3) or not fields[0]:
            raise DataError(
                f"{path}, line {number}: {line[:80]!r}; expected 'id<TAB>text' or 'id<TAB>text<TAB>title'. Correct the "
                "line."
            )
        yield Document(fields[0], fields[2] if len(fields) == 3 else "", fields[1])


def _kind(path: Path) -> str:
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix
