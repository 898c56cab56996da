"""QB-RAG as a retriever: a query ranks questions, and the questions map to contents that answer them.

The questions are in a question index and are ranked by any retriever with an index of its own, which is built and
verified with this one, like the members of a hybrid. That retriever ranks the whole probe, including negative weights,
so a search plan keeps its meaning. A content without a question is never retrieved.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...configs.environment import DatasetConfig, EnvironmentConfig
from ...data.types import Document
from ...errors import IndexFolderError
from ..index.arrays import mapped
from ..index.documents import Documents
from ..index.open import open_index
from ..plan import Probe
from ..recipes import RetrieverRecipe, recipe_of
from .answerable import Integers, first_contents, in_tie_order, matrix
from .base import SPARE, OpenMember, Progress, Retriever, truncation_of
from .fusion import NOTHING, Scored
from .question_index import content_hash, open_question_index

log = logging.getLogger(__name__)

_GROWTH = 4
_ENDS, _CONTENTS = "answers.ends.npy", "answers.contents.npy"


def questions_settings(config: EnvironmentConfig) -> EnvironmentConfig:
    """The settings of the index over the questions, which is an ordinary index with the questions as its corpus."""
    settings = config.question_index
    assert settings is not None, "the settings of qb-rag name its question index"
    changes = {
        "dataset": DatasetConfig(kind="beir", path=settings.folder),
        "hybrid": None,
        "question_index": None,
        "remote": None,
        "rerank": None,
        "recipe": None,
        **{name: getattr(settings, name) for name in ("retriever", "index", "model")},
    }
    return config.model_copy(update=changes)


class QuestionBased:
    """An opened question index and the index over its questions."""

    def __init__(self, recipe: RetrieverRecipe, config: EnvironmentConfig, open_member: OpenMember) -> None:
        """Raises IndexFolderError if one of the two is missing or damaged, or they do not match."""
        assert config.question_index is not None, "the settings of qb-rag name its question index"
        self._config, self._settings, self._open_member = config.question_index, questions_settings(config), open_member
        self._questions = open_question_index(self._config.folder)
        self._base = open_index(self._config.index)
        if self._base.manifest.corpus_hash != self._questions.description.questions_hash:
            raise IndexFolderError(
                f"index {self._config.index} does not hold the questions of {self._config.folder}. Build it again: "
                "querylect index build --overwrite."
            )
        self.fingerprint = f"answers of {self._questions.description.hash} by {self._base.manifest.index_hash}"
        trained = recipe.trained
        if config.recipe is None or config.recipe.trained is None:
            trained = (
                f"QB-RAG, which does not compare a query with documents but with {len(self._base.documents)} questions "
                "that were written for the documents beforehand; the most similar questions lead to the documents that "
                f"answer them. The questions are ranked by {recipe_of(self._settings).trained}"
            )
        self.recipe = recipe.model_copy(update={"trained": trained})

    def write_part(self, folder: Path, documents: Sequence[Document], progress: Progress | None) -> None:
        """Nothing: `merge` writes the answers, since it needs the whole corpus."""

    def merge(self, parts: Sequence[Path], folder: Path) -> None:
        """Write which contents answer each question, in the order of the tie rules.

        Raises IndexFolderError if a content of the question index is not in the corpus or has another text there.
        """
        documents, contents = Documents(folder), self._questions.contents()
        for content in contents.values():
            if content.id not in documents or content.hash != content_hash(
                documents.at(documents.position(content.id))
            ):
                problem = "another text" if content.id in documents else "no content"
                raise IndexFolderError(
                    f"the corpus has {problem} of the id {content.id!r}, which the questions of {self._config.folder} "
                    "are about. Bring them up to date: querylect index questions."
                )
        order = in_tie_order(self._questions.answers(), contents)
        names = [self._base.documents.id(position) for position in range(len(self._base.documents))]
        ends, positions = matrix(order, names, {name: documents.position(name) for name in contents})
        np.save(folder / _ENDS, ends)
        np.save(folder / _CONTENTS, positions)
        unreachable = len(documents) - len(np.unique(positions))
        if unreachable:
            log.warning("%d of %d contents have no question and cannot be found", unreachable, len(documents))

    def load(self, folder: Path, documents: Documents) -> "QuestionRetriever":
        """Open the retriever of the questions and the arrays that `merge` wrote."""
        ends, contents = mapped(folder / _ENDS), mapped(folder / _CONTENTS)
        retriever = self._open_member(self._base, self._settings)
        return QuestionRetriever(retriever, ends, contents)


class QuestionRetriever:
    """Ranks probes by algorithm 1 over ranked questions."""

    def __init__(self, questions: Retriever, ends: Integers, contents: Integers) -> None:
        """`questions` ranks the questions; `ends` and `contents` as in `first_contents`."""
        self.truncated = truncation_of(questions)
        self._questions = questions
        self._ends, self._contents = ends, contents

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] contents.

        More questions are ranked until there are enough contents or no questions left; in the latter case a ranking
        may be shorter than its limit.
        """
        rankings = [NOTHING] * len(probes)
        total = len(self._ends) - 1
        depths = {row: min(total, limit + SPARE) for row, limit in enumerate(limits)}
        while depths:
            ranked = self._questions.rank([probes[row] for row in depths], list(depths.values()))
            deeper: dict[int, int] = {}
            for (row, depth), ranking in zip(depths.items(), ranked, strict=True):
                rankings[row] = first_contents(ranking, self._ends, self._contents, limits[row])
                if len(rankings[row].documents) < limits[row] and len(ranking.documents) == depth < total:
                    deeper[row] = min(total, _GROWTH * depth)
            depths = deeper
        return rankings
