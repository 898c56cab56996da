"""Opens the configured kind of retriever, and lists the indexes it needs."""

from ...configs.environment import SearchEngine
from ...configs.schema import EnvironmentConfig
from ..recipes import RetrieverRecipe
from .base import Kind, OpenMember


def open_kind(config: EnvironmentConfig, recipe: RetrieverRecipe, open_member: OpenMember) -> Kind:
    """The configured kind.

    Raises ModelError, ConfigError or IndexFolderError if it cannot be opened.
    """
    if recipe.kind == "hybrid":
        from ..index_names import member_settings
        from .hybrid import Hybrid

        assert config.hybrid is not None, "the settings of a hybrid name its members"
        return Hybrid(recipe, member_settings(config), config.hybrid.depth, open_member)
    if recipe.kind == "questions":
        from .qb_rag import QuestionBased

        return QuestionBased(recipe, config, open_member)
    if config.remote is not None:
        from .opensearch import Remote

        return Remote(config.remote, recipe)
    if config.engine == "milvus":
        from .milvus import open_milvus

        return open_milvus(config, recipe)
    if recipe.kind == "custom":
        from .custom import Custom

        return Custom(recipe)
    if recipe.kind == "dense":
        from .dense import DenseKind

        return DenseKind(recipe, config.vectors)
    from .bm25 import Bm25Kind

    return Bm25Kind(recipe, config.engine)


def engine_of(config: EnvironmentConfig, recipe: RetrieverRecipe) -> SearchEngine | None:
    """What searches an index, where there is a choice: None for remote services and for dense retrievers with FAISS."""
    if config.remote is None and (recipe.kind == "bm25" or config.engine == "milvus"):
        return config.engine
    return None


def required_indexes(config: EnvironmentConfig) -> list[EnvironmentConfig]:
    """The settings of the other indexes that a retriever searches; they are built and verified with its own."""
    if config.hybrid is not None:
        from ..index_names import member_settings

        return member_settings(config)
    if config.question_index is not None:
        from .qb_rag import questions_settings

        return [questions_settings(config)]
    return []
