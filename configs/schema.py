"""Every setting of a run, validated. An unknown key is an error that names the nearest known key."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ..errors import ConfigError
from .environment import ClientConfig as ClientConfig
from .environment import DatasetConfig as DatasetConfig
from .environment import EnvironmentConfig as EnvironmentConfig
from .environment import RerankConfig as RerankConfig
from .environment import ServedConfig as ServedConfig
from .llm import AnswerRewardConfig, AnswersConfig, LlmConfig, ModelConfig, OptimizeConfig, SyntheticConfig
from .llm import QuestionsConfig as QuestionsConfig
from .methods import TRAINING_FREE, ChrConfig, HcqrConfig, TrainingFreeName
from .section import Drawn, Limited, Name, PositiveWeight, RewardMetric, Section, Weight, cutoff
from .training import TrainConfig as TrainConfig


class LoraConfig(Section):
    """Low-rank adaptation (peft) of all linear layers of the policy except the output layer."""

    r: Annotated[int, Field(ge=1)] = 16
    """Rank of the adapter matrices."""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """Scale: the product of the adapter matrices is multiplied by alpha / r."""
    last_layers: Annotated[int, Field(ge=1)] | None = None
    """Adapt only this many layers, counted from the output; the backward pass ends there. None: all layers."""


class PolicyConfig(ModelConfig):
    """The policy: the language model that rewrites questions."""

    lora: LoraConfig | None = LoraConfig()
    """None trains all weights."""


class RewriterConfig(Section):
    """The policy's prompt, and how its answer becomes a search plan."""

    name: str = "few_shot"
    """`general`, `explore` or `direct` (prompt levels of Yuan et al.), `few_shot` (examples, for small models), `hyde`
    or `query2doc` (the whole answer is a passage to search with), `multi_query`, `hcqr`, `chr` (docs/methods.md) or
    `misknow` (two turns, docs/methods_context.md)."""
    keep_question_weight: PositiveWeight | None = None
    """Weight of the question in every probe; 0: search with the rewrite alone. None: the rewriter's default, which is 1
    for hyde, 5 (BM25) or 1 (other retrievers) for query2doc, and 0 for the others."""
    rewrite_weight: Weight = 1.0
    """Weight of a rewrite in its probe."""
    query: Literal["text", "native"] = "text"
    """`general`, `explore`, `direct`, `few_shot`: how a rewrite is meant. `text`: words, for any retriever. `native`:
    a query in the language of the retriever, which gets it exactly as it is written (docs/dialects.md)."""
    prompt: str = "hpo"
    """`few_shot` only: the few-shot prompt, a packaged name or the path of a YAML file."""
    options: bool = False
    """`multi_query` only: show the question's answer options, if it has any."""
    stop: bool | Literal["answer"] = False
    """Let the policy answer `<stop/>` instead of a rewrite: it keeps the ranking of the turns before and has no further
    turn (docs/stop.md). Without such a ranking, as in turn 1, true searches the question as it stands, and answer
    searches nothing: the reader of `reward.kind: answer` then answers without documents."""
    hcqr: HcqrConfig = HcqrConfig()
    chr: ChrConfig = ChrConfig()
    llm: LlmConfig | None = None
    """`hcqr` only: the frozen model that writes the hypotheses; None: the policy's base model."""

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if self.query == "native" and (self.keep_question_weight or self.rewrite_weight != 1):
            raise ValueError(
                "rewriter.query is native: a query in the retriever's language has no weights; set "
                "rewriter.keep_question_weight=0 and rewriter.rewrite_weight=1"
            )
        return self


class VllmConfig(Section):
    """A colocated vLLM engine, in the training process (rollout.engine: vllm)."""

    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.3
    """Share of the GPU memory for vLLM's weights, activations and KV cache; training needs the rest."""
    enable_sleep_mode: bool = False
    """Free the engine's GPU memory between rollouts; its weights are sent again before the next one."""


class VllmServerConfig(Section):
    """A vLLM server in a process of its own, on other processors or another node (rollout.engine: vllm_server)."""

    base_url: str = "http://127.0.0.1:8000"
    """URL of `trl vllm-serve`."""
    weights_folder: str | None = None
    """Send weights as files in this folder, such as /dev/shm, which trainer and server both see. None: over NCCL."""


