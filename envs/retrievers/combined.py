"""Retrievers made of others: a hybrid, and a cross-encoder after any retriever.

A hybrid merges by reciprocal rank: a document scores Σ over members of 1 / (60 + rank). Each member ranks the whole
probe, including negative weights, and contributes its best `depth` documents; scores of different members are never
compared. Its index holds only the hashes of the members' own indexes.

A cross-encoder reads a query and a document together. A document of a probe scores Σ wᵢ·c(tᵢ, d), c being the model's
score for the text of a term and the document's title and text. As in every retriever here, this is linear in the terms,
so a negative weight pushes down documents that match that text. The retriever selects the candidates with the whole
probe. Exactly `depth` of them are scored for any plan, so that a ranking does not depend on the number of requested
documents, and a ranking ends after them: scores of two different scales would follow each other otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from cachetools import LRUCache

from ...configs.environment import EnvironmentConfig, RerankConfig
from ...errors import IndexFolderError, ModelError
from ...sources import resolve_model
from ...storage import data_sha256
from ..index import Documents
from ..plan import Probe, is_effective
from ..presets import RetrieverPreset, preset_of
from .base import Retriever, RetrieverFactory, Scored, SearchedIndex, best, check_depth, fuse, remembered
from .encoder import fingerprint_of, loading_kwargs

_BATCH = 32
_CACHED_PAIRS = 2**19


class HybridFactory(RetrieverFactory):
    """The members of a hybrid."""

    def __init__(self, preset: RetrieverPreset, config: EnvironmentConfig, members: Sequence[SearchedIndex]) -> None:
        """IndexFolderError if the members hold different corpora."""
        if len({member.index.meta.corpus_hash for member in members}) > 1:
            raise IndexFolderError(
                f"the members {', '.join(member.config.index for member in members)} hold different corpora. "
                "Build them again from one: querylect index build --overwrite."
            )
        descriptions = " ".join(f"({i}) {preset_of(member.config).trained}" for i, member in enumerate(members, 1))
        trained = f"{len(members)} retrievers whose rankings are merged by reciprocal rank: {descriptions}"
        super().__init__(preset.model_copy(update={"trained": trained}), config, members)
        assert config.hybrid is not None, "the settings of a hybrid name its members"
        self._depth = config.hybrid.depth

    @property
    def fingerprint(self) -> str | None:
        """Depth and hashes of the members."""
        return f"the best {self._depth} of {', '.join(member.index.meta.index_hash for member in self.members)}"

    def load(self, folder: Path, documents: Documents) -> "Hybrid":
        """Open the members."""
        return Hybrid([member.open() for member in self.members], self._depth, len(documents))


class Hybrid(Retriever):
    """Ranks probes by reciprocal rank over several retrievers."""

    def __init__(self, members: Sequence[Retriever], depth: int, documents: int) -> None:
        self._members, self.depth_limit, self._documents = members, depth, documents

    def truncated(self, probe: Probe) -> int:
        """How many texts of a probe at least one member reads only in part."""
        return max(member.truncated(probe) for member in self._members)

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents. RequestError for more than `depth` documents."""
        assert self.depth_limit is not None
        check_depth(limits, self.depth_limit, self._documents, "env.hybrid.depth")
        ranked = [member.rank(probes, [self.depth_limit] * len(probes)) for member in self._members]
        return [fuse(rankings, "rrf", limit) for rankings, limit in zip(zip(*ranked, strict=True), limits, strict=True)]


