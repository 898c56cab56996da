"""The systems of an evaluation: the raw question, training-free baselines, and rewriters with a model.

A system knows what its answers depend on (settings, prompts, and weights by the content of their files), loads its
model, and answers questions batch by batch.
"""

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from ..configs.evaluation import RAW, SpecConfig, SystemConfig
from ..configs.llm import LlmConfig
from ..configs.load import load_run_config
from ..configs.methods import TrainingFreeName
from ..configs.schema import RewriterConfig, RolloutConfig, RunConfig, environments
from ..data.sampling import in_batches
from ..data.types import Question
from ..envs.client.base import EnvironmentApi
from ..errors import ConfigError
from ..llms.access import Llm
from ..llms.base import LlmResponse
from ..rewriters.base import RewritingStrategy, StagedQuestion
from ..rewriters.registry import make_rewriter
from ..rollouts.checkpoints import UsedTurn, find_checkpoint, task_model, used_turn, with_prompt
from ..rollouts.engines.base import Engine
from ..rollouts.llms import FirstStages, open_llm, policy_llm, resolved_dtype
from ..rollouts.tree_sampler import ANSWERED_AT_ONCE
from ..storage import data_sha256
from .answering import DecodeOptions, batches, model_answers, run_raw
from .environments import EvalEnvironment, folder_identity, model_identity
from .records import UNTRAINED, EvalRecord, record_of_failure, with_first_stage
from .training_free import GRIDS, TUNING_QUESTIONS, Tuned, answer, tune

log = logging.getLogger(__name__)


class Asked(NamedTuple):
    """The questions that a system has yet to answer in one environment."""

    questions: Sequence[Question]
    environment: EvalEnvironment
    client: EnvironmentApi
    tuned: Tuned | None = None
    """Of a training-free baseline: the weights of its earlier answers."""


class System(ABC):
    """Answers questions."""

    name: str
    """The system's name in the tables."""
    metrics: Sequence[str]
    """Metrics that the environment computes; the first one is tested."""
    depth: int
    """Documents per ranking."""

    @property
    def options(self) -> DecodeOptions:
        """Turns and samples; without a model, one ranking per question."""
        return DecodeOptions(0, self.metrics)

    @property
    def engine_key(self) -> str | None:
        """Systems with the same key share one loaded model; None without a model."""
        return None

    def load(self) -> Engine | Llm | None:
        """The model; None without one. Raises ModelError or CheckpointError for an unusable model."""
        return None

    @abstractmethod
    def identity(self, environment: EvalEnvironment) -> Mapping[str, object]:
        """Everything about the system that its answers depend on. Raises ConfigError where it does not fit."""

    @abstractmethod
    def answer(self, pending: Asked, engine: Engine | Llm | None) -> Iterator[list[EvalRecord]]:
        """Yield the records of one batch of the questions after another, of every question at least one. Raises as the
        model and the client."""


@dataclass(frozen=True)
class RawSystem(System):
    """Searches every question as it stands, or another of the `answering.TEXTS`."""

    metrics: Sequence[str]
    depth: int
    name: str = RAW

    def identity(self, environment: EvalEnvironment) -> Mapping[str, object]:
        return {"text": self.name}

    def answer(self, pending: Asked, engine: Engine | Llm | None) -> Iterator[list[EvalRecord]]:
        for part in in_batches(pending.questions, ANSWERED_AT_ONCE):
            yield run_raw(pending.client, part, self.metrics, self.depth, self.name)


@dataclass(frozen=True)
class TrainingFreeSystem(System):
    """A training-free baseline. Its records hold the weights, so that an evaluation of more questions uses the same."""

    name: str
    baseline: TrainingFreeName
    metrics: Sequence[str]
    depth: int
    split: str
    """The split to evaluate, whose questions choose no weights."""
    seed: int
    """Of the validation questions that weights are chosen on."""

    def identity(self, environment: EvalEnvironment) -> Mapping[str, object]:
        """The baseline, and how its weights are chosen."""
        return {
            "training_free": self.baseline,
            "grid": [dict(weights) for weights in GRIDS[self.baseline]],
            "by": {"questions": TUNING_QUESTIONS, "metric": self.metrics[0], "seed": self.seed},
        }

    def answer(self, pending: Asked, engine: Engine | Llm | None) -> Iterator[list[EvalRecord]]:
        tuned = pending.tuned or tune(
            self.baseline,
            pending.client,
            pending.environment.everything,
            split=self.split,
            metric=self.metrics[0],
            seed=self.seed,
            depth=self.depth,
        )
        for part in in_batches(pending.questions, ANSWERED_AT_ONCE):
            yield answer(self.name, pending.client, tuned, part, self.metrics, self.depth)


