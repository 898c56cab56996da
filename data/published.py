"""Figures of papers that this project runs again, as the papers print them: data/papers/NAME.yaml.

A figure bears the table that it stands in and the model that answered; groups say in which setting they were measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ..errors import DataError

_FOLDER = Path(__file__).parent / "papers"


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """One cell of a paper's table."""

    table: str
    task: str
    metric: str
    system: str
    generator: str
    """Who answered, as the paper calls the model; or what else stands above the column."""
    value: float
    """As printed: percent, a share in [0, 1] or a number, as `unit` says."""
    unit: str
    setting: str


@dataclass(frozen=True, slots=True)
class PublishedStep:
    """One system on the question of a case study."""

    system: str
    first: str
    missing: Sequence[str]
    final: str


@dataclass(frozen=True, slots=True)
class PublishedCase:
    """A question that a paper shows step by step."""

    table: str
    task: str
    question: str
    answers: Sequence[str]
    """Those that are right."""
    rows: Sequence[PublishedStep]


@dataclass(frozen=True, slots=True)
class Published:
    """What one paper reports."""

    citation: str
    notes: Sequence[str]
    figures: Sequence[PublishedFigure]
    cases: Sequence[PublishedCase] = ()


NOTHING_PUBLISHED = Published("", (), ())


@cache
def published(name: str) -> Published:
    """The figures of a paper by its packaged name; none where it is not known here.

    Raises DataError where a row has another number of figures than there are generators.
    """
    path = _FOLDER / f"{name}.yaml"
    if not path.is_file():
        return NOTHING_PUBLISHED
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    figures = []
    for group in content["figures"]:
        for system, values in group["values"].items():
            if len(values) != len(group["generators"]):
                raise DataError(
                    f"{path}: {group['table']}, {system!r} has {len(values)} figures for {len(group['generators'])} "
                    "generators; expected one each."
                )
            figures += [
                PublishedFigure(
                    table=group["table"],
                    task=group["task"],
                    metric=group["metric"],
                    system=system,
                    generator=str(generator),
                    value=float(value),
                    unit=group["unit"],
                    setting=group.get("setting", ""),
                )
                for generator, value in zip(group["generators"], values, strict=True)
                if value is not None
            ]
    cases = [
        PublishedCase(**{**case, "rows": tuple(PublishedStep(system, **own) for system, own in case["rows"].items())})
        for case in content.get("cases", ())
    ]
    return Published(content["citation"], tuple(content.get("notes", ())), tuple(figures), tuple(cases))
