"""Reads JSON-lines files, whole or in byte spans, and checks the fields of their records; errors name file and line."""

import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..storage import parse_json

_LIST = re.compile(r"""^\s*\[\s*(?:["']|\]\s*$)|^[^\[]*["']\s*\]\s*$""")
"""A list that was written as a text, whole or cut off at either end."""
_WHOLE = re.compile(r"\s*[+-]?\d+(\.0*)?\s*")


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

    The bytes of a gzipped file are those of its content. Raises DataError as `read_lines`.
    """
    blocks: list[Span] = []
    start, breaks, last = 0, 0, b"\n"
    try:
        with _opened(path) as file:
            while part := file.read(size):
                blocks.append(Span(start, start + len(part), breaks + (1 if last == b"\n" else 2)))
                start, breaks, last = start + len(part), breaks + part.count(b"\n"), part[-1:]
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, expected, error) from error
    return blocks or [Span(0, 0)], breaks + (last != b"\n")


def read_lines(path: Path, expected: str, span: Span = ALL_LINES) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) for each non-blank line of a UTF-8 file, also a gzipped one.

    `expected` describes the file in errors. Raises DataError for a missing or unreadable file, and for bytes that are
    not UTF-8.
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
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, expected, error) from error


def plain_or_gzipped(path: Path) -> Path:
    """The file, or `path.gz` where only that exists."""
    gzipped = path.with_name(f"{path.name}.gz")
    return gzipped if gzipped.is_file() and not path.is_file() else path


def read_records(path: Path, expected: str, span: Span = ALL_LINES) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) for each line of a JSON-lines file; blank lines are skipped.

    Raises DataError as `read_lines`, and for a line that is not one JSON object.
    """
    for number, line in read_lines(path, expected, span):
        try:
            record = parse_json(line)
        except ValueError as error:
            raise DataError(
                f"{path}, line {number}: not valid JSON ({error}); expected one object per line."
            ) from error
        if not isinstance(record, dict):
            raise DataError(f"{path}, line {number}: a JSON {type(record).__name__}; expected one object per line.")
        yield number, record


def identifier_of(record: Mapping[str, object], path: Path, number: int, key: str = "_id") -> str:
    """The id of a record, as text. Raises DataError if it has none."""
    identifier = record.get(key)
    if isinstance(identifier, int) and not isinstance(identifier, bool):
        return str(identifier)
    if not isinstance(identifier, str) or not identifier:
        raise DataError(f"{path}, line {number}: {key!r} is {identifier!r}; expected a string that is not empty.")
    return text_of(record, key, path, number, None)


def text_of(record: Mapping[str, object], key: str, path: Path, number: int, default: str | None) -> str:
    """A text field of a record; `default` if it is missing or null. Raises DataError if the value is no text.

    Lone surrogates are refused: JSON can express them, but tokenizers and UTF-8 files cannot.
    """
    value = record.get(key)
    value = default if value is None else value
    if not isinstance(value, str):
        raise DataError(f"{path}, line {number}: {key!r} is {value!r}; expected a string. Add or correct it.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"{path}, line {number}: {key!r} is not valid Unicode ({error}). Correct the text.") from error
    return value


def strings_of(record: Mapping[str, object], key: str, path: Path, number: int) -> list[str]:
    """A field that holds a list of texts; empty where it is missing. Raises DataError for anything else."""
    value = record.get(key) or []
    if not isinstance(value, list) or not all(isinstance(entry, str) and entry for entry in value):
        raise DataError(f"{path}, line {number}: {key!r} is {value!r}; expected a list of texts. Correct it.")
    return value


def grade_of(value: object, path: Path, number: int) -> int:
    """A grade as int. Raises DataError if it is no whole number: NaN, a fraction, a bool, None."""
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 != 0:
        raise DataError(f"{path}, line {number}: the grade is {value!r}; expected a whole number such as 0, 1 or 2.")
    return int(value)


def refuse_list_text(answers: Iterable[object], line: str) -> None:
    """Raise DataError if an answer is the text of a list, whole or cut; `line` names it in the error."""
    if lists := [answer for answer in answers if isinstance(answer, str) and _LIST.search(answer)]:
        raise DataError(
            f"{line}: an answer is {lists[0]!r}, the text of a list; expected the answers as texts of their own: "
            '"answers": ["…", "…"]. Correct the line.'
        )


def _opened(path: Path) -> gzip.GzipFile | io.BufferedReader:
    return gzip.GzipFile(path) if path.suffix == ".gz" else path.open("rb")


def _unreadable(path: Path, expected: str, error: Exception) -> DataError:
    return DataError(f"{path} cannot be read ({error}); expected {expected}.")
