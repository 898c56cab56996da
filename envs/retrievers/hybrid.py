"""Several retrievers over one corpus, merged by reciprocal rank: a document scores Σ over members of 1 / (60 + rank).

Each member ranks the whole probe, including negative weights, and contributes its best `depth` documents; scores of
different members are never compared. The index holds only the hashes of the members' own indexes.
"""

from collections.abc import Sequence
from pathlib import Path

from ...errors import IndexFolderError
from ..index.documents import Documents
from ..plan import Probe
from ..presets import RetrieverPreset, preset_of
from .base import Retriever, RetrieverFactory, SearchedIndex, check_depth, truncation_of
from .fusion import Scored, fuse


class Hybrid(RetrieverFactory):
    """The members of a hybrid."""

    def __init__(self, preset: RetrieverPreset, members: Sequence[SearchedIndex], depth: int) -> None:
        """IndexFolderError if the members hold different corpora."""
        self._members, self._depth = members, depth
        if len({member.index.meta.corpus_hash for member in members}) > 1:
            raise IndexFolderError(
                f"the members {', '.join(member.config.index for member in members)} hold different corpora. "
                "Build them again from one: querylect index build --overwrite."
            )
        descriptions = " ".join(f"({i}) {preset_of(member.config).trained}" for i, member in enumerate(members, 1))
        trained = f"{len(members)} retrievers whose rankings are merged by reciprocal rank: {descriptions}"
        self.preset = preset.model_copy(update={"trained": trained})
        self.fingerprint = f"the best {depth} of {', '.join(member.index.meta.index_hash for member in members)}"

    def load(self, folder: Path, documents: Documents) -> "Merged":
        return Merged([member.open() for member in self._members], self._depth, len(documents))


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
