"""Opens the retriever of an index folder after checking that the index fits the configuration."""

from functools import partial

from ...configs.schema import EnvironmentConfig
from ...data.corpus import Corpus
from ...data.load import corpus_hash
from ...data.types import Dataset
from ...errors import ConfigError, IndexFolderError
from ..index.meta import Index, IndexMeta, open_index, verify_index
from ..index_names import required_indexes
from ..presets import RetrieverPreset, preset_of
from .base import Retriever, RetrieverFactory, SearchedIndex
from .question_index import verify_question_index


def open_factory(config: EnvironmentConfig) -> RetrieverFactory:
    """The factory of the configured retriever.

    Raises ModelError, ConfigError or IndexFolderError if it cannot be opened.
    """
    preset = preset_of(config)
    members = [
        SearchedIndex(index := open_index(member.index), member, partial(open_retriever, index, member))
        for member in required_indexes(config)
    ]
    if preset.kind == "hybrid":
        from .hybrid import Hybrid

        assert config.hybrid is not None, "the settings of a hybrid name its members"
        return Hybrid(preset, members, config.hybrid.depth)
    if preset.kind == "questions":
        from .qb_rag import QuestionBased

        return QuestionBased(preset, config, *members)
    if preset.kind == "custom" and (config.remote is not None or config.engine == "milvus"):
        setting = "env.engine=milvus" if config.remote is None else "env.remote"
        raise ConfigError(
            f"{setting} searches for bm25 and dense retrievers, and {preset.name!r} is {preset.kind}. Leave it out, or "
            "give it to the members of a hybrid."
        )
    if config.remote is not None:
        from .opensearch import OpenSearch

        return OpenSearch(preset, config.remote)
    if config.engine == "milvus":
        from .milvus import MilvusBm25, MilvusDense

        return MilvusBm25(preset, config) if preset.kind == "bm25" else MilvusDense(preset, config)
    if preset.kind == "custom":
        from .custom import Custom

        return Custom(preset)
    if preset.kind == "dense":
        from .dense import DenseFactory

        return DenseFactory(preset, config.vectors)
    from .bm25 import Bm25Factory

    return Bm25Factory(preset, config.engine, config.language)


def index_settings(
    config: EnvironmentConfig, preset: RetrieverPreset, fingerprint: str | None = None
) -> dict[str, object]:
    """What the files and rankings of an index depend on besides the corpus.

    Without the fingerprint, and with a preset that the model has not filled in, it is what the settings say.
    """
    settings = preset.content()
    if fingerprint is not None:
        settings["weights"] = fingerprint
    if config.remote is not None:
        return settings
    if preset.kind == "bm25":
        from .bm25 import K1, B

        settings |= {"engine": config.engine, "language": config.language, "k1": K1, "b": B}
    if preset.kind == "dense":
        settings |= {f"vectors.{name}": getattr(config.vectors, name) for name in ("dtype", "search")}
        settings["engine"] = config.engine if config.engine == "milvus" else "faiss"
    return settings


def retriever_info(config: EnvironmentConfig, index: Index) -> dict[str, object]:
    """How the retriever works, for prompts and clients: name, kind, trained, engine, language, prompts, …"""
    info = index.meta.preset.model_dump(mode="json", exclude_none=True) | index.meta.settings
    if config.model is not None:
        info["model"] = config.model
    if config.remote is not None:
        info["remote"] = config.remote.index
    return info


def open_retriever(index: Index, config: EnvironmentConfig, dataset: Dataset | None = None) -> Retriever:
    """The retriever of an index, after checking that the index was built for this configuration.

    The documents of `dataset`, if it has any, must be those of the index. Raises IndexFolderError if the index does not
    fit, ModelError if the encoder cannot be loaded.
    """
    built, declared = index.meta.settings, index_settings(config, preset_of(config))
    _check(index, {name: built.get(name) for name in declared}, declared)
    if dataset is not None and dataset.corpus and corpus_hash(dataset.corpus) != index.meta.corpus_hash:
        actual = f"{len(dataset.corpus)} documents, hash {corpus_hash(dataset.corpus)[:12]}"
        raise _mismatch(index, _corpus_of(index), f"{dataset.name!r} ({actual})")
    factory = open_factory(config)
    _check(index, built, index_settings(config, factory.preset, factory.fingerprint))
    return factory.load(index.path, index.documents)


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

    The rows of a Milvus collection are counted. Raises IndexFolderError as `verify_index`. That an index has changed
    since the one that depends on it was built, is noticed where the latter is opened.
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
