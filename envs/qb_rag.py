"""QB-RAG as a retriever (seed 002): a query is ranked against questions, and the questions lead to contents.

The questions lie in a question index and are ranked by any retriever with an index of its own, which is built and
verified with this one, as the members of a hybrid are. A probe is ranked as a whole, signed weights included, so every
search plan means here what it means to that retriever. A content that no question leads to is never found.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..configs.schema import DatasetConfig, EnvironmentConfig
from ..data.types import Document
from ..errors import IndexFolderError
from .answerable import Integers, first_contents, in_tie_order, matrix
from .arrays import mapped
from .documents import Documents
from .fusion import NOTHING, Scored
from .held import HeldFiles
from .index import open_index, open_retriever
from .kinds import Progress, Retriever
from .manifest import Manifest
from .plan import Probe
from .question_index import QuestionIndex, content_hash, open_question_index, verify_question_index
from .recipes import RetrieverRecipe, recipe_of

log = logging.getLogger(__name__)

_ENDS, _CONTENTS = "answers.ends.npy", "answers.contents.npy"
_SPARE, _GROWTH = 16, 4


def questions_settings(config: EnvironmentConfig) -> EnvironmentConfig:
    """The settings of the index of the questions, as an index of a corpus like any other."""
    own = config.question_index
    assert own is not None, "the settings of qb-rag name its question index"
    changes = {
        "dataset": DatasetConfig(kind="beir", path=own.folder),
        "hybrid": None,
        "question_index": None,
        "remote": None,
        "rerank": None,
        **{name: getattr(own, name) for name in ("retriever", "index", "model", "engine", "recipe")},
    }
    return config.model_copy(update=changes)


def verified_fingerprint(config: EnvironmentConfig, base: Manifest) -> str:
    """What an index must have been built over, once every file of the question index is known to be whole."""
    assert config.question_index is not None, "the settings of qb-rag name its question index"
    return _fingerprint(config, verify_question_index(config.question_index.folder), base)


def _fingerprint(config: EnvironmentConfig, questions: QuestionIndex, base: Manifest) -> str:
    own = config.question_index
    assert own is not None, "the settings of qb-rag name its question index"
    return f"{own.answers} answers, ties {own.seed}, of {questions.description.hash} by {base.index_hash}"


class QuestionBased:
    """An opened question index and the index that ranks its questions."""

    def __init__(self, recipe: RetrieverRecipe, config: EnvironmentConfig) -> None:
        """Raises IndexFolderError where one of the two is missing or damaged, or they do not belong together."""
        assert config.question_index is not None, "the settings of qb-rag name its question index"
        self._own, self._settings = config.question_index, questions_settings(config)
        self._questions = open_question_index(self._own.folder)
        self._base = open_index(self._own.index)
        if self._base.manifest.corpus_hash != self._questions.description.questions_hash:
            raise IndexFolderError(
                f"index {self._own.index} does not hold the questions of {self._own.folder}. Build it again: "
                "querylect index build --overwrite."
            )
        self.fingerprint = _fingerprint(config, self._questions, self._base.manifest)
        trained = recipe.trained
        if config.recipe is None or config.recipe.trained is None:
            trained = (
                f"QB-RAG, which does not compare a query with documents but with {len(self._base.documents)} questions "
                "that were written for the documents beforehand; the most similar questions lead to the documents that "
                f"answer them. The questions are ranked by {recipe_of(self._settings).trained}"
            )
        self.recipe = recipe.model_copy(update={"trained": trained})

    def write_part(self, folder: Path, documents: Sequence[Document], progress: Progress | None) -> None:
        """Nothing: which content answers which question is looked up when all contents are known."""

    def merge(self, parts: Sequence[Path], folder: Path) -> None:
        """Write which contents answer each question, in the order of the tie rules.

        Raises IndexFolderError where a content that was asked about is not in the corpus, or has another text there.
        """
        documents, contents = Documents(folder), self._questions.contents()
        for content in contents.values():
            if content.id not in documents or content.hash != content_hash(
                documents.at(documents.position(content.id))
            ):
                seen = "another text" if content.id in documents else "no content"
                raise IndexFolderError(
                    f"the corpus has {seen} of the id {content.id!r}, which the questions of {self._own.folder} are "
                    "about. Bring them up to date: querylect index questions."
                )
        order = in_tie_order(self._questions.answers(), contents, self._own.seed)
        names = [self._base.documents.id(place) for place in range(len(self._base.documents))]
        ends, found = matrix(order, names, {name: documents.position(name) for name in contents})
        np.save(folder / _ENDS, ends)
        np.save(folder / _CONTENTS, found)
        silent = len(documents) - len(np.unique(found))
        if silent:
            log.warning("%d of %d contents have no question and cannot be found", silent, len(documents))

    def load(self, folder: Path, documents: Documents) -> "Questioned":
        """Open the retriever of the questions, and what `merge` wrote."""
        ends, contents = mapped(folder / _ENDS), mapped(folder / _CONTENTS)
        count = len(self._base.documents)
        if len(ends) != count + 1 or ends[-1] != len(contents) or (contents >= len(documents)).any():
            raise ValueError(f"{_ENDS} and {_CONTENTS} do not fit {count} questions and {len(documents)} contents")
        retriever = open_retriever(self._base, self._settings)
        return Questioned(retriever, ends, contents, self._own.answers == "all", [self._base.held])


class Questioned:
    """Ranks probes by algorithm 1 over ranked questions."""

    def __init__(
        self, questions: Retriever, ends: Integers, contents: Integers, every: bool, held: Sequence[HeldFiles] = ()
    ) -> None:
        """`questions` ranks the questions; `ends` and `contents` as in `first_contents`."""
        self.held = held
        self.caches = getattr(questions, "caches", {})
        self._questions, self._every = questions, every
        self._ends, self._contents = ends, contents

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] contents.

        More questions are ranked until there are enough contents or no question is left; a ranking is shorter where
        the questions lead to fewer contents.
        """
        rankings = [NOTHING] * len(probes)
        most = len(self._ends) - 1
        depths = {row: min(most, limit + _SPARE) for row, limit in enumerate(limits)}
        while depths:
            ranked = self._questions.rank([probes[row] for row in depths], list(depths.values()))
            more: dict[int, int] = {}
            for (row, depth), found in zip(depths.items(), ranked, strict=True):
                rankings[row] = first_contents(found, self._ends, self._contents, limits[row], self._every)
                if len(rankings[row].documents) < limits[row] and len(found.documents) == depth < most:
                    more[row] = min(most, _GROWTH * depth)
            depths = more
        return rankings
