"""The loss, in TRL's own names: what GRPOConfig of the pinned TRL takes and what has a meaning for trees.

docs/training.md says for every setting what it does to a tree, and why the others of GRPOConfig are not here.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from .section import Section

LossType = Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"]

_OURS = {"mask_truncated_completions"}
"""Done in train/rows.py: TRL would count a turn as truncated if its last id is not the tokenizer's EOS or padding."""


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
    delta: Annotated[float, Field(gt=0)] | None = None
    """Two-sided clipping: maximum ratio, also for negative advantages; must exceed 1 + epsilon. None: no such bound."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """Level of the probability ratio: per token, or one per turn (`sequence`, GSPO)."""
    loss_type: LossType = "dapo"
    """TRL's loss type: how the tokens of a step are weighted."""
    sapo_temperature_neg: Annotated[float, Field(gt=0)] = 1.05
    """`sapo`: how fast the weight of tokens with a negative advantage decays as their ratio departs from 1."""
    sapo_temperature_pos: Annotated[float, Field(gt=0)] = 1.0
    """`sapo`: the same for a positive advantage."""
    vespo_k_pos: Annotated[float, Field(ge=0)] = 2.0
    """`vespo`: power of the weight decay for turns with a positive advantage and a ratio below 1."""
    vespo_lambda_pos: Annotated[float, Field(ge=0)] = 3.0
    """`vespo`: rate of the weight decay for turns with a positive advantage and a ratio above 1."""
    vespo_k_neg: Annotated[float, Field(ge=0)] = 3.0
    """`vespo`: the same power for a negative advantage."""
    vespo_lambda_neg: Annotated[float, Field(ge=0)] = 2.0
    """`vespo`: the same rate for a negative advantage."""
    off_policy_mask_threshold: Annotated[float, Field(gt=0)] | None = None
    """Drop turns with a negative advantage whose mean log-ratio fell by more than this; None: drop none."""
    mask_truncated_completions: bool = False
    """Exclude turns truncated at max_new_tokens from the loss; they still count in the baseline of their state."""
    top_entropy_quantile: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Train only on this share of a micro-batch's tokens, those of highest entropy; the KL term covers all tokens."""
    entropy_coef: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the entropy bonus (mean token entropy)."""
    use_adaptive_entropy: bool = False
    """Adapt entropy_coef: raise it by entropy_coef_delta after a step with entropy ≤ entropy_target, else lower it."""
    entropy_coef_min: Annotated[float, Field(ge=0)] = 0.0
    """Lower bound of the adapted entropy_coef."""
    entropy_coef_max: Annotated[float, Field(ge=0)] = 1.0
    """Upper bound of the adapted entropy_coef."""
    entropy_coef_delta: Annotated[float, Field(gt=0)] = 0.005
    """Change of the adapted entropy_coef per step."""
    entropy_target: Annotated[float, Field(gt=0)] = 0.2
    """Mean entropy per sampled token, in nats, at or below which the adaptive bonus applies."""

    @property
    def acts_without_advantage(self) -> bool:
        """Whether a term of the loss depends on tokens whose advantage is 0."""
        return self.beta > 0 or self.rewards_entropy or self.top_entropy_quantile < 1

    @property
    def rewards_entropy(self) -> bool:
        """Whether entropy is part of the loss and not only logged."""
        return self.entropy_coef > 0 or self.use_adaptive_entropy

    def trl_settings(self) -> dict[str, object]:
        """Arguments for trl.GRPOConfig."""
        return {name: getattr(self, name) for name in LossConfig.model_fields if name not in _OURS}

    @model_validator(mode="after")
    def _check_loss(self) -> "LossConfig":
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
