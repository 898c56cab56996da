"""JSON lines."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def jsonl(rows: Iterable[object]) -> str:
    """The rows as JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_jsonl(path: Path, *rows: object) -> Path:
    """A file of these rows; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(jsonl(rows), encoding="utf-8")
    return path


def read_jsonl(path: Path) -> list[Any]:
    """The values of a file, line by line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
