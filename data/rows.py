"""Rows of files: JSON lines, also gzipped or a byte span of them; a JSON list; Parquet. Errors name the line."""

import gzip
import io
import json
import re
import reprlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field, ValidationError
from pydantic_core import from_json

from ..errors import DataError, in_one_line
from ..storage import text_sha256, write_lines

_BATCH_ROWS = 512


class Row(BaseModel):
    """The fields of a row that are read; others may be there."""


R = TypeVar("R", bound=BaseModel)
V = TypeVar("V")
Id = Annotated[str, Field(min_length=1, coerce_numbers_to_str=True)]
Text = Annotated[str, BeforeValidator(lambda value: "" if value is None else value)]
"""null is an empty text."""
Texts = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(lambda value: value or ())]
"""null is no text."""
_LIST = re.compile(r"""^\s*\[\s*(?:["']|\]\s*$)|^[^\[]*["']\s*\]\s*$""")
"""A list that was written as a text, whole or cut off at either end."""


@dataclass(frozen=True, slots=True)
class Span:
    """The lines that begin in the byte range [`start`, `end`); `line` is the number of the first one.

    Adjacent spans yield every line of a file exactly once.
    """

    start: int = 0
    end: int | None = None
    line: int = 1


ALL_LINES = Span()


def spans(path: Path, size: int) -> tuple[list[Span], int]:
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
        raise DataError(f"{path} cannot be read ({error}).") from error
    return blocks or [Span(0, 0)], breaks + (last != b"\n")


def read_lines(path: Path, span: Span = ALL_LINES) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) for each non-blank line of a UTF-8 file, also a gzipped one.

    Raises DataError for a missing or damaged file, and for bytes that are not UTF-8.
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
        raise DataError(f"{path} cannot be read ({error}).") from error


def read_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ("FILE, line N", object) for each line of a JSON-lines file. Raises DataError for a broken one."""
    for number, line in read_lines(path):
        location = f"{path}, line {number}"
        try:
            record = from_json(line)
        except ValueError as error:
            raise DataError(f"{location}: not valid JSON ({error}). Correct it.") from error
        if not isinstance(record, dict):
            raise DataError(f"{location}: a {type(record).__name__}; expected a JSON object.")
        yield location, record


def read_rows(path: Path, model: type[R], span: Span = ALL_LINES) -> Iterator[tuple[str, R]]:
    """Yield ("FILE, line N" or "FILE, row N", row) for each row of a file, one at a time.

    Of a Parquet file only the fields of `model` are read. Raises DataError for a damaged file and an invalid row.
    """
    if ".jsonl" in path.suffixes:
        for number, line in read_lines(path, span):
            location = f"{path}, line {number}"
            yield location, checked(model.model_validate_json, line, location)
    else:
        names = [field.validation_alias or name for name, field in model.model_fields.items()]
        choices = [name.choices if isinstance(name, AliasChoices) else [name] for name in names]
        for location, record in raw_rows(path, [str(name) for names in choices for name in names]):
            yield location, checked(model.model_validate, record, location)


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write rows as JSON lines. Raises OSError."""
    write_lines(path, (json.dumps(row, ensure_ascii=False) for row in rows))


def raw_rows(path: Path, columns: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ("FILE, row N", row) for each row; of a Parquet file these columns are read, as far as it has them."""
    if ".jsonl" in path.suffixes:
        yield from read_records(path)
        return
    rows = _parquet(path, columns) if path.suffix == ".parquet" else _json_list(path)
    yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows, start=1))


def checked(parse: Callable[[Any], V], value: object, location: str) -> V:
    """The value that pydantic makes of another one. Raises DataError that begins with `location`."""
    try:
        return parse(value)
    except ValidationError as error:
        raise DataError(f"{location}: {explained(error)}. Correct it.") from error


def explained(error: ValidationError) -> str:
    """The first fault of several in one line: the field, its value, what is expected."""
    first = error.errors(include_url=False)[0]
    value = None if first["type"] == "missing" else first["input"]
    field = ".".join(map(str, first["loc"]))
    return f"{field!r} is {reprlib.repr(value)} ({first['msg']})" if field else first["msg"]


def refuse_list_text(answers: Iterable[object], location: str) -> None:
    """Raise DataError if an answer is the text of a list, whole or cut."""
    if lists := [answer for answer in answers if isinstance(answer, str) and _LIST.search(answer)]:
        raise DataError(
            f"{location}: an answer is {lists[0]!r}, the text of a list; expected the answers as texts of their own: "
            '"answers": ["…", "…"]. Correct the line.'
        )


def plain_or_gzipped(path: Path) -> Path:
    """The file, or `path.gz` where only that exists."""
    gzipped = path.with_name(f"{path.name}.gz")
    return gzipped if gzipped.is_file() and not path.is_file() else path


def document_id(text: str) -> str:
    """The id of a document without one: the first 16 hex digits of the sha256 of its text."""
    return text_sha256(text)[:16]


def parquet_shards(folder: Path, stem: str) -> list[Path]:
    """The files STEM-00000-of-0000N.parquet of a folder in order, or STEM.parquet; empty if there is none.

    Raises DataError if a shard is missing.
    """
    shards = sorted(folder.glob(f"{stem}-[0-9]*-of-[0-9]*.parquet"))
    if shards and len(shards) != int(shards[0].stem[-5:]):
        raise DataError(f"{folder}: {len(shards)} of {int(shards[0].stem[-5:])} files of {stem!r} are there.")
    return shards or list(folder.glob(f"{stem}.parquet"))


def _opened(path: Path) -> gzip.GzipFile | io.BufferedReader:
    return gzip.GzipFile(path) if path.suffix == ".gz" else path.open("rb")


def _json_list(path: Path) -> list[Any]:
    try:
        rows = from_json(path.read_bytes())
    except (ValueError, OSError) as error:
        raise DataError(f"{path} cannot be read ({error}); expected a JSON list of rows.") from error
    if not isinstance(rows, list):
        raise DataError(f"{path} is no JSON list; expected the rows of a table.")
    return rows


def _parquet(path: Path, columns: list[str]) -> Iterator[dict[str, Any]]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            existing = [name for name in file.schema_arrow.names if name in columns]
            batches = file.iter_batches(batch_size=_BATCH_ROWS, columns=existing)
            yield from chain.from_iterable(batch.to_pylist() for batch in batches)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read ({in_one_line(error)}). Fetch it again.") from error
