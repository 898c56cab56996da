"""What every section of a run's settings has in common."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Base of all sections: unknown keys are refused, values are immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid")
