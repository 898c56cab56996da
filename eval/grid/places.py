"""Where questions are asked: one environment of a plan on one of its datasets, opened for its facts alone.

A place on this machine builds its index where it is missing, and knows the judgements. One that runs as a service is
asked what it serves.
"""

import hashlib
import json
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...configs.environment import DatasetConfig, EnvironmentConfig
from ...configs.evaluation import PlanConfig, PlanEnvironment
from ...configs.schema import RunConfig
from ...data.corpus import open_corpus
from ...data.sampling import Sample, draw, draw_of_parts, sampled
from ...data.types import Dataset, Question, Split
from ...envs.connect import open_environment
from ...envs.index import build_index, check_corpus, open_index
from ...envs.rerank import reranked
from ...errors import ConfigError
from ...logs import progress_bar
from ...rewriters.card import RetrieverCard
from ..baselines import retriever_name
from ..identity import judgements_identity, model_identity, options_identity

_OF_THE_INDEX = {"model", "recipe", "hybrid", "remote", "engine", "vectors"}
"""Settings that make another index of the same retriever and dataset."""


@dataclass(frozen=True, slots=True)
class Place:
    """One environment on one dataset."""

    dataset: str
    environment: str
    config: RunConfig
    """Settings with which a client of it is opened; only `env` and `client` are meant."""
    card: RetrieverCard
    questions: list[Question]
    everything: list[Question]
    """All questions of the split, also those beyond `limit`."""
    published_as: tuple[str, str]
    """Names of dataset and retriever under which figures of it are published."""
    split: Split | None
    """Questions and judgements of the split, where they are on this machine."""
    documents: int
    """How many are searched."""
    corpus_hash: str
    identity: dict[str, Any] = field(repr=False)
    """All of the place that an answer depends on."""
    sample: Sample | None = None
    """Where `limit` left some questions out."""


class AnyDocument:
    """Holds every document: where questions are read without their corpus."""

    def __contains__(self, _: object) -> bool:
        return True


class Places:
    """Opens the places of a plan; a dataset is loaded once for all its environments."""

    def __init__(self, plan: PlanConfig) -> None:
        self.plan = plan
        self._datasets: dict[str, Dataset] = {}

    def open(self, dataset: str, environment: str) -> Place:
        """The facts of one place. Raises what opening its index, its dataset or its service raises."""
        plan, settings = self.plan, self.plan.environments[environment]
        source = plan.datasets[dataset]
        urls = settings.urls.get(dataset) or settings.client.urls
        if urls == "local":
            if source is None:
                raise ConfigError(
                    f"datasets.{dataset} is null, and environments.{environment} has no service for it. Describe the "
                    f"dataset, or give environments.{environment}.urls.{dataset}."
                )
            return self._local(dataset, environment, settings, source)
        config = RunConfig(
            env=settings.env, client=settings.client.model_copy(update={"urls": urls}), name=f"{dataset}-{environment}"
        )
        with open_environment(config) as client:
            info = client.environment()
            if not info.splits.get(plan.split):
                raise _no_split(plan.split, f"the service of {environment} on {dataset}", dict(info.splits))
            questions = client.questions(plan.split)
        known = self._split(dataset, source, AnyDocument()) if source is not None else None
        asked = self._limited(dataset, questions)
        return Place(
            dataset,
            environment,
            config,
            RetrieverCard.from_service(info.retriever),
            asked,
            questions,
            (self._datasets[dataset].name if known is not None else dataset, retriever_name(info.retriever)),
            known,
            info.corpus_size,
            info.corpus_hash,
            {
                "index": info.index_hash,
                "gain": info.gain,
                "judgements": judgements_identity(known.qrels if known else None),
                "settings": info.settings_hash,
                "options": options_identity(questions),
            },
            sampled(len(asked), len(questions), plan.limit, plan.seed),
        )

    def _local(self, dataset: str, environment: str, settings: PlanEnvironment, source: DatasetConfig) -> Place:
        env = searched_here(self.plan, settings, dataset, source)
        if not Path(env.index).expanduser().is_dir():
            with progress_bar(f"indexing {dataset} for {environment}") as progress:
                build_index(env, progress=progress)
        index = open_index(env.index)
        check_corpus(index, open_corpus(source))
        split = self._split(dataset, source, index.documents)
        rerank = None
        manifest = index.manifest
        card = manifest.recipe.model_dump(mode="json", exclude_none=True)
        if env.rerank is not None:
            rerank = {**env.rerank.model_dump(mode="json"), "model": model_identity(env.rerank.model)}
            card |= {"trained": reranked(card["trained"], env.rerank.depth), "rerank": rerank}
        asked = self._limited(dataset, split.questions)
        return Place(
            dataset,
            environment,
            RunConfig(env=env, client=settings.client, name=f"{dataset}-{environment}"),
            RetrieverCard.from_service(card),
            asked,
            list(split.questions),
            (self._datasets[dataset].name, retriever_name(card)),
            split,
            manifest.documents,
            manifest.corpus_hash,
            {
                "index": manifest.index_hash,
                "rerank": rerank,
                "gain": env.gain,
                "search": env.vectors.model_dump(mode="json")
                if manifest.vectors is not None or env.hybrid is not None
                else None,
                "judgements": judgements_identity(split.qrels),
                "dataset": source.model_dump(mode="json", exclude={"path"}, exclude_defaults=True),
                "identical_ids_ignored": self._datasets[dataset].ignore_identical_ids,
                "options": options_identity(split.questions),
            },
            sampled(len(asked), len(split.questions), self.plan.limit, self.plan.seed),
        )

    def _split(self, dataset: str, source: DatasetConfig, documents: Container[str]) -> Split:
        if dataset not in self._datasets:
            self._datasets[dataset] = open_corpus(source).questions(documents)
        splits = self._datasets[dataset].splits
        if not splits.get(self.plan.split) or not splits[self.plan.split].questions:
            sizes = {name: len(split.questions) for name, split in splits.items()}
            raise _no_split(self.plan.split, f"the dataset {dataset}", sizes)
        return splits[self.plan.split]

    def _limited(self, dataset: str, questions: Sequence[Question]) -> list[Question]:
        """The sample of `limit` questions; where a dataset has parts, of every part."""
        plan = self.plan
        if not plan.has_parts(dataset):
            return draw(questions, plan.limit, plan.seed)
        return draw_of_parts(questions, plan.limit, plan.seed, lambda question: question.id.partition("/")[0])

    def licence(self, dataset: str) -> str:
        """Licence and citation of a dataset on this machine; "" where it is not known here."""
        return self._datasets[dataset].licence if dataset in self._datasets else ""


