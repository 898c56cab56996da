"""Settings of training: credit, loss, warm start, checkpoints, validation and the collapse guard."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from .curriculum import CurriculumConfig
from .loss import LossConfig
from .section import Section


class WarmStartConfig(Section):
    """Imitation of graded proposals before GRPO (train/warm_start.py)."""

    kind: Literal["titles", "expert_iteration"] = "titles"
    """titles: the second turn imitates a retrieved title. expert_iteration: the policy imitates its best samples."""
    questions: Annotated[int, Field(ge=0)] = 0
    """titles: lessons to learn from. expert_iteration: questions sampled in each round. 0 starts GRPO at once."""
    questions_per_step: Annotated[int, Field(ge=1)] = 8
    """Questions whose lessons make one optimizer step."""
    learning_rate: Annotated[float, Field(gt=0)] = 6e-4
    """Rises over three steps, then falls to 0 at the last."""
    least_reward: Annotated[float, Field(ge=0, le=1)] = 0.99
    """titles: a title is imitated where its own search earns at least this, by the reward's metric."""
    unanswered_share: Annotated[float, Field(ge=0, le=1)] = 0.33
    """titles: share kept of the questions for which no title does; they are answered with the question itself."""
    rounds: Annotated[int, Field(ge=1)] = 3
    """expert_iteration: how often other questions are sampled with the policy as it is then, and the best imitated."""
    samples: Annotated[int, Field(ge=2)] | None = None
    """expert_iteration: first turns sampled per question; None: as in `rollout.branching`, like all later turns."""
    baseline: Literal["mean", "question"] = "mean"
    """expert_iteration: a sample must beat the mean of the samples of its prompt, or the question as it stands."""
    margin: Annotated[float, Field(ge=0, le=1)] = 0.1
    """expert_iteration: by more than this much reward."""


class GuardConfig(Section):
    """Signs that a run teaches nothing any more, looked for in the means of the newest steps (train/guard.py)."""

    action: Literal["off", "warn", "stop"] = "stop"
    """warn: say it. stop: say it, and end the run where the sign is still there `patience` steps later."""
    window: Annotated[int, Field(ge=1)] = 10
    """Steps that are averaged; nothing is judged before there are as many."""
    patience: Annotated[int, Field(ge=1)] = 10
    """Steps that a sign may last before `action: stop` ends the run."""
    reward_drop: Annotated[float, Field(gt=0, le=1)] | None = 0.5
    """Share of its best window's reward that the last turn may lose; None does not look."""
    entropy_floor: Annotated[float, Field(ge=0)] | None = 0.01
    """Nats per sampled token that one turn at least must reach; None does not look."""
    copy_share: Annotated[float, Field(gt=0, le=1)] | None = 0.95
    """Share of rewrites that repeat the question or an earlier turn, reached in every turn; None does not look."""
    zero_variance: Annotated[float, Field(gt=0, le=1)] | None = 0.95
    """Share of groups without signal, reached in every turn; None does not look."""
    changed_weights: Annotated[float, Field(gt=0, le=1)] | None = 0.1
    """Share of the trained weights that a step with a gradient and a learning rate must change; None does not look."""
    logp_difference: Annotated[float, Field(gt=0)] | Literal["auto"] | None = "auto"
    """Highest mean distance, in nats, of a token's log-probability between sampler and trainer. auto: 0.01 where the
    policy computes in float32, 0.15 in bfloat16, and ln(1 / top_p) more; None does not look."""


