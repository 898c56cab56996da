"""Reads JSON-lines files, whole or in byte spans; errors name the file and the line."""

import gzip
import io
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..storage import parse_json

_CHUNK = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Span:
    """The lines that begin in the byte range [`start`, `end`); `line` is the number of the first one.

    Adjacent spans yield every line of a file exactly once.
    """

    start: int = 0
    end: int | None = None
    line: int = 1


ALL_LINES = Span()


def spans(path: Path, size: int, expected: str) -> tuple[list[Span], int]:
    """Spans of at most `size` bytes that cover the file, and its number of lines, blank ones included.

    Reads the file once without parsing it. The bytes of a gzipped file are those of its content; each span of one is
    reached by decompressing all before it. Raises DataError as `read_lines` does.
    """
    breaks, last = [0], b"\n"
    try:
        with _opened(path) as file:
            ends_with_break = [True]
            while True:
                newlines, remaining = 0, size
                while remaining and (part := file.read(min(remaining, _CHUNK))):
                    newlines, remaining, last = newlines + part.count(b"\n"), remaining - len(part), part[-1:]
                if remaining == size:
                    break
                breaks.append(breaks[-1] + newlines)
                ends_with_break.append(last == b"\n")
            length = file.tell()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is not readable ({error}); expected {expected}. Compress or copy it again.") from error
    except OSError as error:
        raise _unreadable(path, expected, error) from error
    edges = [*range(0, length, size), length] if length else [0, 0]
    blocks = [
        Span(start, end, breaks[number] + (1 if ends_with_break[number] else 2))
        for number, (start, end) in enumerate(pairwise(edges))
    ]
    return blocks, breaks[-1] + (last != b"\n")


def read_lines(path: Path, expected: str, span: Span = ALL_LINES) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) for each non-blank line of a UTF-8 file, also a gzipped one.

    `expected` describes the file in errors; `span` limits what is read. Raises DataError for a missing or unreadable
    file and for bytes that are not UTF-8.
    """
    number = span.line
    try:
        with _opened(path) as file:
            if span.start:
                file.seek(span.start - 1)
                file.readline()
            position = file.tell()
            while (span.end is None or position < span.end) and (raw := file.readline()):
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                if line.strip():
                    yield number, line
                position += len(raw)
                number += 1
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, line {number}: not UTF-8 ({error}). Save the file as UTF-8.") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}, line {number}: not readable ({error}); expected {expected}.") from error
    except OSError as error:
        raise _unreadable(path, expected, error) from error


def plain_or_gzipped(path: Path) -> Path:
    """The file, or `path.gz` where only that exists. Raises DataError where both exist."""
    gzipped = path.with_name(f"{path.name}.gz")
    if not gzipped.is_file():
        return path
    if path.is_file():
        raise DataError(f"{path} and {gzipped.name} both exist. Remove one of them.")
    return gzipped


def read_records(path: Path, expected: str, span: Span = ALL_LINES) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) for each line of a JSON-lines file; blank lines are skipped.

    Raises DataError as `read_lines` does, and if a line is not one JSON object.
    """
    for number, line in read_lines(path, expected, span):
        try:
            record = parse_json(line)
        except ValueError as error:
            raise DataError(
                f"{path}, line {number}: not valid JSON ({error}); expected one JSON object per line. "
                "Correct or remove the line."
            ) from error
        if not isinstance(record, dict):
            raise DataError(
                f"{path}, line {number}: a JSON {type(record).__name__}; expected one JSON object per line. "
                "Correct or remove the line."
            )
        yield number, record


def identifier_of(record: Mapping[str, object], path: Path, number: int) -> str:
    """The `_id` of a record, as text. Raises DataError if it has none."""
    identifier = record.get("_id")
    if isinstance(identifier, int) and not isinstance(identifier, bool):
        return str(identifier)
    if not isinstance(identifier, str) or not identifier:
        raise DataError(
            f"{path}, line {number}: '_id' is {identifier!r}; expected a string that is not empty. Add one."
        )
    return identifier if identifier.isascii() else _unicode(identifier, "_id", path, number)


def text_of(record: Mapping[str, object], key: str, path: Path, number: int, default: str | None) -> str:
    """A text field of a record; `default` if it is missing or null. Raises DataError if the value is no text."""
    value = record.get(key)
    value = default if value is None else value
    if not isinstance(value, str):
        raise DataError(f"{path}, line {number}: {key!r} is {value!r}; expected a string. Add or correct it.")
    return value if value.isascii() else _unicode(value, key, path, number)


def _unicode(text: str, key: str, path: Path, number: int) -> str:
    """Refuse lone surrogates: JSON can express them, but tokenizers and UTF-8 files cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"{path}, line {number}: {key!r} is not valid Unicode ({error}). Correct the text.") from error
    return text


def _opened(path: Path) -> gzip.GzipFile | io.BufferedReader:
    return gzip.GzipFile(path) if path.suffix == ".gz" else path.open("rb")


def _unreadable(path: Path, expected: str, error: OSError) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(f"{path} does not exist; expected {expected}. Check the path or add the file.")
    return DataError(f"{path} cannot be read ({error}); expected {expected}.")
