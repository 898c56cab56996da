"""Settings of the curriculum, of a run on one environment (train.curriculum) and of a mix (mix.curriculum)."""

from typing import Annotated, Literal

from pydantic import Field

from .section import Section


class CurriculumConfig(Section):
    """Sample environments and questions by the policy's success on them so far (train/curriculum.py)."""

    prefer: Literal["none", "hard", "learnable"] = "none"
    """none: sample by weight alone. hard: prefer the lowest success s. learnable: prefer s near 0.5, by 4·s·(1 − s)."""
    floor: Annotated[float, Field(ge=0.05, le=1)] = 0.2
    """Lowest sampling chance of an environment or question, relative to the most preferred; 1: no preference."""
    memory: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the running mean of an environment's success: share kept at each step; the rest is the step's mean."""
