"""The systems of an evaluation: the raw question, training-free baselines, and rewriters with a model.

A system knows what its answers depend on, loads its model, and answers questions batch by batch.
"""

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..configs.evaluation import RAW, SpecConfig, SystemConfig
from ..configs.mix import environments
from ..configs.run_settings import load_run_config
from ..configs.schema import RewriterConfig, RunConfig
from ..data.sampling import in_batches
from ..data.types import Question
from ..envs.client.base import EnvironmentApi
from ..errors import ConfigError, DataError
from ..llms.access import Llm
from ..llms.base import LlmResponse
from ..rewriters.base import RewritingStrategy, StagedQuestion
from ..rewriters.first_stage import FirstStages
from ..rewriters.registry import make_rewriter
from ..rollouts.checkpoints import find_checkpoint, task_model, with_prompt
from ..rollouts.engines.base import Engine
from ..rollouts.llms import open_llm, policy_llm
from ..storage import parse_json
from .answering import Answered, Asking, batches, model_answers, run_raw
from .environments import EvalEnvironment
from .identity import (
    digest,
    llm_identity,
    model_identity,
    prompts_identity,
    system_identity,
    task_identity,
    weights_identity,
)
from .journal import AnswerKey
from .records import UNTRAINED, with_first_stage, write_json
from .training_free import GRIDS, Tuned, Tuning, answer, tune

log = logging.getLogger(__name__)

_WEIGHTS_FILE = "weights.json"


@dataclass(frozen=True, slots=True)
class Pending:
    """The questions that a system has yet to answer in one environment."""

    questions: Sequence[Question]
    environment: EvalEnvironment
    client: EnvironmentApi
    batch: int
    """Questions per batch."""
    folder: Path
    """The folder of the cell."""

    def parts(self) -> Iterator[Sequence[Question]]:
        """The batches, in the order of the questions."""
        return in_batches(self.questions, self.batch)


class System(ABC):
    """Answers questions."""

    name: str
    """The system's name in the tables."""
    metrics: Sequence[str]
    """Metrics that the environment computes; the first one is tested."""
    depth: int
    """Documents per ranking."""

    @property
    def asking(self) -> Asking:
        """Turns and samples; without a model, one ranking per question."""
        return Asking(0, self.metrics)

    @property
    def engine_key(self) -> str | None:
        """Systems with the same key share one loaded model; None without a model."""
        return None

    def load(self) -> Engine | Llm | None:
        """The model; None without one. Raises ModelError or CheckpointError for an unusable model."""
        return None

    @abstractmethod
    def identity(self, environment: EvalEnvironment) -> Mapping[str, object] | str:
        """Everything about the system that its answers depend on. Raises ConfigError where it does not fit."""

    @abstractmethod
    def answer(self, pending: Pending, engine: Engine | Llm | None) -> Iterator[Answered]:
        """Yield the answers to one batch of the pending questions after another."""


@dataclass(frozen=True)
class RawSystem(System):
    """Searches every question as it stands, or another of the `answering.TEXTS`."""

    metrics: Sequence[str]
    depth: int
    name: str = RAW

    def identity(self, environment: EvalEnvironment) -> str:
        """Its name: nothing else matters."""
        return self.name

    def answer(self, pending: Pending, engine: Engine | Llm | None) -> Iterator[Answered]:
        for part in pending.parts():
            yield Answered(len(part), run_raw(pending.client, part, self.metrics, self.depth, self.name))


