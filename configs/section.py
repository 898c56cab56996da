"""What every section of a run's settings has in common."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MAX_WEIGHT = 1e6
"""Largest weight of a text in a search plan, of either sign: scores stay finite in every retriever, in float32 too."""
Weight = Annotated[float, Field(ge=-MAX_WEIGHT, le=MAX_WEIGHT, allow_inf_nan=False)]
PositiveWeight = Annotated[float, Field(ge=0, le=MAX_WEIGHT, allow_inf_nan=False)]


class Strict(BaseModel):
    """Data whose unknown keys are refused and whose values are immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Section(Strict):
    """Base of all sections of a run's settings; the string under a field describes it."""

    model_config = ConfigDict(use_attribute_docstrings=True, allow_inf_nan=False)
