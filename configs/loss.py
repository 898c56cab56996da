"""The loss, in TRL's own names: what GRPOConfig of the pinned TRL takes and what has a meaning for trees.

docs/training.md says for every setting what it does to a tree.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from .section import Section

LossType = Literal["grpo", "dr_grpo", "dapo", "cispo"]


class LossConfig(Section):
    """The loss. Names and meanings are those of trl.GRPOConfig."""

    beta: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL term (k3) to the reference model: the policy before GRPO, after any warm start."""
    use_bias_correction_kl: bool = True
    """Multiply the KL term by the probability ratio, as TRL does; false: the plain k3 of Yuan et al., eq. 1."""
    num_iterations: Annotated[int, Field(ge=1)] = 1
    """Optimizer steps per rollout. With 1 the probability ratio is 1, and the clip ranges below have no effect."""
    epsilon: Annotated[float, Field(gt=0)] = 0.2
    """Lower clip range: the probability ratio is clipped at 1 − epsilon."""
    epsilon_high: Annotated[float, Field(gt=0)] | None = None
    """Upper clip range: clipped at 1 + epsilon_high; None: epsilon. `cispo`: the maximum ratio itself, such as 5.0."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """Level of the probability ratio: per token, or one per turn (`sequence`, GSPO)."""
    loss_type: LossType = "dapo"
    """TRL's loss type: how the tokens of a step are weighted."""
    entropy_coef: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the entropy bonus (mean token entropy)."""

    @property
    def acts_without_advantage(self) -> bool:
        """Whether a term of the loss depends on tokens whose advantage is 0."""
        return self.beta > 0 or self.entropy_coef > 0

    def trl_settings(self) -> dict[str, object]:
        """Arguments for trl.GRPOConfig."""
        return {name: getattr(self, name) for name in LossConfig.model_fields}

    @model_validator(mode="after")
    def _check_loss(self) -> "LossConfig":
        if self.loss_type == "cispo" and (self.epsilon_high is None or self.epsilon_high < 1):
            raise ValueError(
                f"train.epsilon_high is {self.epsilon_high} and loss_type 'cispo' clips the ratio itself at it, so "
                "that under 1 all of it is cut; give at least 1, such as 5.0"
            )
        return self