class TrainConfig(Section, LossConfig):
    """How trees become a better policy."""

    credit: Literal["turn", "trajectory"] = "turn"
    """turn: a turn is compared with its siblings. trajectory: a path with all paths of its question."""
    scale: Literal["group", "batch", "none"] = "none"
    """Divide advantages by the standard deviation of their group, of the batch, or not."""
    best_of: Annotated[int, Field(ge=2)] | None = None
    """Train for the expected best of so many samples instead of their mean ("max@k", pass@k), which keeps them
    different; at most the smallest number of `rollout.branching`, and for `credit: turn`."""
    steps: Annotated[int, Field(ge=1)] = 40
    """Optimizer steps of the whole run."""
    questions_per_step: Annotated[int, Field(ge=1)] = 12
    """Questions, each a tree, behind one optimizer step, over all processes."""
    questions_per_micro_batch: Annotated[int, Field(ge=1)] = 1
    """Trees in one forward and backward pass of a process: what memory allows."""
    samples_per_update: Annotated[int, Field(ge=1)] | None = None
    """Update on so many alternatives of every group, drawn by the size of their advantages and weighted so that the
    expected gradient stays that of all (train/subsampling.py); None takes all."""
    raw_reward: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=2, max_length=2)] = [0.0, 1.0]
    """Train only on questions whose un-rewritten search is worth this much, [lowest, highest] by the reward's metric.
    A question that finds nothing as it stands is one that few samples ever save: it costs time and gives no signal."""
    resample_rounds: Annotated[int, Field(ge=0)] = 0
    """Extra rollouts in a step, each of which asks other questions in place of those whose whole tree has no signal."""
    curriculum: CurriculumConfig = CurriculumConfig()
    """Ask questions again by their success in the passes before; a mix of environments has mix.curriculum."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-6
    """The highest. 1e-6 is the paper's for all weights; the demo trains LoRA with 1e-4."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps in which the learning rate rises from 0."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After that it stays, or falls to 0 at the last step."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """A longer gradient is cut to this norm."""
    packing: bool | Literal["auto"] = True
    """Compute every shared prefix of a tree once under an ancestor mask. A policy that cannot be trained so is refused;
    `auto` says why and trains every leaf in a row of its own, as false does."""
    packed_attention: Literal["auto", "sdpa", "flex"] = "auto"
    """What computes the ancestor mask: PyTorch's scaled dot product in blocks, or FlexAttention, which needs a GPU.
    `auto` is flex on a GPU."""
    gradient_checkpointing: bool | Literal["reentrant"] = False
    """Keep only the inputs of each layer and compute the rest again in the backward pass: less memory, more time.
    `reentrant` uses PyTorch's older kind, which some launchers want."""
    save_steps: Annotated[int, Field(ge=1)] = 10
    """Steps between two checkpoints."""
    keep_checkpoints: Annotated[int, Field(ge=1)] = 2
    """The newest ones that stay; `best/` and `final/` are kept besides."""
    grace_seconds: Annotated[float, Field(ge=0)] = 25.0
    """After SIGTERM: how long until SIGKILL. A step that cannot end in time is given up and sampled again on resume."""
    usr1_grace_seconds: Annotated[float, Field(ge=0)] = 540.0
    """After SIGUSR1, what a cluster sends ahead of its time limit (Slurm: --signal=USR1@600)."""
    validate_steps: Annotated[int, Field(ge=0)] = 0
    """Answer validation questions before the first step, after every so many and after the last; 0 never does."""
    validation_questions: Annotated[int, Field(ge=1)] = 100
    """How many, drawn from the validation split with `validation_seed`; greedy, one answer per turn."""
    validation_seed: Annotated[int, Field(ge=0)] = 0
    """Apart from `seed`, so that runs of different seeds are validated on the same questions."""
    guard: GuardConfig = GuardConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    log_rollouts: Annotated[int, Field(ge=0)] = 4
    """Trees written to rollouts.jsonl at every step."""
    importance_sampling_correction: bool = True
    """Weigh every token by p_trainer / p_sampler where the engine that sampled differs from the model that is trained.
    These four are TRL's settings of the same names after `vllm_`; the mismatch is logged with any of them."""
    importance_sampling_mode: Literal["token_truncate", "token_mask"] = "token_truncate"
    """Ratios outside the bounds are set to the bound, or their tokens are dropped."""
    importance_sampling_clip_max: Annotated[float, Field(gt=0)] | None = 3.0
    """The highest ratio; None is no bound."""
    importance_sampling_clip_min: Annotated[float, Field(ge=0)] | None = None
    """The lowest; None is no bound."""

    @model_validator(mode="after")
    def _best_of_turns(self) -> "TrainConfig":
        if self.best_of is not None and self.credit != "turn":
            raise ValueError(f"train.best_of {self.best_of} compares turns; set train.credit to turn, or leave it out")
        return self

    @model_validator(mode="after")
    def _kl_of_all_samples(self) -> "TrainConfig":
        if self.samples_per_update is not None and self.beta > 0:
            raise ValueError(
                f"train.samples_per_update {self.samples_per_update} leaves out samples that the KL term (train.beta "
                f"{self.beta:g}) is a mean over; set one of the two to its default"
            )
        return self

    @model_validator(mode="after")
    def _bounds_in_order(self) -> "TrainConfig":
        least, most = self.importance_sampling_clip_min, self.importance_sampling_clip_max
        if least is not None and most is not None and least >= most:
            raise ValueError(
                f"train.importance_sampling_clip_min {least:g} is not below train.importance_sampling_clip_max {most:g}"
            )
        return self
