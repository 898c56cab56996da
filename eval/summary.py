"""Summarise an evaluation for a terminal, from its results.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..storage import parse_json
from .behaviour import percent
from .records import METRICS
from .table import Arm, decimal

_HEAD = ("system", METRICS[0], "with fall-back", "repeats question", "cut", "in format")


def summary(results: Path) -> str:
    """The headline, a table of all systems, and notes on the weights of the training-free baselines."""
    content = parse_json(results.read_text(encoding="utf-8"))
    best = content["best_training_free"]
    rows = [list(_HEAD), *(_row(row, best) for row in content["systems"])]
    return "\n".join([content["headline"], "", *_aligned(rows), "", *content["notes"]]).rstrip()


def _row(row: Mapping[str, Any], best: str | None) -> list[str]:
    name = Arm(row["system"], row["turn"]).label + (" (best training-free)" if row["system"] == best else "")
    cells = [name, decimal(row["metrics"][METRICS[0]])]
    if not row["turn"]:
        return cells + ["–"] * 4
    shares = [percent(row[key]) for key in ("repeats", "cut", "format_ok")]
    return [*cells, decimal(row["with_fall_back"]), *shares]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows padded to aligned columns; the first column is left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if not position else cell.rjust(width)
            for position, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def plan_summary(tables: Path) -> str:
    """The tables of an evaluated plan."""
    return tables.read_text(encoding="utf-8")