@dataclass(frozen=True)
class TrainingFreeSystem(System):
    """A training-free baseline.

    Its cell stores the weights beside the answers (`weights.json`), so that a later evaluation with more questions uses
    the same ones.
    """

    name: str
    baseline: str
    tuning: Tuning
    metrics: Sequence[str]
    depth: int

    def identity(self, environment: EvalEnvironment) -> Mapping[str, object]:
        """The baseline, and how its weights are chosen."""
        return {
            "training_free": self.baseline,
            "grid": digest([dict(weights) for weights in GRIDS[self.baseline]]),
            "by": [self.tuning.questions, self.metrics[0], self.tuning.seed],
        }

    def answer(self, pending: Pending, engine: Engine | Llm | None) -> Iterator[Answered]:
        """As System.answer, with the weights that the cell stored, else tuned ones."""
        client, folder = pending.client, pending.folder
        tuned = self.chosen(folder)
        if tuned is None:
            tuned = tune(self.baseline, client, pending.environment.everything, self.tuning)
            write_json(folder / _WEIGHTS_FILE, asdict(tuned))
        for part in pending.parts():
            yield Answered(len(part), answer(self.name, client, tuned, part, self.metrics, self.depth))

    def chosen(self, folder: Path) -> Tuned | None:
        """The weights in a cell's folder; None if it has none yet. Raises DataError if they cannot be read."""
        path = folder / _WEIGHTS_FILE
        if not path.is_file():
            return None
        try:
            return Tuned(**parse_json(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise DataError(
                f"{path} cannot be read ({error}). Remove the folder {folder} and evaluate again."
            ) from error


@dataclass(frozen=True)
class RewritingSystem(System):
    """A rewriter with a model: a policy, trained or not, or a frozen model."""

    name: str
    settings: SystemConfig
    """Turns, samples and passages; the frozen model, if it is one."""
    config: RunConfig
    """Policy, rewriter and rollout settings; for a training run, all settings of that run."""
    checkpoint: Path | None
    """The trained policy; None means the base model."""
    weights: Mapping[str, object]
    """Identity of its model and checkpoint."""
    metrics: Sequence[str]
    depth: int
    seed: int = 0
    """Seed of sampled answers."""

    @property
    def asking(self) -> Asking:
        """Turns and samples."""
        return Asking(self.settings.turns, self.metrics, self.settings.samples, self.seed)

    @property
    def engine_key(self) -> str:
        if self.settings.llm is not None:
            return f"llm {self.settings.llm.model_dump_json()}"
        rollout = self.config.rollout
        parts: list[object] = [self.config.policy.model_dump(mode="json"), str(self.checkpoint)]
        parts += [rollout.engine, rollout.micro_batch, rollout.longest_sequence]
        parts += [rollout.vllm.model_dump(mode="json"), rollout.server.model_dump(mode="json")]
        return json.dumps(parts)

    def identity(self, environment: EvalEnvironment) -> Mapping[str, object]:
        """As System.identity. Raises ConfigError if the rewriter does not fit."""
        self.rewriter(environment)  # refuses what does not fit
        settings = self.rewriter_settings(environment.name)
        identity = system_identity(self.settings, self.config.policy, self.config.rollout, settings, self.seed)
        return {
            **self.weights,
            **identity,
            "prompts": prompts_identity(settings),
            "retriever": asdict(environment.retriever),
        }

    def rewriter(self, environment: EvalEnvironment) -> RewritingStrategy:
        """The rewriter for an environment. Raises ConfigError if it does not fit the system's settings."""
        documents = max(self.depth, self.config.rollout.documents)
        rewriter = make_rewriter(self.rewriter_settings(environment.name), environment.retriever, documents)
        if self.settings.passages > 1 and not rewriter.joins:
            raise ConfigError(
                f"systems.{self.name}.passages is {self.settings.passages}, and {rewriter.name} searches with one "
                "answer. Take rewriter.name=hyde without rewriter.stop, or leave passages out."
            )
        return rewriter

    def rewriter_settings(self, environment: str) -> RewriterConfig:
        """The rewriter settings for an environment.

        If the run mixes environments and has a member of that name, these are the member's settings.
        """
        if self.settings.rewriter is None and self.config.mix is not None:
            member = environments(self.config).get(environment)
            if member is not None:
                return member.rewriter
        return self.config.rewriter

    def load(self) -> Engine | Llm:
        if self.settings.llm is not None:
            return open_llm(self.settings.llm)
        from ..rollouts.engines.open import load_engine

        log.info("loading %s", self.checkpoint or self.config.policy.model)
        return load_engine(self.config.policy, self.config.rollout, self.config.seed, self.checkpoint)

    def answer(self, pending: Pending, engine: Engine | Llm | None) -> Iterator[Answered]:
        """As System.answer. Raises as the model and the client."""
        assert engine is not None, "a rewriter is asked with its model loaded"
        asking, rollout, client = self.asking, self.config.rollout, pending.client
        rewriter = self.rewriter(pending.environment)
        missing: dict[AnswerKey, str] = {}
        spent: dict[str, Sequence[LlmResponse]] = {}
        remaining: list[Question] = []
        base = self.settings.llm or policy_llm(self.config.policy)
        with FirstStages(rewriter, base, rollout.history_tokens) as stages:
            outcomes = stages.ask(pending.questions)
        for question, outcome in zip(pending.questions, outcomes, strict=True):
            if isinstance(outcome, str):
                missing |= {(question.id, 1, sample): outcome for sample in range(asking.paths)}
            else:
                remaining.append(outcome)
                spent[question.id] = outcome.replies if isinstance(outcome, StagedQuestion) else ()
        yield Answered(len(pending.questions) - len(remaining), [], missing)
        parts = batches(remaining, pending.batch)
        for batch in model_answers(parts, self.name, asking, self.settings, engine, client, rewriter, rollout):
            records = [with_first_stage(record, spent.get(record.question_id, ())) for record in batch.records]
            yield replace(batch, records=records)

    @property
    def training_environments(self) -> list[RunConfig]:
        """The environments that the run was trained in; none for a model that is not trained."""
        return list(environments(self.config).values()) if self.checkpoint is not None else []


def system_of_spec(spec: SpecConfig, name: str, trust: bool = False) -> System:
    """The system of that name.

    Raises ConfigError or CheckpointError if the run folder is invalid, has no policy, or needs `trust` (as
    `load_run_config`), ModelError for a bad model.
    """
    settings = spec.systems[name]
    if settings.training_free is not None:
        tuning = Tuning(spec.split, spec.tuning_questions, spec.metrics, spec.seed, spec.depth)
        return TrainingFreeSystem(name, settings.training_free, tuning, spec.metrics, spec.depth)
    checkpoint = None
    config = RunConfig(name=name).model_copy(update={"rewriter": spec.rewriter, "rollout": spec.rollout})
    if settings.run is not None:
        folder = Path(settings.run).expanduser()
        if not (folder / "config.yaml").is_file():
            message = f"systems.{name}.run is {settings.run!r}, which holds no config.yaml; give a run folder."
            raise ConfigError(message)
        config = load_run_config(folder, trust=trust)
        if settings.checkpoint != UNTRAINED:
            checkpoint = find_checkpoint(folder, settings.checkpoint)
            config = with_prompt(config, checkpoint)
        settings = settings.model_copy(update={"llm": task_model(config.optimize, folder / "best")})
    elif settings.llm is None:
        config = config.model_copy(update={"policy": settings.policy or spec.policy})
    rollout = settings.rollout or config.rollout
    sampling = {"temperature": settings.temperature, "top_p": 1.0} if settings.sampled else {}
    config = config.model_copy(
        update={"rewriter": settings.rewriter or config.rewriter, "rollout": rollout.model_copy(update=sampling)}
    )
    weights = (
        task_identity(settings.llm, checkpoint)
        if settings.llm is not None and settings.run is not None
        else llm_identity(settings.llm)
        if settings.llm is not None
        else weights_identity(model_identity(config.policy.model), checkpoint)
    )
    return RewritingSystem(name, settings, config, checkpoint, weights, spec.metrics, spec.depth, spec.seed)
