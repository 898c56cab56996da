"""The base of every section of settings, and the types of value that several sections share."""

import re
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MAX_WEIGHT = 1e6
"""Largest weight of a text in a search plan, of either sign: scores stay finite in every retriever, in float32 too."""
Weight = Annotated[float, Field(ge=-MAX_WEIGHT, le=MAX_WEIGHT, allow_inf_nan=False)]
PositiveWeight = Annotated[float, Field(ge=0, le=MAX_WEIGHT, allow_inf_nan=False)]

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")]
"""A name that the user chooses; it becomes a folder, a file, a job name and a part of shell commands."""

RewardMetric = Annotated[str, Field(pattern=r"^(ndcg|recall|mrr|setp|f[1-9])@(1000|[1-9][0-9]{0,2})$")]
"""ndcg@k, recall@k, mrr@k, setp@k (precision of the set) or f1@k to f9@k (its F_β) of the first k documents, 1 to 1000,
of a search, which returns at least k."""


class Strict(BaseModel):
    """Data whose unknown keys are refused and whose values are immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Section(Strict):
    """Base of all sections of settings; the string under a field describes it."""

    model_config = ConfigDict(use_attribute_docstrings=True, allow_inf_nan=False)


class Drawn(Section):
    """What is drawn at random."""

    seed: Annotated[int, Field(ge=0)] = 0
    """Random seed of samples, of the order of questions, of new weights, and of statistical tests."""


class Limited(Section):
    """How many questions are taken."""

    limit: Annotated[int, Field(ge=1)] | None = None
    """Size of a random sample (of each dataset, of each part of one, of each task), which a smaller sample is a subset
    of; None: all."""


def as_name(text: str) -> str:
    """A Name like `text`: characters that a name cannot have become hyphens."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text).lstrip(".-") or "run"


def cutoff(metric: RewardMetric) -> int:
    """How many documents the metric scores."""
    return int(metric.partition("@")[2])
