"""Rows of tables as benchmarks publish them: Parquet, JSON lines (also gzipped), or one JSON list."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ..errors import DataError, in_one_line
from ..storage import parse_json, text_sha256
from .jsonl import read_records

_SHARD = re.compile(r".*-\d{5}-of-\d{5}\.parquet")
_BATCH_ROWS = 512


def read_rows(path: Path, columns: Sequence[str] = (), optional: Sequence[str] = ()) -> Iterator[tuple[int, Any]]:
    """Yield (row number from 1, row) of a file whose rows have at least `columns`, one at a time.

    Of a Parquet file only these and `optional` are read. Raises DataError for a missing, empty or damaged file, and for
    a missing column.
    """
    rows = _parquet(path, (*columns, *optional)) if path.suffix == ".parquet" else _json(path)
    number = 0
    for number, row in rows:
        missing = [column for column in columns if column not in row]
        if missing:
            raise DataError(f"{path}, row {number}: no {', '.join(missing)}; it has {', '.join(map(str, row))}.")
        yield number, row
    if not number:
        raise DataError(f"{path} holds no row. Fetch it again.")


def parquet_shards(folder: Path, stem: str) -> list[Path]:
    """The files STEM-00000-of-0000N.parquet of a folder in order, or STEM.parquet; empty if there is none.

    Raises DataError if a shard is missing.
    """
    shards = sorted(path for path in folder.glob(f"{stem}-*.parquet") if _SHARD.fullmatch(path.name))
    if shards and len(shards) != int(shards[0].stem[-5:]):
        raise DataError(f"{folder}: {len(shards)} of {int(shards[0].stem[-5:])} files of {stem!r} are there.")
    return shards or [path for path in [folder / f"{stem}.parquet"] if path.is_file()]


def document_id(text: str) -> str:
    """The id of a document without one: the first 16 hex digits of the sha256 of its text."""
    return text_sha256(text)[:16]


def _json(path: Path) -> Iterator[tuple[int, Any]]:
    if ".jsonl" in path.suffixes:
        yield from read_records(path, "rows, one JSON object per line")
        return
    try:
        rows = parse_json(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise DataError(f"{path} cannot be read ({error}); expected a JSON list of rows.") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path} is no JSON list of objects; expected the rows of a table.")
    yield from enumerate(rows, start=1)


def _parquet(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Any]]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            wanted = [name for name in file.schema_arrow.names if name in columns]
            batches = file.iter_batches(batch_size=_BATCH_ROWS, columns=wanted)
            yield from enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), start=1)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read ({in_one_line(error)}). Fetch it again.") from error
