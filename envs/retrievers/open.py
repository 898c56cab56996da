"""Opens the retriever of an index folder after checking that the index fits the configuration."""

from functools import partial

from ...configs.schema import EnvironmentConfig
from ...data.corpus import Corpus, corpus_hash
from ...data.types import Dataset
from ...errors import ConfigError, IndexFolderError
from ..index import Index, IndexMeta, open_index, verify_index
from ..presets import RetrieverPreset, preset_of, required_indexes
from .base import Retriever, RetrieverFactory, SearchedIndex
from .qb_rag import verify_question_index


def factories() -> dict[tuple[str, str], type[RetrieverFactory]]:
    """The class of each kind of retriever, by the service that searches; "" is an index of files on this machine."""
    from .bm25 import Bm25Factory
    from .combined import HybridFactory
    from .custom import CustomFactory
    from .dense import DenseFactory
    from .fts5 import Fts5Factory
    from .milvus import MilvusBm25, MilvusDense
    from .opensearch import OpenSearchFactory
    from .postgres import PostgresFactory
    from .qb_rag import QuestionsFactory
    from .tantivy import TantivyFactory

    return {
        ("bm25", ""): Bm25Factory,
        ("dense", ""): DenseFactory,
        ("fts5", ""): Fts5Factory,
        ("hybrid", ""): HybridFactory,
        ("postgres", ""): PostgresFactory,
        ("questions", ""): QuestionsFactory,
        ("tantivy", ""): TantivyFactory,
        ("custom", ""): CustomFactory,
        ("bm25", "opensearch"): OpenSearchFactory,
        ("dense", "opensearch"): OpenSearchFactory,
        ("bm25", "milvus"): MilvusBm25,
        ("dense", "milvus"): MilvusDense,
    }


def open_factory(config: EnvironmentConfig) -> RetrieverFactory:
    """The factory of the configured retriever.

    Raises ModelError, ConfigError or IndexFolderError if it cannot be opened.
    """
    preset = preset_of(config)
    members = [
        SearchedIndex(index := open_index(member.index), member, partial(open_retriever, index, member))
        for member in required_indexes(config)
    ]
    return factory_class(preset, config)(preset, config, members)


def factory_class(preset: RetrieverPreset, config: EnvironmentConfig) -> type[RetrieverFactory]:
    """The class of the configured retriever's factory. Raises ConfigError where its service does not search for it."""
    service = "opensearch" if config.remote is not None else "milvus" if config.engine == "milvus" else ""
    factory = factories().get((preset.kind, "" if required_indexes(config) else service))
    if factory is None:
        raise ConfigError(
            f"{service} searches for bm25 and dense retrievers, and {preset.name!r} is {preset.kind}. Leave out "
            "env.remote and env.engine, or give them to the members of a hybrid."
        )
    return factory


def open_retriever(index: Index, config: EnvironmentConfig, dataset: Dataset | None = None) -> Retriever:
    """The retriever of an index, after checking that the index was built for this configuration.

    The documents of `dataset`, if it has any, must be those of the index. Raises IndexFolderError if the index does not
    fit, ModelError if the encoder cannot be loaded.
    """
    built, declared = index.meta.settings, preset_of(config).content()
    _check(index, {name: built.get(name) for name in declared}, declared)  # before a model is loaded
    if dataset is not None and dataset.corpus and corpus_hash(dataset.corpus) != index.meta.corpus_hash:
        actual = f"{len(dataset.corpus)} documents, hash {corpus_hash(dataset.corpus)[:12]}"
        raise _mismatch(index, _corpus_of(index), f"{dataset.name!r} ({actual})")
    factory = open_factory(config)
    _check(index, built, factory.settings)
    return factory.load(index.path, index.documents)


def retriever_info(config: EnvironmentConfig, index: Index) -> dict[str, object]:
    """How the retriever works, for prompts and clients: name, kind, trained, engine, language, prompts, …"""
    info = index.meta.preset.model_dump(mode="json", exclude_none=True) | index.meta.settings
    if config.model is not None:
        info["model"] = config.model
    if config.remote is not None:
        info["remote"] = config.remote.index
    language = factory_class(index.meta.preset, config).query_language(config)
    if language and config.rerank is None:  # a reranker reads words
        info["query_language"] = language
    return info


def check_corpus(index: Index, corpus: Corpus) -> None:
    """Refuse an index of another corpus, as far as that can be detected without reading the whole corpus file.

    Compares size and modification time; if only the time differs, compares a fingerprint (reads up to 64 MiB).
    Raises IndexFolderError.
    """
    differs = corpus.differs(index.meta.origin)
    if differs:
        raise _mismatch(index, _corpus_of(index), f"{corpus.name!r} ({differs})")


def verify_indexes(config: EnvironmentConfig) -> dict[str, IndexMeta]:
    """Verify the index of a configuration and first the indexes that it depends on. Returns their `meta` by folder.

    The rows of a Milvus collection, or of a table of PostgreSQL, are counted. Raises IndexFolderError as
    `verify_index`. That an index has changed since the one that depends on it was built, is noticed where the latter is
    opened.
    """
    verified: dict[str, IndexMeta] = {}
    for member in required_indexes(config):
        verified |= verify_indexes(member)
    if config.question_index is not None:
        verify_question_index(config.question_index.folder)
    verified[config.index] = verify_index(config.index)
    if config.engine == "milvus" and not required_indexes(config):
        from .milvus import open_collection

        open_collection(config, config.index_folder).close()
    if preset_of(config).kind == "postgres":
        open_retriever(open_index(config.index), config)
    return verified


def _check(index: Index, built: dict[str, object], requested: dict[str, object]) -> None:
    for name in {**requested, **built}:
        if built.get(name) != requested.get(name):
            raise _mismatch(index, f"{name} {built.get(name)!r}", f"{name} {requested.get(name)!r}")


def _corpus_of(index: Index) -> str:
    meta = index.meta
    return f"another corpus ({meta.dataset!r}, {meta.documents} documents, hash {meta.corpus_hash[:12]})"


def _mismatch(index: Index, built: str, requested: str) -> IndexFolderError:
    return IndexFolderError(
        f"index {index.path} was built with {built}; the configuration says {requested}. "
        "Build it again (querylect index build --overwrite) or point env.index to another folder."
    )
