"""QB-RAG as a retriever: a query ranks questions, and the questions map to contents that answer them.

The questions are in a question index and are ranked by any retriever with an index of its own, which is built and
verified with this one, like the members of a hybrid. That retriever ranks the whole probe, including negative weights,
so a search plan keeps its meaning. A content without a question is never retrieved.

From ranked questions to contents it is algorithm 1 of the paper (sections 4.3.1 and 4.3.2): questions are processed
from the most similar on; each adds the contents that answer it and are not in the ranking yet, until there are k. The
paper's tie rules order the contents of a question: newer content first, then the content that answers more questions,
then at random. The random order is fixed for each pair of a question and a content, so that a ranking depends on
nothing but its query. The paper's pseudocode is ambiguous if the matrix is not sparse. Here a question adds all its
contents in this order, as columns of equal similarity would.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...configs.environment import EnvironmentConfig
from ...errors import IndexFolderError
from ...storage import text_sha256
from ..index.arrays import mapped, offsets_of
from ..index.documents import Documents
from ..plan import Probe
from ..presets import RetrieverPreset, preset_of
from .base import SPARE, Retriever, RetrieverFactory, SearchedIndex, truncation_of
from .fusion import NOTHING, Scored
from .question_index import AnswerabilityEntry, Content, content_hash, open_question_index

log = logging.getLogger(__name__)

Integers = npt.NDArray[np.int64]

_GROWTH = 4
_ENDS, _CONTENTS = "answers.ends.npy", "answers.contents.npy"


class QuestionBased(RetrieverFactory):
    """An opened question index and the index over its questions."""

    def __init__(self, preset: RetrieverPreset, config: EnvironmentConfig, questions: SearchedIndex) -> None:
        """Raises IndexFolderError if the question index is missing, or they do not match."""
        assert config.question_index is not None, "the settings of qb-rag name its question index"
        self._member = questions
        self._questions = open_question_index(config.question_index.folder)
        description, base = self._questions.description, questions.index.meta
        if base.corpus_hash != description.questions_hash:
            raise IndexFolderError(
                f"index {questions.config.index} does not hold the questions of {self._questions.path}. Build it "
                "again: querylect index build --overwrite."
            )
        self.fingerprint = f"answers of {description.hash} by {base.index_hash}"
        self.preset = preset
        if config.recipe is None or config.recipe.trained is None:
            trained = (
                f"QB-RAG, which does not compare a query with documents but with {base.documents} questions that were "
                "written for the documents beforehand; the most similar questions lead to the documents that answer "
                f"them. The questions are ranked by {preset_of(questions.config).trained}"
            )
            self.preset = preset.model_copy(update={"trained": trained})

    def merge(self, parts: Sequence[Path], folder: Path) -> None:
        """Write which contents answer each question, in the order of the tie rules.

        Raises IndexFolderError if a content of the question index is not in the corpus or has another text there.
        """
        documents, contents = Documents(folder), self._questions.contents()
        for content in contents.values():
            indexed = content.id in documents
            if not indexed or content.hash != content_hash(documents.at(documents.position(content.id))):
                raise IndexFolderError(
                    f"the corpus has {'another text' if indexed else 'no content'} of the id {content.id!r}, which the "
                    f"questions of {self._questions.path} are about. Bring them up to date: querylect index questions."
                )
        order = in_tie_order(self._questions.answers(), contents)
        base = self._member.index.documents
        names = [base.id(position) for position in range(len(base))]
        ends, positions = matrix(order, names, {name: documents.position(name) for name in contents})
        np.save(folder / _ENDS, ends)
        np.save(folder / _CONTENTS, positions)
        unreachable = len(documents) - len(np.unique(positions))
        if unreachable:
            log.warning("%d of %d contents have no question and cannot be found", unreachable, len(documents))

    def load(self, folder: Path, documents: Documents) -> "QuestionRetriever":
        """Open the retriever of the questions and the arrays that `merge` wrote."""
        return QuestionRetriever(self._member.open(), mapped(folder / _ENDS), mapped(folder / _CONTENTS))


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


def in_tie_order(answers: Iterable[AnswerabilityEntry], contents: Mapping[str, Content]) -> dict[str, list[str]]:
    """The contents of each question in the order of the tie rules, the preferred one first.

    The content of a later call is newer. The number of questions of a content is counted in `answers`.
    """
    pairs = {(answer.question, answer.content): None for answer in answers}
    questions = Counter(content for _, content in pairs)

    def preference(pair: tuple[str, str]) -> tuple[int, int, str]:
        question, content = pair
        return -contents[content].round, -questions[content], text_sha256(f"0\n{question}\n{content}")

    by_question: dict[str, list[str]] = {}
    for question, content in sorted(pairs, key=preference):
        by_question.setdefault(question, []).append(content)
    return by_question


def first_contents(ranked: Scored, ends: Integers, contents: Integers, k: int) -> Scored:
    """The first k distinct contents of ranked questions, each with the score of the first question that has it.

    `ranked` holds positions of questions, best first; the contents of question j are `contents[ends[j]:ends[j + 1]]` in
    tie order.
    """
    starts, sizes = ends[ranked.documents], ends[ranked.documents + 1] - ends[ranked.documents]
    offsets = np.cumsum(sizes) - sizes
    indices = np.repeat(starts - offsets, sizes) + np.arange(sizes.sum())
    candidates, scores = contents[indices], np.repeat(ranked.scores, sizes)
    first = np.sort(np.unique(candidates, return_index=True)[1])[:k]
    return Scored(candidates[first], scores[first])


def matrix(
    order: Mapping[str, Sequence[str]], questions: Sequence[str], positions: Mapping[str, int]
) -> tuple[Integers, Integers]:
    """`ends` and `contents` for `first_contents`; a question may have no contents. KeyError for unknown contents."""
    rows = [[positions[content] for content in order.get(question, ())] for question in questions]
    return offsets_of(map(len, rows)), np.array([position for row in rows for position in row], dtype=np.int64)
