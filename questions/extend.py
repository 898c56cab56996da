"""Adds contents to existing questions: Â, the estimate of the oracle matrix (the QB-RAG paper, section 4.3.2).

Both ways are future work in the paper. (1) Pairs of a question and a content whose similarity reaches a threshold are
judged, or taken as answered. (2) Matrix completion infers the other pairs from all judged ones. Similarities are the
scores of a retriever over the contents, with each question as a query.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..configs.environment import EnvironmentConfig, MemberConfig
from ..configs.questions import ExtendConfig
from ..data.corpus import Corpus
from ..data.types import Document
from ..envs.index.open import open_index
from ..envs.plan import Probe, Term
from ..envs.retrievers.open import check_corpus, open_retriever
from ..envs.retrievers.question_index import AnswerabilityEntry
from .completion import Completed, Floats, Integers, complete

AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Similar:
    """The most similar contents of each question: three arrays of one length."""

    questions: Integers
    """Positions of the questions."""
    contents: list[str]
    """Ids of contents."""
    scores: Floats

    def above(self, threshold: float) -> list[tuple[int, str]]:
        """(question position, content id) of every pair that reaches the threshold."""
        selected = np.flatnonzero(self.scores >= threshold)
        return [(int(self.questions[i]), self.contents[i]) for i in selected.tolist()]

    def threshold(self, share: float, pairs: int) -> float:
        """The similarity that this share of all `pairs` reaches.

        Infinity if the share rounds to no pair; the lowest similarity if fewer pairs than that were scored.
        """
        count = min(round(share * pairs), len(self.scores))
        return float(np.sort(self.scores)[-count]) if count else float("inf")


def similar_contents(
    questions: Sequence[Document], contents: set[str], extend: ExtendConfig, env: EnvironmentConfig, corpus: Corpus
) -> Similar:
    """`nearest_contents` by the retriever of `extend`."""
    member = {name: getattr(extend, name) for name in MemberConfig.model_fields}
    settings = env.model_copy(update={**member, "hybrid": None, "rerank": None})
    return nearest_contents(questions, contents, extend.depth, settings, corpus)


def nearest_contents(
    questions: Sequence[Document], contents: Container[str], depth: int, env: EnvironmentConfig, corpus: Corpus
) -> Similar:
    """The first `depth` contents by the retriever of `env` for every question, without those not in `contents`.

    Raises IndexFolderError if the index is missing or of another corpus.
    """
    index = open_index(env.index_folder)
    check_corpus(index, corpus)
    retriever = open_retriever(index, env)
    limit = min(depth, len(index.documents))
    positions: list[int] = []
    names: list[str] = []
    scores: list[float] = []
    for start in range(0, len(questions), AT_ONCE):
        part = questions[start : start + AT_ONCE]
        probes = [Probe(terms=(Term(text=question.text),)) for question in part]
        for position, ranking in enumerate(retriever.rank(probes, [limit] * len(probes)), start=start):
            for document, score in zip(ranking.documents.tolist(), ranking.scores.tolist(), strict=True):
                name = index.documents.id(document)
                if name in contents:
                    positions.append(position)
                    names.append(name)
                    scores.append(score)
    return Similar(np.array(positions, dtype=np.int64), names, np.array(scores, dtype=np.float64))


def completed_matrix(
    judged: Mapping[tuple[str, str], bool], questions: Sequence[str], contents: Sequence[str], extend: ExtendConfig
) -> Completed:
    """Complete the matrix of contents × questions from the judged pairs of (question id, content id)."""
    row = {name: number for number, name in enumerate(contents)}
    column = {name: number for number, name in enumerate(questions)}
    entries = [(row[content], column[question], float(answered)) for (question, content), answered in judged.items()]
    rows, columns, values = (np.array(axis) for axis in zip(*entries, strict=True)) if entries else (np.zeros(0),) * 3
    return complete(
        rows.astype(np.int64),
        columns.astype(np.int64),
        values.astype(np.float64),
        (len(contents), len(questions)),
        extend.rank,
        extend.shrinkage,
    )


def completed_answers(
    judged: Mapping[tuple[str, str], bool], questions: Sequence[str], contents: Sequence[str], extend: ExtendConfig
) -> Iterable[AnswerabilityEntry]:
    """The unjudged pairs that the completed matrix predicts as answered."""
    for row, column in completed_matrix(judged, questions, contents, extend).at_least(extend.cut):
        if (questions[column], contents[row]) not in judged:
            yield AnswerabilityEntry(
                question=questions[column], content=contents[row], source="completed", judged=False
            )
