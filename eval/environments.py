"""The environments of an evaluation: one retriever on one dataset, with the questions that are evaluated there.

A local environment is read from its index, which is built if it is missing, and has the judgements. An environment
behind a service is asked for its facts over HTTP.
"""

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ..configs.environment import ClientConfig, DatasetConfig, EnvironmentConfig
from ..configs.evaluation import SpecConfig, SpecEnvironment
from ..data.corpus import Corpus, load_dataset
from ..data.sampling import QuestionSample, draw, draw_of_parts, sampled
from ..data.types import AllDocuments, Dataset, Question, Split
from ..envs.build import build_index
from ..envs.client.base import EnvironmentApi
from ..envs.client.connect import open_environment, open_unserved
from ..envs.index import open_index
from ..envs.presets import index_name, member_settings
from ..envs.retrievers.combined import reranked
from ..envs.retrievers.open import check_corpus, retriever_info
from ..errors import ConfigError
from ..logs import progress_bar
from ..rewards.metrics import RELEVANT
from ..rewriters.retriever_info import RetrieverInfo
from .identity import model_identity

INDEXES = Path("indexes")
"""The folder of indexes without a path of their own."""
SAMPLE_SEED = 0
"""Seed of the samples that `limit` draws: evaluations of every seed ask the same questions."""


@dataclass(frozen=True, slots=True)
class EvalEnvironment:
    """One environment on one dataset; a local one runs only while `connect` is open."""

    dataset: str
    """The dataset's name in the evaluation."""
    name: str
    """The environment's name in the evaluation."""
    env: EnvironmentConfig
    client_config: ClientConfig
    retriever: RetrieverInfo
    questions: list[Question]
    """The questions that are evaluated."""
    everything: list[Question]
    """All questions of the split, also those beyond `limit`."""
    train: list[Question]
    """Its training questions, which a policy that was trained there has seen."""
    published_as: tuple[str, str]
    """Names of dataset and retriever under which its figures are published."""
    split: Split | None
    """Questions and judgements of the split; None if they are not on this machine."""
    documents: int
    """Number of documents in the corpus."""
    corpus_hash: str
    identity: dict[str, object] = field(repr=False)
    """What answers depend on beside the question and its judgements."""
    sample: QuestionSample | None = None
    """How questions were sampled, if `limit` left some out."""
    judged: bool = True
    """Whether questions have relevant documents."""
    relevance_level: int = RELEVANT
    """The least grade that binary metrics count as relevant."""
    loaded: Dataset | None = field(default=None, repr=False)
    """What `connect` need not read again, if the environment is opened in this process."""

    @property
    def title(self) -> str:
        """The environment in a heading, or at the beginning of a sentence."""
        return f"{self.name} on {self.dataset}"

    @property
    def label(self) -> str:
        """The dataset and the environment in a sentence."""
        return f"on {self.dataset} in {self.name}"

    @contextmanager
    def connect(self, served: bool = True) -> Iterator[EnvironmentApi]:
        """A client for a `with` block. Without `served`, this process searches its own index (`open_unserved`)."""
        with (
            open_environment(self.env, self.client_config)
            if served
            else open_unserved(self.env, self.client_config, self.loaded)
        ) as client:
            yield client


def retriever_name(retriever: Mapping[str, object]) -> str:
    """The name under which a retriever's figures are published. With a reranker it is another system."""
    return f"{retriever['name']} with a reranker" if retriever.get("rerank") else str(retriever["name"])


