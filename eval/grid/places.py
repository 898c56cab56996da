"""Testbeds: one environment of a plan on one of its datasets, opened only to read its facts.

A local testbed builds its index if that is missing, and has the judgements. A testbed behind a service is asked for its
facts over HTTP.
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
from ...data.sampling import QuestionSample, draw, draw_of_parts, sampled
from ...data.types import Dataset, Question, Split
from ...envs.client.connect import open_environment
from ...envs.index.build import build_index
from ...envs.index.open import open_index
from ...envs.retrievers.open import check_corpus
from ...envs.retrievers.rerank import reranked
from ...errors import ConfigError
from ...logs import progress_bar
from ...rewriters.card import RetrieverCard
from ..baselines import retriever_name
from ..identity import judgements_identity, model_identity, options_identity

_INDEX_FIELDS = {"model", "recipe", "hybrid", "remote", "engine", "vectors"}
"""Settings that lead to a different index for the same retriever and dataset."""


@dataclass(frozen=True, slots=True)
class Testbed:
    """One environment on one dataset."""

    dataset: str
    environment: str
    config: RunConfig
    """Settings for opening a client; only `env` and `client` are used."""
    card: RetrieverCard
    questions: list[Question]
    everything: list[Question]
    """All questions of the split, also those beyond `limit`."""
    published_as: tuple[str, str]
    """Names of dataset and retriever under which its figures are published."""
    split: Split | None
    """Questions and judgements of the split; None if they are not on this machine."""
    documents: int
    """Number of documents in the corpus."""
    corpus_hash: str
    identity: dict[str, Any] = field(repr=False)
    """Everything about the testbed that an answer depends on."""
    sample: QuestionSample | None = None
    """How questions were sampled, if `limit` left some out."""


class AllDocuments:
    """Contains every document id; for reading questions without their corpus."""

    def __contains__(self, _: object) -> bool:
        return True


class Places:
    """Opens the testbeds of a plan; a dataset is loaded once for all its environments."""

    def __init__(self, plan: PlanConfig) -> None:
        self.plan = plan
        self._datasets: dict[str, Dataset] = {}

    def open(self, dataset: str, environment: str) -> Testbed:
        """Open one testbed. Raises the errors of opening its index, dataset or service."""
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
        split = self._split(dataset, source, AllDocuments()) if source is not None else None
        selected = self._limited(dataset, questions)
        return Testbed(
            dataset,
            environment,
            config,
            RetrieverCard.from_service(info.retriever),
            selected,
            questions,
            (self._datasets[dataset].name if split is not None else dataset, retriever_name(info.retriever)),
            split,
            info.corpus_size,
            info.corpus_hash,
            {
                "index": info.index_hash,
                "gain": info.gain,
                "judgements": judgements_identity(split.qrels if split else None),
                "settings": info.settings_hash,
                "options": options_identity(questions),
            },
            sampled(len(selected), len(questions), plan.limit, plan.seed),
        )

    def _local(self, dataset: str, environment: str, settings: PlanEnvironment, source: DatasetConfig) -> Testbed:
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
        selected = self._limited(dataset, split.questions)
        return Testbed(
            dataset,
            environment,
            RunConfig(env=env, client=settings.client, name=f"{dataset}-{environment}"),
            RetrieverCard.from_service(card),
            selected,
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
            sampled(len(selected), len(split.questions), self.plan.limit, self.plan.seed),
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
        """A sample of `limit` questions; if the dataset has parts, `limit` of each part."""
        plan = self.plan
        if not plan.has_parts(dataset):
            return draw(questions, plan.limit, plan.seed)
        return draw_of_parts(questions, plan.limit, plan.seed, lambda question: question.id.partition("/")[0])

    def licence(self, dataset: str) -> str:
        """Licence and citation of a local dataset; "" if the dataset was not loaded."""
        return self._datasets[dataset].licence if dataset in self._datasets else ""


def searched_here(
    plan: PlanConfig, settings: PlanEnvironment, dataset: str, source: DatasetConfig
) -> EnvironmentConfig:
    """The settings of an environment that searches `dataset` on this machine, with index folders filled in."""

    def folder(template: str, setting: str) -> str:
        if "{dataset}" not in template and len(settings.datasets or plan.datasets) > 1:
            raise ConfigError(
                f"{setting} is {template!r} for {len(settings.datasets or plan.datasets)} datasets; put {{dataset}} "
                "into it, where the name of the dataset goes."
            )
        return template.replace("{dataset}", dataset)

    env = settings.env
    changes: dict[str, Any] = {"dataset": source, "name": env.name or f"{dataset}/{env.retriever}"}
    if env.hybrid is not None:
        members = [
            member.model_copy(update={"index": folder(member.index, "env.hybrid.members.index")})
            for member in env.hybrid.members
        ]
        changes["hybrid"] = env.hybrid.model_copy(update={"members": members})
    if env.question_index is not None:
        index_folders = {
            name: folder(getattr(env.question_index, name), f"env.question_index.{name}")
            for name in ("folder", "index")
        }
        changes["question_index"] = env.question_index.model_copy(update=index_folders)
    if "index" in env.model_fields_set:
        changes["index"] = folder(env.index, "env.index")
    else:
        changes["index"] = str(Path(plan.indexes) / f"{dataset}-{_index_name(env)}")
    return env.model_copy(update=changes)


def _index_name(env: EnvironmentConfig) -> str:
    """The retriever's name as a folder name; a hash of its index settings is appended if they are not the defaults."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", env.retriever).strip("-.") or "retriever"
    settings = env.model_dump(mode="json", include=_INDEX_FIELDS)
    if env.question_index is not None:
        settings["question_index"] = env.question_index.model_dump(mode="json")
    defaults = EnvironmentConfig().model_dump(mode="json", include=_INDEX_FIELDS)
    if settings == defaults:
        return name
    return f"{name}-{hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]}"


def chosen_places(plan: PlanConfig) -> list[tuple[str, str]]:
    """(dataset, environment) of every testbed, in the order of the plan."""
    return [
        (dataset, name)
        for dataset in plan.datasets
        for name, environment in plan.environments.items()
        if environment.datasets is None or dataset in environment.datasets
    ]


def _no_split(split: str, source: str, sizes: dict[str, int]) -> ConfigError:
    return ConfigError(f"{source} has no questions in split {split!r}; it has {sizes}. Change split.")
