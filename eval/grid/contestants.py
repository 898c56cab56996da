"""Resolve the systems of a plan: their weights, their prompts, and the questions they were trained on."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...configs.environment import DatasetConfig, EnvironmentConfig
from ...configs.evaluation import PlanConfig, SystemConfig
from ...configs.mix import environments
from ...configs.run_settings import load_run_config
from ...configs.schema import RewriterConfig, RunConfig
from ...data.corpus import open_corpus
from ...data.leakage import near_overlap_with_train, overlap_with_train
from ...data.mixed_ids import joined
from ...data.types import Question
from ...errors import ConfigError, DataError, QuerylectError
from ...rewriters.base import Rewriter
from ...rewriters.card import RetrieverCard
from ...rewriters.frozen import joins
from ...rewriters.registry import make_rewriter
from ...rollouts.checkpoints import find_checkpoint
from ..identity import llm_identity, weights_identity
from .places import AllDocuments, Testbed

UNTRAINED = "untrained"
"""As a checkpoint name: the policy of the run before training."""

_RETRIEVER_FIELDS = ("retriever", "model", "recipe", "rerank", "hybrid", "question_index", "engine")


@dataclass(frozen=True, slots=True)
class Contestant:
    """A rewriting system of the plan."""

    name: str
    system: SystemConfig
    config: RunConfig
    """Policy and rollout settings; for a training run, all settings of that run."""
    checkpoint: Path | None
    """The trained policy; None means the base model."""
    depth: int
    weights: Mapping[str, Any]
    """Identity of its model and checkpoint."""

    @property
    def engine_key(self) -> str:
        """Contestants with the same key share one loaded model."""
        if self.system.llm is not None:
            return f"llm {self.system.llm.model_dump_json()}"
        rollout = self.config.rollout
        parts: list[Any] = [self.config.policy.model_dump(mode="json"), str(self.checkpoint)]
        parts += [rollout.engine, rollout.micro_batch, rollout.longest_sequence]
        parts += [rollout.vllm.model_dump(mode="json"), rollout.server.model_dump(mode="json")]
        return json.dumps(parts)

    @property
    def trained(self) -> bool:
        """Whether it is the policy of a run after training."""
        return self.checkpoint is not None

    def rewriter(self, testbed: Testbed) -> Rewriter:
        """The rewriter for a testbed. Raises ConfigError if it does not fit the testbed or the system settings."""
        documents = max(self.depth, self.config.rollout.documents)
        rewriter = make_rewriter(self.rewriter_settings(testbed.environment), testbed.card, documents)
        if self.system.passages > 1 and not joins(rewriter):
            raise ConfigError(
                f"systems.{self.name}.passages is {self.system.passages}, and {rewriter.name} searches with one "
                "answer. Take rewriter.name=hyde, or leave passages out."
            )
        return rewriter

    def rewriter_settings(self, environment: str) -> RewriterConfig:
        """The rewriter settings for an environment.

        If the run mixes environments and has a member of that name, these are the member's settings.
        """
        if self.system.rewriter is None and self.config.mix is not None:
            member = environments(self.config).get(environment)
            if member is not None:
                return member.rewriter
        return self.config.rewriter

    def trained_in(self, plan: PlanConfig, cards: Mapping[str, RetrieverCard]) -> str:
        """Names of the environments that the run was trained in, joined by `+`; "" if it is untrained.

        Names are those of the plan, or the retriever's name if the plan lacks the environment. A local environment is
        matched by its retriever settings, a service by the name on its card (`cards`, by environment).
        """
        names: dict[str, str] = {}
        for name, environment in plan.environments.items():
            if environment.client.urls == "local" and not environment.urls:
                names.setdefault(_signature(environment.env), name)
            elif name in cards:
                names.setdefault(cards[name].name, name)
        environment_names = [
            names.get(_signature(env), names.get(env.retriever, env.retriever)) for env in _training_environments(self)
        ]
        return "+".join(dict.fromkeys(environment_names))


def resolve(name: str, plan: PlanConfig) -> Contestant:
    """The contestant of that name.

    Raises ConfigError or CheckpointError if the run folder is invalid or has no policy, ModelError for a bad model.
    """
    system = plan.systems[name]
    checkpoint = None
    if system.llm is not None:
        config = RunConfig(name=name, rewriter=plan.rewriter, rollout=plan.rollout)
    elif system.run is None:
        config = RunConfig(name=name, policy=system.policy or plan.policy, rewriter=plan.rewriter, rollout=plan.rollout)
    else:
        folder = Path(system.run).expanduser()
        if not (folder / "config.yaml").is_file():
            raise ConfigError(f"systems.{name}.run is {system.run!r}, which holds no config.yaml; give a run folder.")
        config = load_run_config(folder)
        if system.checkpoint != UNTRAINED:
            checkpoint = find_checkpoint(folder, system.checkpoint)
    changes: dict[str, Any] = {}
    if system.rewriter is not None:
        changes["rewriter"] = system.rewriter
    rollout = system.rollout or config.rollout
    sampling = {"temperature": system.temperature, "top_p": system.top_p} if system.sampled else {}
    changes["rollout"] = rollout.model_copy(update=sampling)
    config = config.model_copy(update=changes)
    weights: Mapping[str, Any] = (
        llm_identity(system.llm) if system.llm is not None else weights_identity(config.policy.model, checkpoint)
    )
    return Contestant(name, system, config, checkpoint, plan.depth, weights)


class TrainedQuestions:
    """The training questions of a plan's runs, as far as they are on this machine."""

    def __init__(self) -> None:
        self._train_cache: dict[str, list[Question] | str] = {}
        self._near_notes: dict[tuple[str, str], list[str]] = {}

    def refuse(self, contestant: Contestant, testbed: Testbed, split: str) -> list[str]:
        """Raise DataError if the contestant was trained on a question of `testbed`.

        Returns notes on questions that are textually close to a training question, which a reader has to judge, and on
        datasets that could not be compared.
        """
        notes = []
        for env in _training_environments(contestant):
            train = self._train(env.dataset) if contestant.config.client.urls == "local" else "it is a service's"
            if isinstance(train, str):
                notes.append(f"{contestant.name}: the questions it was trained on could not be compared ({train}).")
            elif shared := overlap_with_train(testbed.dataset, split, testbed.questions, train):
                raise DataError(
                    f"{contestant.name} was trained on questions of {testbed.dataset}. {shared[0]} Take them out of "
                    "the split, or take the dataset from this system (systems.NAME.datasets)."
                )
            else:
                notes += [
                    f"{contestant.name} was trained on {env.dataset.path or env.dataset.kind}. {sentence}"
                    for sentence in self._near_duplicate_notes(env.dataset, testbed, split, train)
                ]
        return notes

    def _near_duplicate_notes(
        self, source: DatasetConfig, testbed: Testbed, split: str, train: Sequence[Question]
    ) -> list[str]:
        """Notes on near-duplicate questions; computed once for all runs and environments."""
        key = source.model_dump_json(), testbed.dataset
        if key not in self._near_notes:
            self._near_notes[key] = near_overlap_with_train(testbed.dataset, split, testbed.questions, train)
        return self._near_notes[key]

    def _train(self, source: DatasetConfig) -> Sequence[Question] | str:
        key = source.model_dump_json()
        if key not in self._train_cache:
            try:
                splits = open_corpus(source).questions(AllDocuments()).splits
                train = splits["train"].questions if "train" in splits else []
                self._train_cache[key] = joined("trained", train)  # equal ids of two collections mean nothing
            except QuerylectError as error:
                self._train_cache[key] = str(error)
        return self._train_cache[key]


def _training_environments(contestant: Contestant) -> list[EnvironmentConfig]:
    """The environments that a run was trained in."""
    return [member.env for member in environments(contestant.config).values()] if contestant.trained else []


def _signature(env: EnvironmentConfig) -> str:
    return json.dumps(env.model_dump(mode="json", include=set(_RETRIEVER_FIELDS)), sort_keys=True)
