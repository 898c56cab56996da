"""Published scores of un-rewritten questions, to check an environment before rewriting is measured in it.

A wrong prefix, pooling, split or corpus shows here first. Sources can disagree: a score that agrees with any of them
is right, and the sentence names those it disagrees with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from ..configs.load import parse_yaml

TOLERANCE = 0.005
METRIC = "ndcg@10"


@dataclass(frozen=True, slots=True)
class Reference:
    """One published score."""

    dataset: str
    retriever: str
    split: str
    value: float
    """nDCG@10 in [0, 1]."""
    source: str
    about: str = ""
    """Conditions under which it was measured."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Score of an environment for un-rewritten questions."""

    environment: str
    """Name used in the sentence."""
    dataset: str
    """The name of the dataset; `ragbench/PART` for one part."""
    retriever: str
    """The name of the recipe."""
    split: str
    value: float
    """Mean nDCG@10 in [0, 1]."""
    questions: int


@dataclass(frozen=True, slots=True)
class BaselineCheck:
    """Whether a measured score agrees with the published ones; `unknown` if there is none."""

    measured: Measured
    status: Literal["right", "wrong", "unknown"]
    references: Sequence[Reference]
    sentence: str


@cache
def references() -> tuple[Reference, ...]:
    """All published scores of references.yaml."""
    groups = parse_yaml((Path(__file__).parent / "references.yaml").read_text(encoding="utf-8"))
    return tuple(
        Reference(dataset, group["retriever"], group["split"], value / 100, group["source"], group.get("about", ""))
        for group in groups
        for dataset, value in group["values"].items()
    )


def check_baselines(
    measured: Sequence[Measured], tolerance: float = TOLERANCE, published: Sequence[Reference] | None = None
) -> list[BaselineCheck]:
    """One verdict for each measured score, in the same order.

    A score is right if it is within `tolerance` (absolute, on [0, 1]) of at least one published score for the same
    dataset, retriever and split. `published` replaces those of references.yaml. ValueError for a value outside [0, 1].
    """
    known_scores = references() if published is None else published
    return [_verdict(figure, tolerance, known_scores) for figure in measured]


def plain_name(dataset: str) -> str:
    """Normalise a dataset name for comparison: case-folded, without the prefix `beir/`."""
    return dataset.removeprefix("beir/").removeprefix("BeIR/").casefold()


def _verdict(measured: Measured, tolerance: float, published: Sequence[Reference]) -> BaselineCheck:
    if not 0 <= measured.value <= 1:
        raise ValueError(f"{measured.environment}: nDCG@10 is {measured.value}; expected a mean in [0, 1]")
    key = (plain_name(measured.dataset), measured.retriever, measured.split)
    matching = [
        reference
        for reference in published
        if (plain_name(reference.dataset), reference.retriever, reference.split) == key
    ]
    prefix = (
        f"{measured.environment}: {METRIC} {measured.value:.4f} over {measured.questions} {measured.split} questions"
    )
    if not matching:
        sentence = f"{prefix}: no figure is published for {measured.retriever} on {measured.dataset} that we know."
        return BaselineCheck(measured, "unknown", (), sentence)
    # 1e-9: float rounding must not decide at the edge of the tolerance
    near = [reference for reference in matching if abs(reference.value - measured.value) <= tolerance + 1e-9]
    far = [reference for reference in matching if reference not in near]
    parts = [f"as published ({_source(reference)})" for reference in near]
    parts += [f"{measured.value - reference.value:+.4f} from {_source(reference)}" for reference in far]
    status: Literal["right", "wrong"] = "right" if near else "wrong"
    advice = "" if near else " Look at the corpus, the split, the recipe's templates and ignore_identical_ids first."
    return BaselineCheck(
        measured, status, tuple(matching), f"{prefix}: {status}; {'; '.join(parts)} (tolerance {tolerance:g}).{advice}"
    )


def _source(reference: Reference) -> str:
    conditions = f", {reference.about}" if reference.about else ""
    return f"{reference.value:.4f}, {reference.source}{conditions}"
