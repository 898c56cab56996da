"""More contents for the questions there are: Â, the estimate of the oracle matrix (seed 002, section 4.3.2).

The paper leaves both ways as future work. (1) Pairs of a question and a content whose similarity reaches a threshold
are judged, or taken as they are. (2) From all judged pairs, matrix completion infers the others. Similarities come from
a retriever over the contents, asked with each question as a query.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..configs.schema import EnvironmentConfig, ExtendConfig, MemberConfig
from ..data.corpus import Corpus
from ..data.types import Document
from ..envs.index import check_corpus, open_index, open_retriever
from ..envs.plan import Probe, Term
from ..envs.question_index import Answer
from .completion import Completed, Floats, Integers, complete

AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Similar:
    """The most similar contents of each question: three arrays of one length."""

    questions: Integers
    """Places of questions."""
    contents: list[str]
    """Ids of contents."""
    scores: Floats

    def above(self, threshold: float) -> list[tuple[int, str]]:
        """(place of the question, id of the content) of every pair that reaches the threshold."""
        kept = np.flatnonzero(self.scores >= threshold)
        return [(int(self.questions[place]), self.contents[place]) for place in kept.tolist()]

    def threshold(self, share: float, pairs: int) -> float:
        """The similarity that this share of all `pairs` reaches, as far as they were looked at.

        Infinity where the share is less than one pair; the least similarity where fewer were looked at.
        """
        wanted = min(round(share * pairs), len(self.scores))
        return float(np.sort(self.scores)[-wanted]) if wanted else float("inf")


def similar_contents(
    questions: Sequence[Document], contents: set[str], extend: ExtendConfig, env: EnvironmentConfig, corpus: Corpus
) -> Similar:
    """Rank the contents for every question. Raises IndexFolderError where the index is missing or of another corpus."""
    member = {name: getattr(extend, name) for name in MemberConfig.model_fields}
    settings = env.model_copy(update={**member, "hybrid": None, "rerank": None})
    index = open_index(Path(settings.index))
    check_corpus(index, corpus)
    retriever = open_retriever(index, settings)
    limit = min(extend.depth, len(index.documents))
    places: list[int] = []
    names: list[str] = []
    scores: list[float] = []
    for start in range(0, len(questions), AT_ONCE):
        part = questions[start : start + AT_ONCE]
        probes = [Probe(terms=(Term(text=question.text),)) for question in part]
        for place, ranked in enumerate(retriever.rank(probes, [limit] * len(probes)), start=start):
            for document, score in zip(ranked.documents.tolist(), ranked.scores.tolist(), strict=True):
                name = index.documents.id(document)
                if name in contents:
                    places.append(place)
                    names.append(name)
                    scores.append(score)
    return Similar(np.array(places, dtype=np.int64), names, np.array(scores, dtype=np.float64))


def completed_matrix(
    judged: Mapping[tuple[str, str], bool], questions: Sequence[str], contents: Sequence[str], extend: ExtendConfig
) -> Completed:
    """Complete the matrix of contents × questions from the judged pairs of (question id, content id)."""
    row = {name: number for number, name in enumerate(contents)}
    column = {name: number for number, name in enumerate(questions)}
    known = [(row[content], column[question], float(yes)) for (question, content), yes in judged.items()]
    rows, columns, values = (np.array(each) for each in zip(*known, strict=True)) if known else (np.zeros(0),) * 3
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
) -> Iterable[Answer]:
    """The pairs that nobody judged and that the completed matrix takes for answered."""
    for row, column in completed_matrix(judged, questions, contents, extend).at_least(extend.cut):
        if (questions[column], contents[row]) not in judged:
            yield Answer(question=questions[column], content=contents[row], source="completed", judged=False)
