"""Settings of prompt optimisation, `querylect optimize`."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from .llm import LlmConfig
from .section import Section

PromptComponent = Literal["system", "question", "documents", "examples"]
"""A part of a few-shot prompt file that is optimised."""


class OptimizeConfig(Section):
    """Prompt optimisation by GEPA (docs/optimize.md): the policy's weights stay, its prompt changes."""

    searches: Annotated[int, Field(ge=1)] | None = None
    """Budget of searches, validation included; None: as many as the rollouts of training with the same config, which is
    `train.steps` × `train.questions_per_step` × the turns of a tree."""
    proposals: Annotated[int, Field(ge=1)] = 200
    """Maximum number of proposals of the reflection model."""
    components: Annotated[list[PromptComponent], Field(min_length=1)] = ["system"]
    """Parts of the prompt that are optimised in turn: the system message, the templates of the question and of the
    shown documents, the examples."""
    minibatch: Annotated[int, Field(ge=1)] = 8
    """Training questions that a proposal is made from; it is validated only if it beats its parent on them."""
    reflection: LlmConfig | None = None
    """The model that proposes prompts; None: the base model of the policy."""
    reflection_tokens: Annotated[int, Field(ge=1)] = 1024
    """Maximum tokens of a proposal, thinking included."""
    task: LlmConfig | None = None
    """A prompted (frozen) model, such as one at an endpoint, whose prompt is optimised instead of the policy's."""

    @field_validator("components")
    @classmethod
    def _check_components(cls, components: list[PromptComponent]) -> list[PromptComponent]:
        if len(set(components)) < len(components):
            raise ValueError(f"components {components} names one of them twice")
        return components