class SpecEnvironments:
    """Opens the environments of a spec; the questions of a dataset are read once for all of them."""

    def __init__(self, spec: SpecConfig) -> None:
        self.spec = spec
        self._loaded: dict[tuple[str, bool], Dataset] = {}
        """By path, and whether judgements of documents that no index has may be among its own."""

    def open(self, dataset: str, environment: str) -> EvalEnvironment:
        """Open one environment. Raises the errors of opening its index, dataset or service."""
        settings, source = self.spec.environments[environment], self.spec.datasets[dataset]
        urls = settings.urls.get(dataset) or settings.client.urls
        if urls != "local":
            client = settings.client.model_copy(update={"urls": urls})
            return self._served(dataset, environment, settings.env, client, source)
        if source is None:
            raise ConfigError(
                f"datasets.{dataset} is null, and environments.{environment} has no service for it. Describe the "
                f"dataset, or give environments.{environment}.urls.{dataset}."
            )
        return self._local(dataset, environment, settings, source)

    def _served(
        self, dataset: str, name: str, env: EnvironmentConfig, settings: ClientConfig, source: DatasetConfig | None
    ) -> EvalEnvironment:
        spec = self.spec
        with open_environment(env, settings) as client:
            info = client.info()
            if not info.splits.get(spec.split):
                raise _no_split(spec.split, f"the service of {name} on {dataset}", dict(info.splits))
            questions = list(client.questions(spec.split))
            train = list(client.questions("train")) if info.splits.get("train") else []
        loaded = self.load(source) if source is not None else None
        split = self._split(dataset, loaded) if loaded is not None else None
        selected = self._limited(dataset, questions)
        return EvalEnvironment(
            dataset=dataset,
            name=name,
            env=env,
            client_config=settings,
            retriever=RetrieverInfo.from_service(info.retriever),
            questions=selected,
            everything=questions,
            train=train,
            published_as=(loaded.name if loaded else dataset, retriever_name(info.retriever)),
            split=split,
            documents=info.corpus_size,
            corpus_hash=info.corpus_hash,
            identity={"index": info.index_hash, "settings": info.settings_hash},
            sample=sampled(len(selected), len(questions), spec.limit, SAMPLE_SEED),
            judged=info.judged,
            relevance_level=split.relevance_level(info.relevance_level) if split is not None else info.relevance_level,
        )

    def _local(self, dataset: str, name: str, settings: SpecEnvironment, source: DatasetConfig) -> EvalEnvironment:
        env = searched_here(self.spec, settings, dataset, source)
        if not env.index_folder.is_dir():
            with progress_bar(f"indexing {dataset} for {name}") as progress:
                build_index(env, progress=progress)
        index = open_index(env.index)
        check_corpus(index, Corpus(source))
        loaded = self.load(source, index.documents)
        split = self._split(dataset, loaded)
        level = split.relevance_level(loaded.relevance_level)
        retriever, rerank = retriever_info(env, index), None
        if env.rerank is not None:
            rerank = {**env.rerank.model_dump(mode="json"), "model": model_identity(env.rerank.model)}
            retriever |= {"trained": reranked(str(retriever["trained"]), env.rerank.depth), "rerank": rerank}
        dense = retriever["kind"] in ("dense", "hybrid") or env.hybrid is not None
        selected, train = self._limited(dataset, list(split.questions)), loaded.splits.get("train")
        return EvalEnvironment(
            dataset=dataset,
            name=name,
            env=env,
            client_config=settings.client,
            retriever=RetrieverInfo.from_service(retriever),
            questions=selected,
            everything=list(split.questions),
            train=list(train.questions) if train is not None else [],
            published_as=(loaded.name, retriever_name(retriever)),
            split=split,
            documents=index.meta.documents,
            corpus_hash=index.meta.corpus_hash,
            identity={
                "index": index.meta.index_hash,
                "rerank": rerank,
                "search": env.vectors.model_dump(mode="json") if dense else None,
                "identical_ids_ignored": loaded.ignore_identical_ids,
                "relevance_level": level,
            },
            sample=sampled(len(selected), len(split.questions), self.spec.limit, SAMPLE_SEED),
            judged=split.relevant > 0,
            relevance_level=level,
            loaded=loaded,
        )

    def load(self, source: DatasetConfig, documents: Container[str] | None = None) -> Dataset:
        """The questions and judgements of a dataset, of an index with these `documents`. Raises DataError."""
        key = (source.path, documents is None)
        indexed = self._loaded.get((source.path, False))
        if indexed is None and key not in self._loaded:
            self._loaded[key] = load_dataset(source, AllDocuments() if documents is None else documents)
        return indexed or self._loaded[key]

    def _split(self, dataset: str, loaded: Dataset) -> Split:
        split = loaded.splits.get(self.spec.split)
        if split is None or not split.questions:
            sizes = {name: len(split.questions) for name, split in loaded.splits.items()}
            raise _no_split(self.spec.split, f"the dataset {dataset}", sizes)
        return split

    def _limited(self, dataset: str, questions: list[Question]) -> list[Question]:
        """A sample of `limit` questions; if the dataset has parts, `limit` of each part."""
        if dataset not in self.spec.parts:
            return draw(questions, self.spec.limit, SAMPLE_SEED)
        return draw_of_parts(questions, self.spec.limit, SAMPLE_SEED, lambda question: question.id.partition("/")[0])

    def licence(self, dataset: str) -> str:
        """Licence and citation of a local dataset; "" if the dataset was not read."""
        source = self.spec.datasets[dataset]
        loaded = [dataset for (path, _), dataset in self._loaded.items() if source is not None and path == source.path]
        return loaded[0].licence if loaded else ""


def searched_here(
    spec: SpecConfig, settings: SpecEnvironment, dataset: str, source: DatasetConfig
) -> EnvironmentConfig:
    """The settings of an environment that searches `dataset` on this machine, with index folders filled in."""

    def folder(template: str, setting: str) -> str:
        if "{dataset}" not in template and len(settings.datasets or spec.datasets) > 1:
            raise ConfigError(
                f"{setting} is {template!r} for {len(settings.datasets or spec.datasets)} datasets; put {{dataset}} "
                "into it, where the name of the dataset goes."
            )
        return template.replace("{dataset}", dataset)

    env = settings.env
    changes: dict[str, object] = {"dataset": source, "name": env.name or f"{dataset}/{env.retriever}"}
    if env.hybrid is not None:
        members = [
            member.model_copy(
                update={
                    "index": folder(member.index, "env.hybrid.members.index")
                    if member.index
                    else str(INDEXES / f"{dataset}-{index_name(resolved)}")
                }
            )
            for member, resolved in zip(env.hybrid.members, member_settings(env), strict=True)
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
        changes["index"] = str(INDEXES / f"{dataset}-{index_name(env)}")
    return env.model_copy(update=changes)


def chosen_environments(spec: SpecConfig) -> list[tuple[str, str]]:
    """(dataset, environment) of every environment on a dataset, in the order of the spec."""
    return [
        (dataset, name)
        for dataset in spec.datasets
        for name, environment in spec.environments.items()
        if environment.datasets is None or dataset in environment.datasets
    ]


def _no_split(split: str, source: str, sizes: dict[str, int]) -> ConfigError:
    return ConfigError(f"{source} has no questions in split {split!r}; it has {sizes}. Change split.")
