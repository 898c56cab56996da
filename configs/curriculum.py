"""Settings of the curriculum, of a run on one environment (train.curriculum) and of a mix (mix.curriculum)."""

from typing import Annotated, Literal

from pydantic import Field

from .section import Section


class CurriculumConfig(Section):
    """Which environments and questions are asked more often, by the success seen so far (train/curriculum.py)."""

    prefer: Literal["none", "hard", "learnable"] = "none"
    """none: weights alone. hard: what succeeds least. learnable: what succeeds half of the time, 4·s·(1 − s)."""
    floor: Annotated[float, Field(ge=0.05, le=1)] = 0.2
    """What the least preferred environment or question keeps of its chance; 1 prefers none."""
    memory: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Share of an environment's success that stays from step to step; the rest is what the step measured."""
