"""Reads JSON-lines files with errors that name the file and the line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import DataError


def read_lines(path: Path, what: str) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) for each line of a UTF-8 file that is not blank.

    `what` says in the errors what the file is for. Raises DataError for a missing or unreadable file and for bytes
    that are not UTF-8.
    """
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                if line.strip():
                    yield number, line
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; expected {what}. Check the path or add the file.") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, line {number}: not UTF-8 ({error}). Save the file as UTF-8.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}); expected {what}.") from error


def read_records(path: Path, what: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) for each line of a JSON-lines file; blank lines are passed over.

    Raises DataError as `read_lines`, and where a line is not one JSON object.
    """
    for number, line in read_lines(path, what):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise DataError(
                f"{path}, line {number}: not valid JSON ({error}); expected one JSON object per line. "
                "Mend or remove the line."
            ) from error
        if not isinstance(record, dict):
            raise DataError(
                f"{path}, line {number}: a JSON {type(record).__name__}; expected one JSON object per line. "
                "Mend or remove the line."
            )
        yield number, record
