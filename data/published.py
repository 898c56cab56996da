"""Published scores: those of the papers that this project reproduces, and those of un-rewritten questions.

The former are printed beside measured ones (data/papers/NAME.yaml). The latter (references.yaml) check an environment
before rewriting is measured in it: a wrong prefix, pooling, split or corpus shows here first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from ..configs.load import parse_yaml

_FOLDER = Path(__file__).parent
TOLERANCE = 0.005
METRIC = "ndcg@10"


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

    citation: str = ""
    notes: Sequence[str] = ()
    figures: Sequence[PublishedFigure] = ()


@cache
def published(name: str) -> Published:
    """The scores of a paper by its packaged name; empty if the name is unknown."""
    path = _FOLDER / "papers" / f"{name}.yaml"
    if not path.is_file():
        return Published()
    content = parse_yaml(path.read_text(encoding="utf-8"))
    figures = [
        PublishedFigure(
            **{name: group[name] for name in ("table", "task", "metric", "unit")},
            system=system,
            generator=str(generator),
            value=float(value),
            setting=group.get("setting", ""),
            of=tuple(group.get("of", ())),
        )
        for group in content["figures"]
        for system, values in group["values"].items()
        for generator, value in zip(group["generators"], values, strict=True)
        if value is not None
    ]
    return Published(content["citation"], tuple(content.get("notes", ())), tuple(figures))


@dataclass(frozen=True, slots=True)
class Reference:
    """One published score of un-rewritten questions."""

    dataset: str
    """`ragbench/PART` for one part."""
    retriever: str
    split: str
    value: float
    """nDCG@10 in [0, 1]."""
    source: str
    """With the conditions under which it was measured."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Score of an environment for un-rewritten questions."""

    environment: str
    """Name used in the sentence."""
    dataset: str
    retriever: str
    """The name of the recipe."""
    split: str
    value: float
    """Mean nDCG@10 in [0, 1]."""
    questions: int


@cache
def references() -> tuple[Reference, ...]:
    """All published scores of references.yaml."""
    groups = parse_yaml((_FOLDER / "references.yaml").read_text(encoding="utf-8"))
    return tuple(
        Reference(
            dataset,
            group["retriever"],
            group["split"],
            value / 100,
            ", ".join(group[name] for name in ("source", "about") if group.get(name)),
        )
        for group in groups
        for dataset, value in group["values"].items()
    )


def check_baseline(
    measured: Measured, tolerance: float = TOLERANCE
) -> tuple[Literal["right", "wrong", "unknown"], str]:
    """Whether a score is published for the dataset, retriever and split, and agrees; and a sentence about it.

    Sources can disagree: a score within `tolerance` (absolute, on [0, 1]) of any of them is right, and the sentence
    names those it disagrees with.
    """
    key = (_plain_name(measured.dataset), measured.retriever, measured.split)
    matching = [entry for entry in references() if (_plain_name(entry.dataset), entry.retriever, entry.split) == key]
    prefix = (
        f"{measured.environment}: {METRIC} {measured.value:.4f} over {measured.questions} {measured.split} questions"
    )
    if not matching:
        return "unknown", f"{prefix}: no figure is published for {measured.retriever} on {measured.dataset}."
    # 1e-9: float rounding must not decide at the edge of the tolerance
    near = [entry for entry in matching if abs(entry.value - measured.value) <= tolerance + 1e-9]
    parts = [f"as published ({entry.value:.4f}, {entry.source})" for entry in near]
    parts += [
        f"{measured.value - entry.value:+.4f} from {entry.value:.4f}, {entry.source}"
        for entry in matching
        if entry not in near
    ]
    advice = "" if near else " Look at the corpus, the split, the recipe's templates and ignore_identical_ids first."
    status: Literal["right", "wrong"] = "right" if near else "wrong"
    return status, f"{prefix}: {status}; {'; '.join(parts)} (tolerance {tolerance:g}).{advice}"


def _plain_name(dataset: str) -> str:
    return dataset.removeprefix("beir/").removeprefix("BeIR/").casefold()
