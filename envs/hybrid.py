"""Several retrievers over one corpus, merged by reciprocal rank: a document scores Σ over members of 1 / (60 + rank).

Each member ranks the whole probe in its own way, signed weights included, and contributes its best `depth` documents;
scores of members are never compared. The index is nothing but the hashes of the members' own indexes.
"""

from collections.abc import Sequence
from pathlib import Path

from ..configs.schema import EnvironmentConfig
from ..data.types import Document
from ..errors import IndexFolderError
from .documents import Documents
from .fusion import Scored, fuse
from .held import HeldFiles
from .index import open_index, open_retriever
from .kinds import Progress, Retriever, check_depth
from .manifest import Manifest
from .plan import Probe
from .recipes import RetrieverRecipe, recipe_of


def member_settings(config: EnvironmentConfig) -> list[EnvironmentConfig]:
    """The settings of every member: those of the environment, and what the member says itself."""
    assert config.hybrid is not None, "the settings of a hybrid name its members"
    shared = {"hybrid": None, "question_index": None, "rerank": None}
    return [config.model_copy(update={**shared, **dict(member)}) for member in config.hybrid.members]


def fingerprint_of(members: Sequence[Manifest], depth: int) -> str:
    """What a hybrid is recognised by: the indexes of its members and how far down each is read."""
    return f"the best {depth} of {', '.join(member.index_hash for member in members)}"


class Hybrid:
    """The members' settings and the hashes of their indexes."""

    def __init__(self, recipe: RetrieverRecipe, members: Sequence[EnvironmentConfig], depth: int) -> None:
        self._members = members
        self._depth = depth
        self._indexes = [open_index(member.index) for member in members]
        if len({index.manifest.corpus_hash for index in self._indexes}) > 1:
            raise IndexFolderError(
                f"the members {', '.join(member.index for member in members)} hold different corpora. "
                "Build them again from one: querylect index build --overwrite."
            )
        recipes = [recipe_of(member) for member in members]
        said = " ".join(f"({number}) {each.trained}" for number, each in enumerate(recipes, start=1))
        trained = f"{len(members)} retrievers whose rankings are merged by reciprocal rank: {said}"
        self.recipe = recipe.model_copy(update={"trained": trained})
        self.fingerprint = fingerprint_of([index.manifest for index in self._indexes], depth)

    def write_part(self, folder: Path, documents: Sequence[Document], progress: Progress | None) -> None:
        """Nothing: the members' own indexes hold the documents."""

    def merge(self, parts: Sequence[Path], folder: Path) -> None:
        """Nothing: the manifest's fingerprint names the members' indexes."""

    def load(self, folder: Path, documents: Documents) -> "Merged":
        """Open every member."""
        opened = zip(self._indexes, self._members, strict=True)
        members = [open_retriever(index, config) for index, config in opened]
        return Merged(members, self._depth, len(documents), [index.held for index in self._indexes])


class Merged:
    """Ranks probes by reciprocal rank over several retrievers."""

    def __init__(
        self, members: Sequence[Retriever], depth: int, documents: int, held: Sequence[HeldFiles] = ()
    ) -> None:
        """`held`: the files of the members' indexes."""
        self.held = held
        self._members = members
        self._depth = depth
        self._documents = documents
        self.caches = {
            f"{name}_{number}": cache
            for number, member in enumerate(members, start=1)
            for name, cache in getattr(member, "caches", {}).items()
        }

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents.

        Raises RequestError where more than `depth` documents are asked for.
        """
        check_depth(limits, self._depth, self._documents, "env.hybrid.depth")
        ranked = [member.rank(probes, [self._depth] * len(probes)) for member in self._members]
        return [fuse(each, "rrf", limit) for each, limit in zip(zip(*ranked, strict=True), limits, strict=True)]
