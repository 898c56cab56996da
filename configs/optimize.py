"""Settings of prompt optimisation, `querylect optimize`."""

from typing import Annotated

from pydantic import Field

from .llm import LlmConfig
from .section import Section


class OptimizeConfig(Section):
    """Prompt optimisation by GEPA (docs/optimize.md): the policy's weights stay, its system message changes."""

    searches: Annotated[int, Field(ge=1)] | None = None
    """Budget of searches, validation included; None: as many as the rollouts of training with the same config, which is
    `train.steps` × `train.questions_per_step` × the turns of a tree."""
    proposals: Annotated[int, Field(ge=1)] = 200
    """Maximum number of proposals of the reflection model."""
    reflection: LlmConfig | None = None
    """The model that proposes prompts; None: the base model of the policy."""
    task: LlmConfig | None = None
    """A prompted (frozen) model, such as one at an endpoint, whose prompt is optimised instead of the policy's."""