class RolloutConfig(Section):
    """Rollouts: how a tree of turns is sampled for a question."""

    branching: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)] = [4, 4]
    """Samples per node, by turn. [4, 4]: 4 first turns, each with 4 second turns. [16]: single-turn."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Sampling temperature during rollouts. Evaluation is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus (top-p) of rollout sampling. For values below 1 see docs/training.md."""
    max_new_tokens: Annotated[int, Field(ge=1)] = 64
    """Maximum sampled tokens of a turn."""
    max_prompt_tokens: Annotated[int, Field(ge=16)] = 2048
    """Maximum prompt tokens of any turn; later prompts contain the answers and documents of earlier turns."""
    documents: Annotated[int, Field(ge=1)] = 10
    """Top documents shown to the next turn."""
    document_tokens: Annotated[int, Field(ge=1)] = 24
    """Maximum tokens of each shown document."""
    observation_tokens: Annotated[int, Field(ge=1)] | None = None
    """Maximum tokens of all documents shown to one turn, best ranked first; None: documents × document_tokens."""
    history_tokens: Annotated[int, Field(ge=1)] = 512
    """Maximum tokens of the conversation that a prompt shows before a question; the oldest utterances are left out."""
    micro_batch: Annotated[int, Field(ge=1)] = 256
    """Generation batch size in sequences (engine transformers; vLLM forms its own batches)."""
    engine: Literal["transformers", "vllm", "vllm_server"] = "transformers"
    """Generation engine: the policy in transformers, vLLM on the same GPUs, or a vLLM server (docs/rollouts.md)."""
    vllm: VllmConfig = VllmConfig()
    server: VllmServerConfig = VllmServerConfig()

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest sequence that a policy is asked to sample or is trained on."""
        return self.max_prompt_tokens + self.max_new_tokens

    def earlier_tokens(self, turn: int) -> int:
        """How many tokens the earlier answers and the shown documents may take in the prompt of a turn."""
        observation = self.documents * self.document_tokens
        observation = observation if self.observation_tokens is None else min(observation, self.observation_tokens)
        return (turn - 1) * (self.max_new_tokens + observation)


class WrittenConfig(Drawn):
    """What writes queries: a policy, its rewriter, and how answers are sampled; the default of a spec's systems."""

    policy: PolicyConfig = PolicyConfig()
    rewriter: RewriterConfig = RewriterConfig()
    rollout: RolloutConfig = RolloutConfig()


ANSWER, ANSWER_REWARD = "answer", "answer_reward"
"""Metrics of a turn with `reward.kind: answer`: the score of the reader's answer, and what is rewarded."""
NET = "net"
"""In validation records: the rewarded metric less the price of the searches up to its turn."""


class RewardConfig(Section):
    """The reward of a node of the tree."""

    metric: RewardMetric = "ndcg@10"
    """ndcg@k, recall@k or mrr@k, with k up to 1000; searches return at least k documents."""
    format_weight: Annotated[float, Field(ge=0, le=1)] = 0.1
    """w_f: reward = (1 − w_f)·metric + w_f·format; if the format fails, only the format term counts."""
    turn_weights: list[float] = [0.5, 1.0]
    """λ: weight of each turn's reward, first to last."""
    search_price: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Price of a turn that searches or has the wrong format, subtracted from the reward of its path (docs/stop.md)."""
    kind: Literal["metric", "answer"] = "metric"
    """metric: reward `metric` of the ranking. answer: a frozen reader's answer from the documents."""
    answer: AnswerRewardConfig = AnswerRewardConfig()
    """The reader of `kind: answer`."""

    @property
    def signal(self) -> str:
        """The name of what is rewarded, among the metrics of a turn; in [0, 1]."""
        return self.signals[-1]

    @property
    def objective(self) -> str:
        """What validation maximises, among the means of a turn: `signal`, or NET where searches cost."""
        return NET if self.search_price else self.signal

    @property
    def raw_signal(self) -> str:
        """What `train.raw_reward` compares of raw questions: `signal`, or the score where a gain is rewarded."""
        return ANSWER if self.kind == "answer" and self.answer.gain else self.signal

    @property
    def signals(self) -> Sequence[str]:
        """The metrics that every scored turn has; they are 0 where the format failed."""
        return (self.metric,) if self.kind == "metric" else (ANSWER, ANSWER_REWARD)


class TrackingConfig(Section):
    """Experiment trackers, in addition to metrics.jsonl (docs/tracking.md)."""

    wandb: Literal["auto", "online", "offline", "disabled"] = "auto"
    """Weights & Biases mode. auto: the value of WANDB_MODE; if unset, offline, for `wandb sync`."""
    report_to: list[Literal["tensorboard", "trackio"]] = []
    """Further trackers for the same metrics; each needs the extra of its name."""


class EvaluatedConfig(Limited):
    """What is evaluated, tested and compared with."""

    split: Literal["validation", "test"] = "test"
    """Split whose questions are evaluated."""
    permutations: Annotated[int, Field(ge=1)] = 10_000
    """Permutations of the paired permutation test."""
    bootstrap: Annotated[int, Field(ge=1)] = 10_000
    """Bootstrap samples of the confidence intervals."""
    training_free: list[TrainingFreeName] = list(TRAINING_FREE)
    """Training-free baselines to compare with; []: none (docs/evaluation.md)."""
    run_baselines: list[Literal["untrained", "hyde", "warm_start"]] = ["untrained", "hyde", "warm_start"]
    """What a trained policy is compared with, as NAME-untrained and so on in a spec: its policy before training; HyDE
    by that policy with as many tokens; its policy before GRPO, if it had a warm start. Runs whose rows would be equal
    share them. []: none; `untrained` is always evaluated with a single run."""


class EvalConfig(EvaluatedConfig):
    """The final evaluation, on questions outside the training split."""

    turns: Annotated[int, Field(ge=1)] = 2
    """Number of turns of the untrained and the trained policy."""


MemberName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]


