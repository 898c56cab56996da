"""What every kind of retriever has to do, and where the kinds besides BM25 and dense are found.

A kind turns the corpus into files, block by block, and opens them as a retriever. A retriever ranks probes, and its
ranking of a probe depends on nothing else: not on the batch, and not on how many documents are asked for.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from ..configs.schema import EnvironmentConfig
from ..data.types import Document
from ..errors import RequestError
from .documents import Documents
from .fusion import Scored
from .plan import Probe
from .recipes import RetrieverRecipe

Progress = Callable[[int, int], None]
"""Called with (documents done, documents in all)."""


class Retriever(Protocol):
    """Ranks probes over one corpus."""

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents."""


class Kind(Protocol):
    """One kind of retriever with its models loaded."""

    @property
    def recipe(self) -> RetrieverRecipe:
        """Filled in: nothing is left for a model to say."""

    @property
    def fingerprint(self) -> str:
        """What an index must have been built with: models, code, other indexes."""

    def write_part(self, folder: Path, documents: Sequence[Document], progress: Progress | None) -> None:
        """Write what `merge` needs of a block of the corpus."""

    def merge(self, parts: Sequence[Path], folder: Path) -> None:
        """Write what `load` needs, from the blocks in corpus order: .npy arrays and JSON, no pickles."""

    def load(self, folder: Path, documents: Documents) -> Retriever:
        """Open what `merge` wrote; the positions of `documents` are those of rankings."""


def open_kind(config: EnvironmentConfig, recipe: RetrieverRecipe) -> Kind | None:
    """The kind that the settings name, its models loaded; None for BM25 and dense retrievers of this machine.

    Raises ModelError, ConfigError or IndexFolderError where it cannot be opened.
    """
    if config.remote is not None:
        from .remote import Remote

        return Remote.open(config.remote, recipe)
    if recipe.kind == "splade":
        from .splade import Splade

        return Splade.open(recipe)
    if recipe.kind == "hybrid":
        from .hybrid import Hybrid, member_settings

        assert config.hybrid is not None, "the settings of a hybrid name its members"
        return Hybrid(recipe, member_settings(config), config.hybrid.depth)
    if recipe.kind == "questions":
        from .qb_rag import QuestionBased

        return QuestionBased(recipe, config)
    if recipe.kind == "custom":
        from .custom import Custom

        return Custom(recipe)
    return None


def leaned_on(config: EnvironmentConfig) -> list[EnvironmentConfig]:
    """The settings of the other indexes that a retriever searches, which are built and verified with its own."""
    if config.hybrid is not None:
        from .hybrid import member_settings

        return member_settings(config)
    if config.question_index is not None:
        from .qb_rag import questions_settings

        return [questions_settings(config)]
    return []


def check_depth(limits: Sequence[int], depth: int, documents: int, setting: str) -> None:
    """RequestError where more documents are asked for than a stage of limited depth can rank."""
    if limits and max(limits) > depth < documents:
        raise RequestError(
            f"a plan asks for {max(limits)} documents; this retriever ranks the best {depth}. "
            f"Ask for at most {depth}, or raise {setting}."
        )
