"""Several retrievers over one corpus, merged by reciprocal rank: a document scores Σ over members of 1 / (60 + rank).

Each member ranks the whole probe, including negative weights, and contributes its best `depth` documents; scores of
different members are never compared. The index holds only the hashes of the members' own indexes.
"""

from collections.abc import Sequence
from pathlib import Path

from ...configs.schema import EnvironmentConfig
from ...errors import IndexFolderError
from ..index.documents import Documents
from ..index.open import open_index
from ..plan import Probe
from ..recipes import RetrieverRecipe, recipe_of
from .base import OpenMember, Retriever, WithoutFiles, check_depth, truncation_of
from .fusion import Scored, fuse


class Hybrid(WithoutFiles):
    """The members' settings and the hashes of their indexes, which hold the documents."""

    def __init__(
        self, recipe: RetrieverRecipe, members: Sequence[EnvironmentConfig], depth: int, open_member: OpenMember
    ) -> None:
        self._members = members
        self._open_member = open_member
        self._depth = depth
        self._indexes = [open_index(member.index) for member in members]
        if len({index.manifest.corpus_hash for index in self._indexes}) > 1:
            raise IndexFolderError(
                f"the members {', '.join(member.index for member in members)} hold different corpora. "
                "Build them again from one: querylect index build --overwrite."
            )
        recipes = [recipe_of(member) for member in members]
        descriptions = " ".join(f"({number}) {item.trained}" for number, item in enumerate(recipes, start=1))
        trained = f"{len(members)} retrievers whose rankings are merged by reciprocal rank: {descriptions}"
        self.recipe = recipe.model_copy(update={"trained": trained})
        hashes = ", ".join(index.manifest.index_hash for index in self._indexes)
        self.fingerprint = f"the best {depth} of {hashes}"

    def load(self, folder: Path, documents: Documents) -> "Merged":
        opened = zip(self._indexes, self._members, strict=True)
        return Merged([self._open_member(index, config) for index, config in opened], self._depth, len(documents))


class Merged:
    """Ranks probes by reciprocal rank over several retrievers."""

    def __init__(self, members: Sequence[Retriever], depth: int, documents: int) -> None:
        self._members = members
        self.depth_limit = depth
        self._documents = documents

    def truncated(self, probe: Probe) -> int:
        """How many texts of a probe at least one member reads only in part."""
        return max(truncation_of(member)(probe) for member in self._members)

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents.

        Raises RequestError if more than `depth` documents are requested.
        """
        check_depth(limits, self.depth_limit, self._documents, "env.hybrid.depth")
        ranked = [member.rank(probes, [self.depth_limit] * len(probes)) for member in self._members]
        return [fuse(rankings, "rrf", limit) for rankings, limit in zip(zip(*ranked, strict=True), limits, strict=True)]