def searched_here(
    plan: PlanConfig, settings: PlanEnvironment, dataset: str, source: DatasetConfig
) -> EnvironmentConfig:
    """The settings of an environment that searches `dataset` on this machine, its index folders named."""

    def folder(written: str, what: str) -> str:
        if "{dataset}" not in written and len(settings.datasets or plan.datasets) > 1:
            raise ConfigError(
                f"{what} is {written!r} for {len(settings.datasets or plan.datasets)} datasets; put {{dataset}} into "
                "it, where the name of the dataset goes."
            )
        return written.replace("{dataset}", dataset)

    env = settings.env
    changes: dict[str, Any] = {"dataset": source, "name": env.name or f"{dataset}/{env.retriever}"}
    if env.hybrid is not None:
        members = [
            member.model_copy(update={"index": folder(member.index, "env.hybrid.members.index")})
            for member in env.hybrid.members
        ]
        changes["hybrid"] = env.hybrid.model_copy(update={"members": members})
    if env.question_index is not None:
        named = {
            name: folder(getattr(env.question_index, name), f"env.question_index.{name}")
            for name in ("folder", "index")
        }
        changes["question_index"] = env.question_index.model_copy(update=named)
    if "index" in env.model_fields_set:
        changes["index"] = folder(env.index, "env.index")
    else:
        changes["index"] = str(Path(plan.indexes) / f"{dataset}-{_index_name(env)}")
    return env.model_copy(update=changes)


def _index_name(env: EnvironmentConfig) -> str:
    """The retriever in letters that a folder may have; a mark of its settings where they are not the usual ones."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", env.retriever).strip("-.") or "retriever"
    own = env.model_dump(mode="json", include=_OF_THE_INDEX)
    if env.question_index is not None:
        own["question_index"] = env.question_index.model_dump(mode="json")
    usual = EnvironmentConfig().model_dump(mode="json", include=_OF_THE_INDEX)
    if own == usual:
        return name
    return f"{name}-{hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:8]}"


def chosen_places(plan: PlanConfig) -> list[tuple[str, str]]:
    """(dataset, environment) of every place, in the order of the plan."""
    return [
        (dataset, name)
        for dataset in plan.datasets
        for name, environment in plan.environments.items()
        if environment.datasets is None or dataset in environment.datasets
    ]


def _no_split(split: str, where: str, there: dict[str, int]) -> ConfigError:
    return ConfigError(f"{where} has no questions in split {split!r}; it has {there}. Change split.")
