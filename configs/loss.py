"""The loss, in TRL's own names: what GRPOConfig of the pinned TRL takes and what has a meaning for trees.

docs/training.md says for every setting what it does to a tree, and why the others of GRPOConfig are not here.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

LossType = Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"]

_OURS = {"mask_truncated_completions"}
"""Done in train/rows.py: TRL counts a turn as cut where its last id is not one of the tokenizer's own two."""


class LossConfig(BaseModel):
    """What an update does with advantages. Names and meanings are those of trl.GRPOConfig."""

    beta: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL term (k3) against the reference model: the policy as GRPO found it, a warm start included."""
    use_bias_correction_kl: bool = True
    """Multiply the KL term by the probability ratio, as TRL does; false is the plain k3 of Yuan et al.'s eq. 1."""
    num_iterations: Annotated[int, Field(ge=1)] = 1
    """Optimizer steps on every rollout. With 1 the probability ratio is 1 and nothing below is ever clipped."""
    epsilon: Annotated[float, Field(gt=0)] = 0.2
    """Clip range of the probability ratio: not below 1 − epsilon."""
    epsilon_high: Annotated[float, Field(gt=0)] | None = None
    """Not above 1 + epsilon_high; None takes epsilon. `cispo`: the largest ratio itself, such as 5.0."""
    delta: Annotated[float, Field(gt=0)] | None = None
    """Two-sided clipping: no ratio above it counts, also where the advantage is negative; above 1 + epsilon."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """`sequence` (GSPO): one ratio for a whole turn."""
    loss_type: LossType = "dapo"
    """How the tokens of a step are weighed."""
    sapo_temperature_neg: Annotated[float, Field(gt=0)] = 1.05
    """`sapo`: how fast tokens with a negative advantage fade as their ratio leaves 1."""
    sapo_temperature_pos: Annotated[float, Field(gt=0)] = 1.0
    """`sapo`: the same for a positive advantage."""
    vespo_k_pos: Annotated[float, Field(ge=0)] = 2.0
    """`vespo`: power by which turns with a positive advantage and a ratio below 1 fade."""
    vespo_lambda_pos: Annotated[float, Field(ge=0)] = 3.0
    """`vespo`: decay by which turns with a positive advantage and a ratio above 1 fade."""
    vespo_k_neg: Annotated[float, Field(ge=0)] = 3.0
    """`vespo`: the power for a negative advantage."""
    vespo_lambda_neg: Annotated[float, Field(ge=0)] = 2.0
    """`vespo`: the decay for a negative advantage."""
    off_policy_mask_threshold: Annotated[float, Field(gt=0)] | None = None
    """Drop turns with a negative advantage whose mean log-ratio fell by more than this."""
    mask_truncated_completions: bool = False
    """Leave turns that were cut at max_new_tokens out of the loss; they stay in the baseline of their siblings."""
    top_entropy_quantile: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Train only on this share of a micro-batch's tokens, those of highest entropy; the KL term keeps all."""
    entropy_coef: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the mean entropy, which the loss then rewards."""
    use_adaptive_entropy: bool = False
    """Raise entropy_coef by entropy_coef_delta after a step whose entropy is at most entropy_target, else lower it."""
    entropy_coef_min: Annotated[float, Field(ge=0)] = 0.0
    """The adapted entropy_coef stays at or above it,"""
    entropy_coef_max: Annotated[float, Field(ge=0)] = 1.0
    """and at or below it."""
    entropy_coef_delta: Annotated[float, Field(gt=0)] = 0.005
    """How much it changes in a step."""
    entropy_target: Annotated[float, Field(gt=0)] = 0.2
    """Mean entropy of a sampled token, in nats, under which the adaptive bonus acts."""

    @property
    def acts_without_advantage(self) -> bool:
        """Whether a term of the loss looks at tokens whatever their advantage."""
        return self.beta > 0 or self.rewards_entropy or self.top_entropy_quantile < 1

    @property
    def rewards_entropy(self) -> bool:
        """Whether entropy is part of the loss, not only a figure to look at."""
        return self.entropy_coef > 0 or self.use_adaptive_entropy

    def trl_settings(self) -> dict[str, Any]:
        """Arguments for trl.GRPOConfig."""
        return {name: getattr(self, name) for name in LossConfig.model_fields if name not in _OURS}

    @model_validator(mode="after")
    def _fits_together(self) -> "LossConfig":
        if self.loss_type == "cispo" and (self.epsilon_high is None or self.epsilon_high < 1):
            raise ValueError(
                f"train.epsilon_high is {self.epsilon_high} and loss_type 'cispo' clips the ratio itself at it, so "
                "that under 1 all of it is cut; give at least 1, such as 5.0"
            )
        if self.loss_type == "luspo" and self.importance_sampling_level != "sequence":
            raise ValueError(
                "loss_type 'luspo' is defined for whole sequences; set train.importance_sampling_level to sequence"
            )
        if self.loss_type == "vespo" and self.importance_sampling_level != "token":
            raise ValueError(
                "loss_type 'vespo' weighs sequences by itself; set train.importance_sampling_level to token"
            )
        if self.delta is not None and self.delta <= 1 + self.epsilon:
            raise ValueError(
                f"train.delta is {self.delta} and cuts into the clip range; give more than 1 + epsilon = "
                f"{1 + self.epsilon:g}"
            )
        return self
