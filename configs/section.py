"""What every section of a run's settings has in common."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_WEIGHT = 1e6
"""Largest weight of a text in a search plan, of either sign: scores stay finite in every retriever, in float32 too."""
Weight = Annotated[float, Field(ge=-MAX_WEIGHT, le=MAX_WEIGHT, allow_inf_nan=False)]
PositiveWeight = Annotated[float, Field(ge=0, le=MAX_WEIGHT, allow_inf_nan=False)]


class Strict(BaseModel):
    """Data whose unknown keys are refused and whose values are immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Section(Strict):
    """Base of all sections of a run's settings."""

    removed: ClassVar[Mapping[str, object]] = {}
    """Settings of earlier versions, each with the value that had no effect: with it they are passed over, since runs
    record all their settings; with any other value they are refused as unknown."""

    @model_validator(mode="before")
    @classmethod
    def _without_removed(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if name not in cls.removed or value != cls.removed[name]}
