"""Published figures of un-rewritten questions: whether an environment is right before rewriting is measured in it.

A wrong prefix, pooling, split or corpus shows here first. Sources can disagree with each other; a figure that agrees
with any of them is right, and the sentence says with which it does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

TOLERANCE = 0.005
METRIC = "ndcg@10"


@dataclass(frozen=True, slots=True)
class Reference:
    """One published figure."""

    dataset: str
    retriever: str
    split: str
    value: float
    """nDCG@10 in [0, 1]."""
    source: str
    about: str = ""
    """Under which conditions it holds."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What an environment showed for un-rewritten questions."""

    environment: str
    """Its name, for the sentence."""
    dataset: str
    """The name of the dataset; `ragbench/PART` for one part."""
    retriever: str
    """The name of the recipe."""
    split: str
    value: float
    """Mean nDCG@10 in [0, 1]."""
    questions: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a measured figure is as published; `unknown` where nothing is published for it."""

    measured: Measured
    status: Literal["right", "wrong", "unknown"]
    references: Sequence[Reference]
    sentence: str


def references() -> tuple[Reference, ...]:
    """All published figures that this project knows."""
    return tuple(
        Reference(dataset, group["retriever"], group["split"], value / 100, group["source"], group.get("about", ""))
        for group in _read()
        for dataset, value in group["values"].items()
    )


def check_baselines(
    measured: Sequence[Measured], tolerance: float = TOLERANCE, known: Sequence[Reference] | None = None
) -> list[Verdict]:
    """One verdict for each measured figure, in their order.

    A figure is right where it is within `tolerance` (absolute, on [0, 1]) of at least one published one for the same
    dataset, retriever and split. `known` replaces the figures of this project. ValueError for a value outside [0, 1].
    """
    found = references() if known is None else known
    return [_verdict(one, tolerance, found) for one in measured]


def plain_name(dataset: str) -> str:
    """The name under which figures of a dataset are kept: without the collection that it was fetched from."""
    return dataset.removeprefix("beir/").removeprefix("BeIR/").casefold()


def _verdict(one: Measured, tolerance: float, known: Sequence[Reference]) -> Verdict:
    if not 0 <= one.value <= 1:
        raise ValueError(f"{one.environment}: nDCG@10 is {one.value}; expected a mean in [0, 1]")
    key = (plain_name(one.dataset), one.retriever, one.split)
    mine = [each for each in known if (plain_name(each.dataset), each.retriever, each.split) == key]
    said = f"{one.environment}: {METRIC} {one.value:.4f} over {one.questions} {one.split} questions"
    if not mine:
        return Verdict(
            one, "unknown", (), f"{said}: no figure is published for {one.retriever} on {one.dataset} that we know."
        )
    # rounding of decimals must not decide at the edge of the tolerance
    near = [each for each in mine if abs(each.value - one.value) <= tolerance + 1e-9]
    far = [each for each in mine if each not in near]
    parts = [f"as published ({_source(each)})" for each in near]
    parts += [f"{one.value - each.value:+.4f} from {_source(each)}" for each in far]
    status: Literal["right", "wrong"] = "right" if near else "wrong"
    advice = "" if near else " Look at the corpus, the split, the recipe's templates and ignore_identical_ids first."
    return Verdict(one, status, tuple(mine), f"{said}: {status}; {'; '.join(parts)} (tolerance {tolerance:g}).{advice}")


def _source(reference: Reference) -> str:
    conditions = f", {reference.about}" if reference.about else ""
    return f"{reference.value:.4f}, {reference.source}{conditions}"


@cache
def _read() -> list[dict[str, Any]]:
    return list(yaml.safe_load((Path(__file__).parent / "references.yaml").read_text(encoding="utf-8")))