class MixMemberConfig(ServedConfig):
    """One environment of a mix; other settings are inherited from the run's `env`, `client` and `rewriter`."""

    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Sampling weight: its share of a step's questions is weight / sum of weights."""
    rewriter: RewriterConfig = RewriterConfig()
    """Rewriter for this environment's retriever, such as another prompt level."""


class MixConfig(Section):
    """Train one policy on several environments: each step samples questions from all of them (docs/mix.md). A member
    sets only what differs, so one override of `env.dataset.path` applies to all members."""

    environments: Annotated[dict[MemberName, MixMemberConfig], Field(min_length=1)]
    """Environments by name (lower-case letters, digits, - and _); the name is part of question ids and metric names."""


SHARED = ("env", "client", "rewriter")
"""Sections that a member of a mix inherits, key by key."""


def _merged(base: Any, overrides: Any) -> Any:
    if not (isinstance(base, dict) and isinstance(overrides, dict)):
        return overrides
    return {**base, **{key: _merged(base[key], value) if key in base else value for key, value in overrides.items()}}


class RunConfig(ServedConfig, WrittenConfig):
    """A whole run: environment, policy, rewriter, rollouts, reward, training, evaluation."""

    name: Name = "run"
    """Name of the run; its folder is `output/name`."""
    output: str = "runs"
    """Parent folder of run folders."""
    reward: RewardConfig = RewardConfig()
    train: TrainConfig = TrainConfig()
    optimize: OptimizeConfig = OptimizeConfig()
    tracking: TrackingConfig = TrackingConfig()
    eval: EvalConfig = EvalConfig()
    answers: AnswersConfig = AnswersConfig()
    questions: QuestionsConfig = QuestionsConfig()
    """Settings of `querylect index questions`."""
    synthetic: SyntheticConfig = SyntheticConfig()
    """Settings of `querylect data questions` and `querylect adapt`."""
    mix: MixConfig | None = None
    """Several environments instead of one; its members inherit `env`, `client` and `rewriter`."""

    @property
    def run_folder(self) -> Path:
        """The folder of the run, `~` in `output` being the home folder."""
        return Path(os.path.expanduser(self.output)) / self.name

    @property
    def search_depth(self) -> int:
        """Documents that a search plan asks for: what nDCG@10 and the reward look at, and a turn is shown."""
        read = self.reward.answer.top if self.reward.kind == "answer" else 0
        return max(10, cutoff(self.reward.metric), self.rollout.documents, read)

    @model_validator(mode="before")
    @classmethod
    def _fill_members(cls, values: Any) -> Any:
        """Malformed values are left to validation."""
        match values:
            case {"mix": {"environments": dict(members)} as mix}:
                filled = dict(members)
                for name, member in members.items():
                    if isinstance(own := member or {}, dict):
                        inherited = {key: _merged(values.get(key) or {}, own.get(key) or {}) for key in SHARED}
                        filled[name] = {**own, **inherited}
                return {**values, "mix": {**mix, "environments": filled}}
        return values

    @model_validator(mode="after")
    def _check_together(self) -> "RunConfig":
        turns, weights = len(self.rollout.branching), len(self.reward.turn_weights)
        if turns > 1 and turns != weights:
            raise ValueError(
                f"reward.turn_weights has {weights} weights for {turns} turns "
                f"(rollout.branching {self.rollout.branching}); give one weight per turn"
            )
        if self.reward.kind == "answer" and self.mix is not None:
            raise ValueError("reward.kind is answer, which takes one environment, and the run has a mix")
        rewriters = {"rewriter.stop": self.rewriter}
        for name, member in self.mix.environments.items() if self.mix is not None else ():
            rewriters[f"mix.environments.{name}.rewriter.stop"] = member.rewriter
        for setting, rewriter in rewriters.items():
            if rewriter.stop == "answer" and self.reward.kind != "answer":
                raise ValueError(
                    f"{setting} is answer and reward.kind is {self.reward.kind}: a path without a search has no "
                    f"ranking to score; use reward.kind: answer, or {setting}: true, which searches the question"
                )
        return self


def environments(config: RunConfig) -> dict[str, RunConfig]:
    """One config per environment, by name; {"": config} without a mix."""
    if config.mix is None:
        return {"": config}
    return {
        name: config.model_copy(update={"mix": None, **{key: getattr(member, key) for key in SHARED}})
        for name, member in config.mix.environments.items()
    }


def chosen(config: RunConfig, name: str | None) -> dict[str, RunConfig]:
    """The entry `name` of `environments(config)`; all entries for None. Raises ConfigError."""
    by_name = environments(config)
    if name is None:
        return by_name
    if name not in by_name or config.mix is None:
        raise ConfigError(f"--env is {name!r}; the config mixes {', '.join(by_name) or 'nothing: leave it out'}.")
    return {name: by_name[name]}


def only(config: RunConfig, name: str | None) -> RunConfig:
    """The config of the environment `name`, or of the only one. Raises ConfigError."""
    runs = chosen(config, name)
    if len(runs) > 1:
        raise ConfigError(f"the config mixes {', '.join(runs)}, and this takes one of them: --env NAME.")
    return next(iter(runs.values()))
