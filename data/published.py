"""Scores of the papers that this project reproduces, as printed: data/papers/NAME.yaml.

Each score has its table, its generator (the answering model) and the setting in which it was measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..configs.load import parse_yaml

_FOLDER = Path(__file__).parent / "papers"


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """One cell of a paper's table."""

    table: str
    task: str
    metric: str
    system: str
    generator: str
    """The answering model as the paper names it, or another column header."""
    value: float
    """As printed: percent, a share in [0, 1] or a number, as `unit` says."""
    unit: str
    setting: str
    of: Sequence[str] = ()
    """Tasks that the average of is over; without any, all."""


@dataclass(frozen=True, slots=True)
class Published:
    """The scores of one paper."""

    citation: str
    notes: Sequence[str]
    figures: Sequence[PublishedFigure]


NOTHING_PUBLISHED = Published("", (), ())


@cache
def published(name: str) -> Published:
    """The scores of a paper by its packaged name; empty if the name is unknown."""
    path = _FOLDER / f"{name}.yaml"
    if not path.is_file():
        return NOTHING_PUBLISHED
    content: dict[str, Any] = parse_yaml(path.read_text(encoding="utf-8"))
    figures = []
    for group in content["figures"]:
        for system, values in group["values"].items():
            figures += [
                PublishedFigure(
                    **{name: group[name] for name in ("table", "task", "metric", "unit")},
                    system=system,
                    generator=str(generator),
                    value=float(value),
                    setting=group.get("setting", ""),
                    of=tuple(group.get("of", ())),
                )
                for generator, value in zip(group["generators"], values, strict=True)
                if value is not None
            ]
    return Published(content["citation"], tuple(content.get("notes", ())), tuple(figures))
