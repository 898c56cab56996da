"""Settings of training: credit, loss, warm start, checkpoints, validation and the collapse guard."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from .curriculum import CurriculumConfig
from .loss import LossConfig
from .reward_metric import RewardMetric
from .section import Section


class WarmStartConfig(Section):
    """Warm start: supervised imitation before GRPO (train/warm_start.py)."""

    kind: Literal["titles", "expert_iteration"] = "titles"
    """titles: the second turn imitates a retrieved title. expert_iteration: the policy imitates its best samples."""
    questions: Annotated[int, Field(ge=0)] = 0
    """titles: number of demonstrations. expert_iteration: questions sampled per round. 0: no warm start."""
    questions_per_step: Annotated[int, Field(ge=1)] = 8
    """Questions per optimizer step of the warm start."""
    learning_rate: Annotated[float, Field(gt=0)] = 6e-4
    """Peak learning rate; warms up over three steps, then decays to 0 at the last."""
    least_reward: Annotated[float, Field(ge=0, le=1)] = 0.99
    """titles: minimum reward metric of a title's own search for it to be imitated."""
    unanswered_share: Annotated[float, Field(ge=0, le=1)] = 0.33
    """titles: share of the questions without such a title that are kept; their demonstration repeats the question, or
    stops in turn 2 where the policy may (`rewriter.stop`)."""
    rounds: Annotated[int, Field(ge=1)] = 3
    """expert_iteration: rounds; each samples new questions with the current policy and imitates the best samples."""
    samples: Annotated[int, Field(ge=2)] | None = None
    """expert_iteration: first turns sampled per question; None: as `rollout.branching`, like all later turns."""
    baseline: Literal["mean", "question"] = "mean"
    """expert_iteration: what a sample must beat: the mean of its prompt's samples, or the unrewritten question."""
    margin: Annotated[float, Field(ge=0, le=1)] = 0.1
    """expert_iteration: margin in reward by which a sample must exceed the baseline."""


class GuardConfig(Section):
    """Collapse guard: checks the means of the latest steps for signs that training has failed (train/guard.py)."""

    action: Literal["off", "warn", "stop"] = "stop"
    """off: no checks. warn: log a warning. stop: also end the run if the sign persists `patience` steps later."""
    window: Annotated[int, Field(ge=1)] = 10
    """Steps to average over; no checks run before this many steps."""
    patience: Annotated[int, Field(ge=1)] = 10
    """Steps that a sign may persist before `action: stop` ends the run."""
    reward_drop: Annotated[float, Field(gt=0, le=1)] | None = 0.5
    """Maximum relative drop of the last turn's reward below its best window; None: no check."""
    entropy_floor: Annotated[float, Field(ge=0)] | None = 0.01
    """Minimum entropy, in nats per sampled token, that at least one turn must reach; None: no check."""
    copy_share: Annotated[float, Field(gt=0, le=1)] | None = 0.95
    """Maximum share of rewrites that repeat the question or an earlier turn; a sign only if every turn reaches it.
    None: no check."""
    zero_variance: Annotated[float, Field(gt=0, le=1)] | None = 0.95
    """Maximum share of groups without signal; a sign only if every turn reaches it. None: no check."""
    changed_weights: Annotated[float, Field(gt=0, le=1)] | None = 0.1
    """Minimum share of trained weights that a step with nonzero gradient and learning rate changes; None: no check."""
    logp_difference: Annotated[float, Field(gt=0)] | Literal["auto"] | None = "auto"
    """Maximum mean absolute difference, in nats, of token log-probabilities between sampler and trainer. auto: 0.01 for
    float32 computation, 0.15 for bfloat16, plus ln(1 / top_p). None: no check."""