class Reranker:
    """A cross-encoder, on the first GPU if there is one, and the depth to which it reranks."""

    def __init__(self, config: RerankConfig) -> None:
        """Load the model. Raises ModelError if it does not exist or gives more than one score per pair."""
        from sentence_transformers import CrossEncoder
        from torch import nn

        path = resolve_model(config.model)
        try:
            self._model = CrossEncoder(path, activation_fn=nn.Identity(), **loading_kwargs())
        except Exception as error:
            raise ModelError(
                f"env.rerank.model is {config.model!r}, which does not hold a usable cross-encoder "
                f"({type(error).__name__}: {error}). Give it a sentence-transformers CrossEncoder, a transformers "
                "folder with a sequence-classification head, or a Hub id that can be reached."
            ) from error
        if self._model.num_labels != 1:
            raise ModelError(
                f"env.rerank.model is {config.model!r}, which gives {self._model.num_labels} numbers for a pair; "
                "expected one relevance score. Name a cross-encoder for ranking."
            )
        if config.max_length is not None:
            self._model.max_seq_length = config.max_length
        self.depth = config.depth
        self.info: dict[str, object] = {
            **config.model_dump(),
            "max_length": self._model.max_seq_length,
            "fingerprint": fingerprint_of(path, getattr(self._model[0], "config", None)),
        }
        """For clients: model, depth, length and fingerprint of the weights."""

    def scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """The model's score of each pair of a query and a document."""
        outputs = self._model.predict(list(pairs), batch_size=_BATCH, show_progress_bar=False)
        scores: list[float] = np.asarray(outputs, np.float64).tolist()
        return scores

    def hash_over(self, index_hash: str) -> str:
        """Hash of everything that a ranking depends on: the index and this reranker."""
        return data_sha256([index_hash, {name: value for name, value in self.info.items() if name != "model"}])

    def describe(self, retriever: dict[str, object]) -> dict[str, object]:
        """The description of a retriever followed by this reranker."""
        return {**retriever, "trained": reranked(str(retriever["trained"]), self.depth), "rerank": self.info}


@dataclass(frozen=True)
class PairScorer:
    """A cross-encoder for methods (methods/method.py), which score single pairs; it is loaded at its first use.

    `config.depth` is ignored.
    """

    config: RerankConfig

    @cached_property
    def _model(self) -> Reranker:
        return Reranker(self.config)

    def scores(self, question: str, texts: Sequence[str]) -> list[float]:
        """One score per text; higher is better. Raises ModelError for an unusable model."""
        return self._model.scores([(question, text) for text in texts]) if texts else []


def reranked(trained: str, depth: int) -> str:
    """The `trained` sentence of a retriever followed by a reranker of this depth."""
    return (
        f"{trained} Its best {depth} documents are then put in order by a cross-encoder, which reads the query and "
        "each document together."
    )


class Reranked(Retriever):
    """A retriever followed by a cross-encoder."""

    def __init__(self, retriever: Retriever, reranker: Reranker, documents: Documents) -> None:
        """`documents`: those of the retriever's index."""
        self._retriever, self._reranker, self._documents = retriever, reranker, documents
        self.depth_limit, self.frequent_terms = reranker.depth, retriever.frequent_terms
        self._cache: LRUCache[tuple[str, int], float] = LRUCache(_CACHED_PAIRS)

    def truncated(self, probe: Probe) -> int:
        """Those that the retriever reads only in part."""
        return self._retriever.truncated(probe)

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents; every distinct pair is scored once. RequestError for
        more than `depth` documents."""
        assert self.depth_limit is not None
        check_depth(limits, self.depth_limit, len(self._documents), "env.rerank.depth")
        retrieved = self._retriever.rank(probes, [self.depth_limit] * len(probes))
        pairs = [
            (term.text, document)
            for probe, candidates in zip(probes, retrieved, strict=True)
            for term in filter(is_effective, probe.terms)
            for document in candidates.documents.tolist()
        ]
        pair_scores = remembered(
            self._cache,
            pairs,
            lambda keys: self._reranker.scores([(text, self._documents.at(i).contents) for text, i in keys]),
        )
        rankings = []
        for probe, candidates, limit in zip(probes, retrieved, limits, strict=True):
            scores = np.zeros(len(candidates.documents))
            for term in filter(is_effective, probe.terms):
                scores += term.weight * np.array([pair_scores[term.text, i] for i in candidates.documents.tolist()])
            rankings.append(best(candidates.documents, scores, limit))
        return rankings
