"""The environments of an evaluation: one retriever on one dataset, with the questions that are evaluated there.

A local environment is read from its index, which is built if it is missing, and has the judgements. An environment
behind a service is asked for its facts over HTTP.
"""

from collections.abc import Container, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..configs.environment import ClientConfig, DatasetConfig, EnvironmentConfig
from ..configs.evaluation import SpecConfig, SpecEnvironment
from ..data.corpus import Corpus, file_fingerprint, load_dataset
from ..data.sampling import QuestionSample, draw, draw_of_parts, sampled
from ..data.types import AllDocuments, Dataset, Question, Split
from ..envs.build import build_index
from ..envs.client.base import EnvironmentApi
from ..envs.client.connect import open_environment, open_unserved
from ..envs.index import open_index
from ..envs.presets import index_name, member_settings
from ..envs.retrievers.combined import reranked
from ..envs.retrievers.open import check_corpus, retriever_info
from ..errors import ConfigError, ModelError
from ..logs import progress_bar
from ..rewards.metrics import RELEVANT
from ..rewriters.retriever_info import RetrieverInfo
from ..sources import resolve_model
from ..storage import data_sha256

INDEXES = Path("indexes")
"""The folder of indexes without a path of their own."""
SAMPLE_SEED = 0
"""Seed of the samples that `limit` draws: evaluations of every seed ask the same questions."""
_MODEL_SUFFIXES = {".py", ".safetensors", ".json", ".gguf", ".jinja", ".txt", ".model", ".bin"}


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
    identity: dict[str, Any] = field(repr=False)
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
        """The environment and the dataset in a sentence."""
        return f"{self.name} on {self.dataset}"

    def connect(self, served: bool = True) -> AbstractContextManager[EnvironmentApi]:
        """A client for a `with` block. Without `served`, this process searches its own index (`open_unserved`)."""
        if served:
            return open_environment(self.env, self.client_config)
        return open_unserved(self.env, self.client_config, self.loaded)


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
        with open_environment(env, settings) as client:
            info = client.info()
            if not info.splits.get(self.spec.split):
                raise self._no_split(f"the service of {name} on {dataset}", dict(info.splits))
            questions = client.questions(self.spec.split)
            train = client.questions("train") if info.splits.get("train") else []
        loaded = self.load(source) if source is not None else None
        split = self._split(dataset, loaded) if loaded is not None else None
        return EvalEnvironment(
            name=name,
            env=env,
            client_config=settings,
            train=list(train),
            split=split,
            documents=info.corpus_size,
            corpus_hash=info.corpus_hash,
            identity={"index": info.index_hash, "settings": info.settings_hash},
            judged=info.judged,
            relevance_level=split.relevance_level(info.relevance_level) if split is not None else info.relevance_level,
            **self._described(dataset, loaded.name if loaded else dataset, info.retriever, questions),
        )

    def _local(self, dataset: str, name: str, settings: SpecEnvironment, source: DatasetConfig) -> EvalEnvironment:
        env = searched_here(self.spec, settings, dataset, source)
        if not env.index_folder.is_dir():
            with progress_bar(f"indexing {dataset} for {name}") as progress:
                build_index(env, progress=progress)
        index = open_index(env.index)
        check_corpus(index, Corpus(source))
        loaded = self.load(source, index.documents)
        split, train = self._split(dataset, loaded), loaded.splits.get("train")
        level = split.relevance_level(loaded.relevance_level)
        retriever, rerank = retriever_info(env, index), None
        if env.rerank is not None:
            rerank = {**env.rerank.model_dump(mode="json"), "model": model_identity(env.rerank.model)}
            retriever |= {"trained": reranked(str(retriever["trained"]), env.rerank.depth), "rerank": rerank}
        dense = retriever["kind"] in ("dense", "hybrid") or env.hybrid is not None
        return EvalEnvironment(
            name=name,
            env=env,
            client_config=settings.client,
            train=list(train.questions) if train is not None else [],
            split=split,
            documents=index.meta.documents,
            corpus_hash=index.meta.corpus_hash,
            identity={
                "index": index.meta.index_hash,
                "rerank": rerank,
                "search": env.vectors.model_dump(mode="json") if dense else None,
                "identical_ids_ignored": loaded.ignore_identical_ids,
                "relevance_level": level,
                "order": env.order,
            },
            judged=split.relevant > 0,
            relevance_level=level,
            loaded=loaded,
            **self._described(dataset, loaded.name, retriever, split.questions),
        )

    def _described(
        self, dataset: str, published: str, retriever: Mapping[str, object], questions: Sequence[Question]
    ) -> dict[str, Any]:
        """What an environment says of itself, and the questions of the split: a sample of `limit`, or of so many of
        each part if the dataset has parts."""
        limit, everything = self.spec.limit, list(questions)
        if dataset in self.spec.parts:
            selected = draw_of_parts(everything, limit, SAMPLE_SEED, lambda question: question.id.partition("/")[0])
        else:
            selected = draw(everything, limit, SAMPLE_SEED)
        return {
            "dataset": dataset,
            "published_as": (published, retriever_name(retriever)),
            "retriever": RetrieverInfo.from_service(retriever),
            "questions": selected,
            "everything": everything,
            "sample": sampled(len(selected), len(everything), limit, SAMPLE_SEED),
        }

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
            raise self._no_split(f"the dataset {dataset}", sizes)
        return split

    def _no_split(self, source: str, sizes: dict[str, int]) -> ConfigError:
        return ConfigError(f"{source} has no questions in split {self.spec.split!r}; it has {sizes}. Change split.")

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

    def default(retriever: EnvironmentConfig) -> str:
        return str(INDEXES / f"{dataset}-{index_name(retriever)}")

    env = settings.env
    changes: dict[str, object] = {"dataset": source, "name": env.name or f"{dataset}/{env.retriever}"}
    if env.hybrid is not None:
        pairs = zip(env.hybrid.members, member_settings(env), strict=True)
        indexes = [
            folder(member.index, "env.hybrid.members.index") if member.index else default(resolved)
            for member, resolved in pairs
        ]
        members = [
            member.model_copy(update={"index": index})
            for member, index in zip(env.hybrid.members, indexes, strict=True)
        ]
        changes["hybrid"] = env.hybrid.model_copy(update={"members": members})
    if questions := env.question_index:
        names = ("folder", "index")
        folders = {name: folder(getattr(questions, name), f"env.question_index.{name}") for name in names}
        changes["question_index"] = questions.model_copy(update=folders)
    changes["index"] = folder(env.index, "env.index") if "index" in env.model_fields_set else default(env)
    return env.model_copy(update=changes)


def chosen_environments(spec: SpecConfig) -> list[tuple[str, str]]:
    """(dataset, environment) of every environment on a dataset, in the order of the spec."""
    return [
        (dataset, name)
        for dataset in spec.datasets
        for name, environment in spec.environments.items()
        if environment.datasets is None or dataset in environment.datasets
    ]


def model_identity(name: str) -> str:
    """A model's identity: a hash of its folder, or only the Hub id where the weights may not be downloaded yet.

    Raises ModelError where the name cannot be resolved.
    """
    resolved = resolve_model(name)
    return folder_identity(Path(resolved)) if Path(resolved).is_dir() else resolved


def folder_identity(folder: Path) -> str:
    """sha256 over the names and fingerprints of a model's files. Raises ModelError where a file cannot be read, as in a
    checkpoint that its training removes."""
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix in _MODEL_SUFFIXES and path.is_file())
        return data_sha256([(path.name, file_fingerprint(path)) for path in files])
    except OSError as error:
        raise ModelError(
            f"{folder} cannot be read ({error}). If a training that goes on removed this checkpoint, raise its "
            "train.keep_checkpoints, or choose a later one with --checkpoint."
        ) from error