class TrainConfig(LossConfig):
    """GRPO training on trees of turns."""

    credit: Literal["turn", "trajectory"] = "turn"
    """Advantages. turn: compare a turn with the other answers to the same state. trajectory: compare a path with all
    paths of its question."""
    scale: Literal["group", "batch", "none"] = "none"
    """Divide advantages by the standard deviation of their group, of the batch, or by nothing."""
    best_of: Annotated[int, Field(ge=2)] | None = None
    """Optimize the expected maximum of this many samples instead of their mean ("max@k", pass@k), which keeps samples
    diverse; at most the smallest number in `rollout.branching`, and only with `credit: turn`. None: the mean."""
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
    that the expected gradient is unchanged (train/subsampling.py); None: all members."""
    raw_reward: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=2, max_length=2)] = [0.0, 1.0]
    """Train only on questions whose unrewritten search scores in this range, [lowest, highest], by `raw_metric`.
    A question whose relevant documents are far down its ranking rarely gives a signal, and costs time."""
    raw_metric: RewardMetric | None = None
    """Metric of `raw_reward`; a larger k than the reward's keeps questions whose relevant documents stand below the
    ranks that are rewarded, but within reach. None: what `reward` rewards; where that is a gain (reward.answer.gain),
    the score of the answer."""
    resample_rounds: Annotated[int, Field(ge=0)] = 0
    """Dynamic sampling: extra rollout rounds per step that replace questions whose whole tree has no signal."""
    curriculum: CurriculumConfig = CurriculumConfig()
    """Sample questions by their success in earlier passes; a mix of environments uses mix.curriculum instead."""
    staleness: Annotated[int, Field(ge=0, le=8)] = 0
    """Sample the trees of this many later steps while a step is trained, with weights that are at most as many updates
    old (docs/training.md). 0: sample, then train."""
    in_flight_updates: bool = False
    """With `staleness`: give the engine the newest weights also while trees grow, so that later turns have newer
    weights. Which turn has which depends on time, so runs are not reproducible. False: between two rollouts."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-6
    """Peak learning rate. 1e-6 is the paper's value for all weights; the demo trains LoRA with 8e-4."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps of linear warm-up of the learning rate from 0."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after warm-up: constant, or linear or cosine decay to 0 at the last step."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradient clipping: maximum norm of the gradient."""
    packing: bool | Literal["auto"] = True
    """Compute every shared prefix of a tree once, with an ancestor mask. A policy that does not support it is an error;
    `auto` logs the reason and trains every leaf in its own row, as false does."""
    packed_attention: Literal["auto", "sdpa", "flex"] = "auto"
    """Attention kernel for the ancestor mask: PyTorch's scaled dot product in blocks (sdpa), or FlexAttention (flex),
    which needs a GPU. `auto`: flex on a GPU, else sdpa."""
    gradient_checkpointing: bool | Literal["auto", "reentrant"] = "auto"
    """Keep only each layer's inputs and recompute the rest in the backward pass: less memory, a third more time. auto:
    where the activations of the longest tree are estimated at more than 8 GiB. `reentrant`: PyTorch's older variant,
    which some launchers require."""
    save_steps: Annotated[int, Field(ge=1)] = 10
    """Steps between two checkpoints."""
    keep_checkpoints: Annotated[int, Field(ge=1)] = 2
    """Newest checkpoints to keep, in addition to `best/` and `final/`."""
    grace_seconds: Annotated[float, Field(ge=0)] = 25.0
    """Seconds between SIGTERM and SIGKILL. A step that cannot finish in time is aborted and sampled again on resume."""
    usr1_grace_seconds: Annotated[float, Field(ge=0)] = 540.0
    """The same after SIGUSR1, which a cluster sends before its time limit (Slurm: --signal=USR1@600)."""
    validate_steps: Annotated[int, Field(ge=0)] = 0
    """Steps between two validations, which also run before the first and after the last step; 0: no validation."""
    validation_questions: Annotated[int, Field(ge=1)] = 100
    """Validation questions, drawn from the validation split with `validation_seed`; greedy, one answer per turn."""
    validation_seed: Annotated[int, Field(ge=0)] = 0
    """Random seed of that sample; separate from `seed`, so that runs of different seeds share the questions."""
    guard: GuardConfig = GuardConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    log_rollouts: Annotated[int, Field(ge=0)] = 4
    """Trees written to rollouts.jsonl at every step."""
    importance_sampling_correction: bool = True
    """Weight every token by p_trainer / p_sampler if the sampling engine differs from the trained model. These four
    settings are TRL's, without the prefix `vllm_`; the mismatch is logged with any value."""
    importance_sampling_mode: Literal["token_truncate", "token_mask"] = "token_truncate"
    """For ratios outside the bounds: truncate them to the bound, or drop their tokens."""
    importance_sampling_clip_max: Annotated[float, Field(gt=0)] | None = 3.0
    """Upper bound of the ratio; None: no bound."""
    importance_sampling_clip_min: Annotated[float, Field(ge=0)] | None = None
    """Lower bound of the ratio; None: no bound."""

    @model_validator(mode="after")
    def _check_credit(self) -> "TrainConfig":
        if self.best_of is not None and self.credit != "turn":
            raise ValueError(f"train.best_of {self.best_of} compares turns; set train.credit to turn, or leave it out")
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
        incompatible = {"num_iterations": self.num_iterations > 1, "resample_rounds": self.resample_rounds > 0,
                  "importance_sampling_correction": not self.importance_sampling_correction}  # fmt: skip
        wrong = [f"train.{name} {getattr(self, name)}" for name, refused in incompatible.items() if refused]
        if self.in_flight_updates and not self.staleness:
            raise ValueError(
                "train.in_flight_updates changes the weights of trees that grow during an update, and train.staleness "
                "is 0: none do. Set train.staleness to 1 or more, or leave train.in_flight_updates out"
            )
        if self.staleness and wrong:
            raise ValueError(
                f"train.staleness {self.staleness} samples later steps with older weights, which {' and '.join(wrong)} "
                "does not allow; set one of the two to its default"
            )
        return self

    @model_validator(mode="after")
    def _check_clip_bounds(self) -> "TrainConfig":
        low, high = self.importance_sampling_clip_min, self.importance_sampling_clip_max
        if low is not None and high is not None and low >= high:
            raise ValueError(
                f"train.importance_sampling_clip_min {low:g} is not below train.importance_sampling_clip_max {high:g}"
            )
        return self
