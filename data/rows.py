"""Rows of tables as benchmarks publish them: Parquet and JSON lines (also gzipped).

Rows are read one at a time with their number, so that errors can name the row.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ..errors import DataError, in_one_line
from .jsonl import read_records

_BATCH_ROWS = 512
_SHARD = re.compile(r".*-\d{5}-of-\d{5}\.parquet")
_LIST = re.compile(r"""^\s*\[\s*(?:["']|\]\s*$)|^[^\[]*["']\s*\]\s*$""")
"""A list that was written as a text, whole or cut off at either end."""
_WHOLE = re.compile(r"\s*[+-]?\d+(\.0*)?\s*")
"""A whole number as text, such as a grade."""
_OPTIONAL = ("_id", "id", "title")
FETCH = "Fetch it again: querylect data get NAME."


def read_rows(path: Path, columns: Sequence[str], expected: str) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield (row number from 1, row) of a .parquet, .jsonl or .jsonl.gz file that has at least these columns.

    Raises DataError for a missing, empty or damaged file, another file type, and a missing column.
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist; expected {expected}. {FETCH}")
    if not path.stat().st_size:
        raise DataError(f"{path} is empty; expected {expected}. {FETCH}")
    if path.suffix == ".parquet":
        rows = _parquet(path, columns, expected)
    elif path.name.endswith((".jsonl", ".jsonl.gz")):
        rows = read_records(path, expected)
    else:
        raise DataError(f"{path} is of an unknown kind; expected {expected} as .parquet, .jsonl or .jsonl.gz.")
    count = 0
    for number, row in rows:
        missing = [column for column in columns if column not in row]
        if missing:
            raise DataError(
                f"{path}, row {number}: no column {', '.join(missing)}; expected {expected}, and it has "
                f"{', '.join(map(str, row))}. It may be a file of something else. {FETCH}"
            )
        count += 1
        yield number, row
    if not count:
        raise DataError(f"{path} holds no row; expected {expected}. {FETCH}")


def parquet_shards(folder: Path, stem: str) -> list[Path]:
    """The files STEM-00000-of-0000N.parquet of a folder in order, or STEM.parquet; empty if there is none.

    Raises DataError if a shard is missing.
    """
    shards = sorted(path for path in folder.glob(f"{stem}-*.parquet") if _SHARD.fullmatch(path.name))
    if shards and len(shards) != int(shards[0].stem[-5:]):
        raise DataError(f"{folder}: {len(shards)} of {int(shards[0].stem[-5:])} files of {stem!r} are there. {FETCH}")
    return shards or [path for path in [folder / f"{stem}.parquet"] if path.is_file()]


def string_of(row: Mapping[str, object], column: str, path: Path, number: int) -> str:
    """A text column of a row. Raises DataError if it is missing or no text."""
    value = row.get(column)
    if not isinstance(value, str):
        raise DataError(f"{path}, row {number}: {column!r} is {value!r}; expected a text. Correct or remove the row.")
    return value


def title_of(row: Mapping[str, object], path: Path, number: int) -> str:
    """The title of a row, "" where it has none. Raises DataError for one that is no text."""
    return "" if row.get("title") is None else string_of(row, "title", path, number)


def strings_of(row: Mapping[str, object], column: str, path: Path, number: int) -> list[str]:
    """A column of a row that holds a list of texts. Raises DataError if it does not."""
    value = row.get(column)
    if not isinstance(value, list) or not all(isinstance(entry, str) and entry for entry in value):
        raise DataError(
            f"{path}, row {number}: {column!r} is {value!r}; expected a list of ids. Correct or remove the row."
        )
    return value


def refuse_list_text(answers: Iterable[object], line: str) -> None:
    """Raise DataError if an answer is the text of a list, whole or cut; `line` names it in the error."""
    if lists := [answer for answer in answers if isinstance(answer, str) and _LIST.search(answer)]:
        raise DataError(
            f"{line}: an answer is {lists[0]!r}, the text of a list; expected the answers as texts of their own: "
            '"answers": ["…", "…"]. Correct the line.'
        )


def id_of(row: Mapping[str, object], column: str, path: Path, number: int) -> str:
    """An id column of a row, as text. Raises DataError if it is missing, empty, or neither a text nor an integer."""
    value = row.get(column)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise DataError(f"{path}, row {number}: {column!r} is {value!r}; expected an id. Correct or remove the row.")
    return str(value)


def grade_of(value: object, path: Path, number: int) -> int:
    """A grade as int. Raises DataError if it is no whole number: NaN, a fraction, a bool, None."""
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value != int(value):
        raise DataError(
            f"{path}, row {number}: the grade is {value!r}; expected a whole number such as 0, 1 or 2. "
            "Correct the row, or fetch the file again."
        )
    return int(value)


def _parquet(path: Path, columns: Sequence[str], expected: str) -> Iterator[tuple[int, dict[str, object]]]:
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise DataError(
            f"{path} is no readable Parquet file ({in_one_line(error)}); expected {expected}. {FETCH}"
        ) from error
    with file:
        names = file.schema_arrow.names
        missing = [column for column in columns if column not in names]
        if missing:
            raise DataError(
                f"{path} has no column {', '.join(missing)}; expected {expected}, and it has {', '.join(names)}. "
                f"It may be a file of something else. {FETCH}"
            )
        number = 0
        try:
            to_read = [name for name in names if name in columns or name in _OPTIONAL]
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=to_read):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(
                f"{path} is damaged after row {number} ({in_one_line(error)}); expected {expected}. {FETCH}"
            ) from error


def document_id(text: str) -> str:
    """The id of a document: the first 16 hex digits of the sha256 of its text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
