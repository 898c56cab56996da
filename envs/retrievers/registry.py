"""Opens the configured kind of retriever, other than local BM25 and dense ones, and lists the indexes it needs."""

from ...configs.schema import EnvironmentConfig
from .base import Kind, OpenMember
from .recipes import RetrieverRecipe


def open_kind(config: EnvironmentConfig, recipe: RetrieverRecipe, open_member: OpenMember) -> Kind | None:
    """The configured kind with its models loaded; None for local BM25 and dense retrievers.

    Raises ModelError, ConfigError or IndexFolderError if it cannot be opened.
    """
    if config.remote is not None:
        from .opensearch import Remote

        return Remote.open(config.remote, recipe)
    if recipe.kind == "splade":
        from .splade import Splade

        return Splade.open(recipe)
    if recipe.kind == "hybrid":
        from .hybrid import Hybrid, member_settings

        assert config.hybrid is not None, "the settings of a hybrid name its members"
        return Hybrid(recipe, member_settings(config), config.hybrid.depth, open_member)
    if recipe.kind == "questions":
        from .qb_rag import QuestionBased

        return QuestionBased(recipe, config, open_member)
    if recipe.kind == "custom":
        from .custom import Custom

        return Custom(recipe)
    return None


def leaned_on(config: EnvironmentConfig) -> list[EnvironmentConfig]:
    """The settings of the other indexes that a retriever searches; they are built and verified with its own."""
    if config.hybrid is not None:
        from .hybrid import member_settings

        return member_settings(config)
    if config.question_index is not None:
        from .qb_rag import questions_settings

        return [questions_settings(config)]
    return []
