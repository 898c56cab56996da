"""Opens the retriever of an index folder after checking that the index fits the configuration."""

from ...configs.schema import EnvironmentConfig
from ...data.corpus import Corpus
from ...data.load import corpus_hash
from ...data.types import Dataset
from ...errors import IndexFolderError
from ..index.manifest import Manifest
from ..index.open import Index, verify_index
from ..recipes import RetrieverRecipe, content_fields, recipe_of
from .base import Retriever
from .question_index import verify_question_index
from .registry import engine_of, open_kind, required_indexes


def verify_indexes(config: EnvironmentConfig) -> dict[str, Manifest]:
    """Verify the index of a configuration and first the indexes that it depends on. Returns manifests by folder.

    The rows of a Milvus collection are counted. Raises IndexFolderError as `verify_index`. That an index has changed
    since the one that depends on it was built, is noticed where the latter is opened.
    """
    verified: dict[str, Manifest] = {}
    for member in required_indexes(config):
        verified |= verify_indexes(member)
    if config.question_index is not None:
        verify_question_index(config.question_index.folder)
    verified[config.index] = verify_index(config.index)
    if config.engine == "milvus" and not required_indexes(config):
        from .milvus import open_collection

        open_collection(config, config.index_folder).close()
    return verified


def check_corpus(index: Index, corpus: Corpus) -> None:
    """Refuse an index of another corpus, as far as that can be detected without reading the whole corpus file.

    Compares size and modification time; if only the time differs, compares a fingerprint (reads up to 64 MiB).
    Raises IndexFolderError.
    """
    differs = corpus.differs(index.manifest.origin)
    if differs:
        raise _mismatch(index, _corpus_of(index), f"{corpus.name!r} ({differs})")


def open_retriever(index: Index, config: EnvironmentConfig, dataset: Dataset | None = None) -> Retriever:
    """The retriever of an index, after checking that the index was built for this configuration.

    The documents of `dataset`, if it has any, must be those of the index. Raises IndexFolderError if the index does not
    fit, ModelError if the encoder cannot be loaded.
    """
    manifest, recipe = index.manifest, recipe_of(config)
    _check_recipe(index, recipe, engine_of(config, recipe))
    if dataset is not None and dataset.corpus and corpus_hash(dataset.corpus) != manifest.corpus_hash:
        actual = f"{len(dataset.corpus)} documents, hash {corpus_hash(dataset.corpus)[:12]}"
        raise _mismatch(index, _corpus_of(index), f"{dataset.name!r} ({actual})")
    _check_vectors(index, config)
    kind = open_kind(config, recipe, open_retriever)
    _check_fingerprint(index, kind.fingerprint, kind.recipe)
    return kind.load(index.path, index.documents)


def _check_recipe(index: Index, recipe: RetrieverRecipe, engine: str | None, filled_in: bool = False) -> None:
    """Compare recipe and engine. Fields that the recipe leaves to its model are compared only when `filled_in`."""
    built, requested = content_fields(index.manifest.recipe), content_fields(recipe)
    differs = [
        field
        for field in {**requested, **built}
        if built.get(field) != requested.get(field) and (filled_in or requested.get(field) is not None)
    ]
    if differs:
        field = "name" if "name" in differs else differs[0]
        raise _mismatch(index, f"{field} {built.get(field)!r}", f"{field} {requested.get(field)!r}")
    if engine != index.manifest.engine:
        raise _mismatch(index, f"engine {index.manifest.engine!r}", f"engine {engine!r}")


def _check_fingerprint(index: Index, fingerprint: str | None, filled_in: RetrieverRecipe) -> None:
    built = index.manifest.model_fingerprint
    if fingerprint != built:
        raise _mismatch(index, f"other weights ({built})", f"{filled_in.model or filled_in.name} ({fingerprint})")
    _check_recipe(index, filled_in, index.manifest.engine, filled_in=True)


def _check_vectors(index: Index, config: EnvironmentConfig) -> None:
    """Compare the settings that the files depend on; search-time settings (depth, probes, device) may change."""
    if index.manifest.vectors is None:
        return
    for field in ("dtype", "search"):
        built, requested = getattr(index.manifest.vectors, field), getattr(config.vectors, field)
        if built != requested:
            raise _mismatch(index, f"vectors.{field} {built!r}", f"vectors.{field} {requested!r}")


def _corpus_of(index: Index) -> str:
    manifest = index.manifest
    return f"another corpus ({manifest.dataset!r}, {manifest.documents} documents, hash {manifest.corpus_hash[:12]})"


def _mismatch(index: Index, built: str, requested: str) -> IndexFolderError:
    return IndexFolderError(
        f"index {index.path} was built with {built}; the configuration says {requested}. "
        "Build it again (querylect index build --overwrite) or point env.index to another folder."
    )