@dataclass(frozen=True)
class RewritingSystem(System):
    """A rewriter with a model: a policy, trained or not, or a frozen model."""

    name: str
    settings: SystemConfig
    """Turns and samples; the frozen model, if it is one."""
    config: RunConfig
    """Policy, rewriter and rollout settings; for a training run, all settings of that run."""
    checkpoint: Path | None
    """The trained policy; None means the base model."""
    metrics: Sequence[str]
    depth: int
    seed: int = 0
    """Seed of sampled answers."""

    @property
    def options(self) -> DecodeOptions:
        return DecodeOptions(self.settings.turns, self.metrics, self.settings.samples, self.seed)

    @property
    def engine_key(self) -> str:
        if self.settings.llm is not None:
            return f"llm {self.settings.llm.model_dump_json()}"
        rollout = self.config.rollout
        parts: list[object] = [self.config.policy.model_dump(mode="json"), str(self.checkpoint)]
        parts += [rollout.engine, rollout.micro_batch, rollout.longest_sequence]
        parts += [rollout.vllm.model_dump(mode="json"), rollout.server.model_dump(mode="json")]
        return json.dumps(parts)

    @cached_property
    def weights(self) -> Mapping[str, object]:
        """The identity of the model and of the checkpoint, by name. Raises ModelError."""
        checkpoint = folder_identity(self.checkpoint) if self.checkpoint is not None else None
        if self.settings.llm is not None:
            return {**llm_identity(self.settings.llm), "checkpoint": checkpoint}
        return {"policy": model_identity(self.config.policy.model), "checkpoint": checkpoint}

    @cached_property
    def used(self) -> UsedTurn | None:
        """The turn that a user of the trained run gets; None without one."""
        if self.checkpoint is None or self.settings.run is None:
            return None
        config, run = self.config, Path(self.settings.run).expanduser()
        return used_turn(config.rollout, config.reward, config.train, run, self.checkpoint)

    def identity(self, environment: EvalEnvironment) -> Mapping[str, object]:
        """As System.identity. Raises ConfigError if the rewriter does not fit."""
        self.rewriter(environment)  # refuses what does not fit
        rewriter = self.rewriter_settings(environment.name)
        prompt = Path(rewriter.prompt or "").expanduser()
        return {
            **self.weights,
            **answer_settings(self.settings, self.config, rewriter),
            "seed": self.seed if self.settings.sampled else None,
            "templates": _templates_identity(),
            "prompt": data_sha256(prompt.read_text(encoding="utf-8")) if prompt.is_file() else "",
            "retriever": asdict(environment.retriever),
        }

    def rewriter(self, environment: EvalEnvironment) -> RewritingStrategy:
        """The rewriter for an environment. Raises ConfigError if it does not fit the system's settings."""
        documents = max(self.depth, self.config.rollout.documents)
        return make_rewriter(self.rewriter_settings(environment.name), environment.retriever, documents)

    def rewriter_settings(self, environment: str) -> RewriterConfig:
        """The rewriter settings for an environment: those of the run's member of that name, if it has one."""
        member = environments(self.config).get(environment) if self.settings.rewriter is None else None
        return (member or self.config).rewriter

    def load(self) -> Engine | Llm:
        if self.settings.llm is not None:
            return open_llm(self.settings.llm)
        from ..rollouts.engines.open import load_engine

        log.info("loading %s", self.checkpoint or self.config.policy.model)
        return load_engine(self.config.policy, self.config.rollout, self.config.seed, self.checkpoint)

    def answer(self, pending: Asked, engine: Engine | Llm | None) -> Iterator[list[EvalRecord]]:
        assert engine is not None, "a rewriter is asked with its model loaded"
        options, rollout = self.options, self.config.rollout
        rewriter = self.rewriter(pending.environment)
        lost: list[EvalRecord] = []
        spent: dict[str, Sequence[LlmResponse]] = {}
        remaining: list[Question] = []
        base = self.settings.llm or policy_llm(self.config.policy)
        with FirstStages(rewriter, base, rollout.history_tokens) as stages:
            outcomes = stages.ask(pending.questions)
        for question, outcome in zip(pending.questions, outcomes, strict=True):
            if isinstance(outcome, str):
                samples = range(options.paths)
                lost += [record_of_failure(self.name, question, 1, i, outcome, self.metrics) for i in samples]
            else:
                remaining.append(outcome)
                spent[question.id] = outcome.replies if isinstance(outcome, StagedQuestion) else ()
        if lost:
            yield lost
        parts = batches(remaining, ANSWERED_AT_ONCE)
        for batch in model_answers(parts, self.name, options, self.settings, engine, pending.client, rewriter, rollout):
            yield [with_first_stage(record, spent.get(record.question_id, ())) for record in batch]

    @property
    def training_environments(self) -> list[RunConfig]:
        """The environments that the run was trained in; none for a model that is not trained."""
        return list(environments(self.config).values()) if self.checkpoint is not None else []


