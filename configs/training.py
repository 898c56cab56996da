"""Settings of training: credit, loss, warm start, checkpoints, validation."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from .section import RewardMetric, Section

LossType = Literal["grpo", "dr_grpo", "dapo", "cispo"]


class WarmStartConfig(Section):
    """Warm start: supervised imitation before GRPO. Of several turns the second imitates a retrieved title; a policy of
    one turn imitates its best samples (expert iteration)."""

    questions: Annotated[int, Field(ge=0)] = 0
    """Demonstrations of titles, or questions that each round of expert iteration samples. 0: no warm start."""
    learning_rate: Annotated[float, Field(gt=0)] = 6e-4
    """Peak learning rate; warms up over three steps, then decays to 0 at the last."""


class TrainConfig(Section):
    """GRPO training on trees of turns. Names and meanings of the loss, `beta` to `entropy_coef`, are those of
    trl.GRPOConfig; docs/training.md says for every setting what it does to a tree."""

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

    credit: Literal["turn", "trajectory"] = "turn"
    """Advantages. turn: compare a turn with the other answers to the same state. trajectory: compare a path with all
    paths of its question."""
    scale: Literal["group", "batch", "none"] = "none"
    """Divide advantages by the standard deviation of their group, of the batch, or by nothing."""
    steps: Annotated[int, Field(ge=1)] = 40
    """Total optimizer steps of the run."""
    questions_per_step: Annotated[int, Field(ge=1)] = 12
    """Questions (one tree each) per optimizer step, over all processes."""
    questions_per_micro_batch: Annotated[int, Field(ge=1)] = 1
    """Trees per forward and backward pass of a process; limited by memory."""
    max_tokens_per_micro_batch: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of tokens computed at a time: a larger tree is split into subtrees, which compute their common
    prefix again, with the same loss and gradient; a longer sequence is computed alone. None: whole trees."""
    samples_per_update: Annotated[int, Field(ge=1)] | None = None
    """Update on a subsample of this many members per group, sampled by the size of their advantages and reweighted so
    that the expected gradient is unchanged (train/credit.py); None: all members."""
    raw_reward: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=2, max_length=2)] = [0.0, 1.0]
    """Train only on questions whose unrewritten search scores in this range, [lowest, highest], by `raw_metric`.
    A question whose relevant documents are far down its ranking rarely gives a signal, and costs time."""
    raw_metric: RewardMetric | None = None
    """Metric of `raw_reward`; a larger k than the reward's keeps questions whose relevant documents stand below the
    ranks that are rewarded, but within reach. None: what `reward` rewards; where that is a gain (reward.answer.gain),
    the score of the answer."""
    resample_rounds: Annotated[int, Field(ge=0)] = 0
    """Dynamic sampling: extra rollout rounds per step that replace questions whose whole tree has no signal."""
    staleness: Annotated[int, Field(ge=0, le=1)] = 0
    """1: sample the trees of the next step while a step is trained, with weights that are one update old
    (docs/training.md). 0: sample, then train."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-6
    """Peak learning rate. 1e-6 is the paper's value for all weights; the demo trains LoRA with 8e-4."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate: constant, or linear or cosine decay to 0 at the last step."""
    packing: bool = True
    """Compute every shared prefix of a tree once, with an ancestor mask. False trains every leaf in its own row,
    also of a policy that does not support the mask."""
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    """Keep only each layer's inputs and recompute the rest in the backward pass: less memory, a third more time. auto:
    where the activations of the longest tree are estimated at more than 8 GiB."""
    save_steps: Annotated[int, Field(ge=1)] = 10
    """Steps between two checkpoints."""
    keep_checkpoints: Annotated[int, Field(ge=1)] = 2
    """Newest checkpoints to keep, in addition to `best/` and `final/`."""
    validate_steps: Annotated[int, Field(ge=0)] = 0
    """Steps between two validations, which also run before the first and after the last step; 0: no validation."""
    validation_questions: Annotated[int, Field(ge=1)] = 100
    """Validation questions, drawn from the validation split the same with every `seed`; greedy, one answer per turn."""
    warm_start: WarmStartConfig = WarmStartConfig()

    @property
    def acts_without_advantage(self) -> bool:
        """Whether a term of the loss depends on tokens whose advantage is 0."""
        return self.beta > 0 or self.entropy_coef > 0

    @model_validator(mode="after")
    def _check_loss(self) -> "TrainConfig":
        if self.loss_type == "cispo" and (self.epsilon_high is None or self.epsilon_high < 1):
            raise ValueError(
                f"train.epsilon_high is {self.epsilon_high} and loss_type 'cispo' clips the ratio itself at it, so "
                "that under 1 all of it is cut; give at least 1, such as 5.0"
            )
        return self

    @model_validator(mode="after")
    def _check_samples_per_update(self) -> "TrainConfig":
        if self.samples_per_update is not None and self.beta > 0:
            raise ValueError(
                f"train.samples_per_update {self.samples_per_update} leaves out samples that the KL term (train.beta "
                f"{self.beta:g}) is a mean over; set one of the two to its default"
            )
        return self

    @model_validator(mode="after")
    def _check_staleness(self) -> "TrainConfig":
        incompatible = {"num_iterations": self.num_iterations > 1, "resample_rounds": self.resample_rounds > 0}
        wrong = [f"train.{name} {getattr(self, name)}" for name, refused in incompatible.items() if refused]
        if self.staleness and wrong:
            raise ValueError(
                f"train.staleness {self.staleness} samples later steps with older weights, which {' and '.join(wrong)} "
                "does not allow; set one of the two to its default"
            )
        return self
