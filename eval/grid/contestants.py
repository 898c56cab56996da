"""The systems of a plan, resolved: which weights, which prompts, and what a run was trained on."""

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
from .places import AnyDocument, Place

UNTRAINED = "untrained"
"""As a checkpoint: the policy of the run before it was trained."""

_RETRIEVER = ("retriever", "model", "recipe", "rerank", "hybrid", "question_index", "engine")


@dataclass(frozen=True, slots=True)
class Contestant:
    """A rewriting system of the plan."""

    name: str
    system: SystemConfig
    config: RunConfig
    """Its policy and rollout settings; of a run, all of that run's settings."""
    checkpoint: Path | None
    """The trained policy; None is the model as it stands."""
    depth: int
    weights: Mapping[str, Any]
    """What its model and its checkpoint are recognised by."""

    @property
    def engine_key(self) -> str:
        """Contestants of one key answer with the same loaded model."""
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

    def rewriter(self, place: Place) -> Rewriter:
        """Its rewriter for a place. Raises ConfigError where the two, or rewriter and system, do not fit."""
        documents = max(self.depth, self.config.rollout.documents)
        made = make_rewriter(self.rewriter_settings(place.environment), place.card, documents)
        if self.system.passages > 1 and not joins(made):
            raise ConfigError(
                f"systems.{self.name}.passages is {self.system.passages}, and {made.name} searches with one answer. "
                "Take rewriter.name=hyde, or leave passages out."
            )
        return made

    def rewriter_settings(self, environment: str) -> RewriterConfig:
        """Those of the run's member of that name, where the run mixes environments and has one."""
        if self.system.rewriter is None and self.config.mix is not None:
            member = environments(self.config).get(environment)
            if member is not None:
                return member.rewriter
        return self.config.rewriter

    def trained_in(self, plan: PlanConfig, cards: Mapping[str, RetrieverCard]) -> str:
        """The environments that the run was trained in, by their names in the plan, else by retriever; "" untrained.

        An environment that is searched on this machine is recognised by the settings of its retriever, a service by
        the name on its card (`cards`, by environment).
        """
        names: dict[str, str] = {}
        for name, environment in plan.environments.items():
            if environment.client.urls == "local" and not environment.urls:
                names.setdefault(_signature(environment.env), name)
            elif name in cards:
                names.setdefault(cards[name].name, name)
        found = [names.get(_signature(env), names.get(env.retriever, env.retriever)) for env in _schools(self)]
        return "+".join(dict.fromkeys(found))


def resolve(name: str, plan: PlanConfig) -> Contestant:
    """The contestant of that name.

    Raises ConfigError or CheckpointError for a run that is none or has no policy, ModelError for a model that is none.
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
    """What the runs of a plan were trained on, as far as that lies on this machine."""

    def __init__(self) -> None:
        self._read: dict[str, list[Question] | str] = {}
        self._near: dict[tuple[str, str], list[str]] = {}

    def refuse(self, contestant: Contestant, place: Place, split: str) -> list[str]:
        """DataError where a question of `place` was trained on.

        Gives notes on questions that are nearly the same as a trained one, letter by letter, which a reader has to
        judge, and on what could not be looked at.
        """
        notes = []
        for env in _schools(contestant):
            found = self._train(env.dataset) if contestant.config.client.urls == "local" else "it is a service's"
            if isinstance(found, str):
                notes.append(f"{contestant.name}: the questions it was trained on could not be compared ({found}).")
            elif shared := overlap_with_train(place.dataset, split, place.questions, found):
                raise DataError(
                    f"{contestant.name} was trained on questions of {place.dataset}. {shared[0]} Take them out of the "
                    "split, or take the dataset from this system (systems.NAME.datasets)."
                )
            else:
                notes += [
                    f"{contestant.name} was trained on {env.dataset.path or env.dataset.kind}. {sentence}"
                    for sentence in self._nearly(env.dataset, place, split, found)
                ]
        return notes

    def _nearly(self, source: DatasetConfig, place: Place, split: str, train: Sequence[Question]) -> list[str]:
        """What is said of nearly equal questions; looked for once for all runs and environments."""
        key = source.model_dump_json(), place.dataset
        if key not in self._near:
            self._near[key] = near_overlap_with_train(place.dataset, split, place.questions, train)
        return self._near[key]

    def _train(self, source: DatasetConfig) -> Sequence[Question] | str:
        key = source.model_dump_json()
        if key not in self._read:
            try:
                splits = open_corpus(source).questions(AnyDocument()).splits
                train = splits["train"].questions if "train" in splits else []
                self._read[key] = joined("trained", train)  # equal ids of two collections mean nothing
            except QuerylectError as error:
                self._read[key] = str(error)
        return self._read[key]


def _schools(contestant: Contestant) -> list[EnvironmentConfig]:
    """The environments that a run was trained in."""
    return [one.env for one in environments(contestant.config).values()] if contestant.trained else []


def _signature(env: EnvironmentConfig) -> str:
    return json.dumps(env.model_dump(mode="json", include=set(_RETRIEVER)), sort_keys=True)