_ANSWER_SETTINGS = {
    "max_new_tokens", "max_prompt_tokens", "documents", "document_tokens", "observation_tokens", "history_tokens",
}  # fmt: skip
"""Settings of a rollout that answers depend on, beside the engine."""


def answer_settings(settings: SystemConfig, config: RunConfig, rewriter: RewriterConfig) -> dict[str, object]:
    """All settings that a rewriting system's answers depend on, but the seed."""
    model: dict[str, object] = {}
    if settings.llm is None:
        model = {"dtype": resolved_dtype(config.policy.dtype), "engine": config.rollout.engine}
    return {
        **model,
        "rewriter": rewriter.model_dump(mode="json"),
        "rollout": config.rollout.model_dump(include=_ANSWER_SETTINGS),
        "turns": settings.turns,
        "samples": settings.samples,
        "temperature": settings.temperature if settings.sampled else None,
    }


def system_of_spec(spec: SpecConfig, name: str, trust: bool = False, run: RunConfig | None = None) -> System:
    """The system of that name; `run` are settings of its run instead of those in the run's folder.

    Raises ConfigError or CheckpointError if the run folder is invalid, has no policy, or needs `trust` (as
    `load_run_config`), ModelError for a bad model.
    """
    settings = spec.systems[name]
    if settings.training_free is not None:
        return TrainingFreeSystem(name, settings.training_free, spec.metrics, spec.depth, spec.split, spec.seed)
    checkpoint = None
    if settings.run is not None:
        folder = Path(settings.run).expanduser()
        if run is None and not (folder / "config.yaml").is_file():
            raise ConfigError(f"systems.{name}.run is {settings.run!r}, which holds no config.yaml; give a run folder.")
        config = run or load_run_config(folder, trust=trust)
        if settings.checkpoint != UNTRAINED:
            checkpoint = find_checkpoint(folder, settings.checkpoint)
            config = with_prompt(config, checkpoint)
        task = task_model(config.optimize, checkpoint or folder / "best")
        settings = settings.model_copy(update={"llm": task})
    else:
        config = run or RunConfig(name=name).model_copy(
            update={"policy": spec.policy, "rewriter": spec.rewriter, "rollout": spec.rollout}
        )
        config = config.model_copy(update={"policy": settings.policy or config.policy})
    rollout: RolloutConfig = settings.rollout or config.rollout
    sampling = {"temperature": settings.temperature, "top_p": 1.0} if settings.sampled else {}
    config = config.model_copy(
        update={"rewriter": settings.rewriter or config.rewriter, "rollout": rollout.model_copy(update=sampling)}
    )
    return RewritingSystem(name, settings, config, checkpoint, spec.metrics, spec.depth, spec.seed)


def llm_identity(config: LlmConfig) -> dict[str, object]:
    """The identity of a prompted model that is not trained. Raises ModelError as `model_identity`."""
    if config.base_url is not None:
        return {"endpoint": config.base_url, "model": config.model, "extra": config.extra}
    return {"llm": model_identity(config.model), "dtype": resolved_dtype(config.dtype)}


@cache
def _templates_identity() -> str:
    """A hash of the code and the prompt templates of all rewriters and methods."""
    files = [path for name in ("rewriters", "methods") for path in (Path(__file__).parents[1] / name).rglob("*")]
    hashed = sorted(path for path in files if path.suffix in (".py", ".yaml", ".j2", ".txt", ".md"))
    return data_sha256([path.read_text(encoding="utf-8") for path in hashed])
