"""From ranked questions to ranked contents: algorithm 1 of QB-RAG (seed 002, sections 4.3.1 and 4.3.2). Pure functions.

Questions are gone through from the most similar on; the contents that answer a question are added where they are not
there yet, until there are k. Where several contents answer one question, the paper's rules say which comes first: newer
content, then the content that answers more questions, then chance. Chance is drawn once for each pair of a question
and a content, so that a ranking depends on nothing but its query.

The paper's pseudocode can be read in two ways where the matrix is not sparse. All contents of a question come in, in
this order (`every`), as columns of equal similarity would bring them; or the first alone does ("identify the content
associated to the j-th question").
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from .fusion import Scored
from .question_index import Answer, Content

Integers = npt.NDArray[np.int64]


def in_tie_order(answers: Iterable[Answer], contents: Mapping[str, Content], seed: int) -> dict[str, list[str]]:
    """The contents of each question, first the one that the tie rules prefer.

    A content without a date is older than any with one; where dates do not tell, one that came in with a later call is
    newer. The number of questions is that in `answers`.
    """
    pairs = {(answer.question, answer.content): None for answer in answers}
    questions = Counter(content for _, content in pairs)
    found: dict[str, list[str]] = {}
    for question, content in pairs:
        found.setdefault(question, []).append(content)
    for question, several in found.items():
        if len(several) > 1:
            several.sort(key=lambda name, question=question: _drawn(seed, question, name))  # type: ignore[misc]
            several.sort(key=lambda name: questions[name], reverse=True)  # equal ones keep the order before
            several.sort(key=lambda name: (contents[name].date, contents[name].round), reverse=True)
    return found


def first_contents(ranked: Scored, ends: Integers, contents: Integers, k: int, every: bool = True) -> Scored:
    """The first k contents of ranked questions, none twice; the score is that of the question that brought it.

    `ranked` holds places of questions, best first; the contents of question j are `contents[ends[j]:ends[j + 1]]` in
    tie order.
    """
    starts, sizes = ends[ranked.documents], ends[ranked.documents + 1] - ends[ranked.documents]
    if not every:
        sizes = np.minimum(sizes, 1)
    before = np.cumsum(sizes) - sizes
    places = np.repeat(starts - before, sizes) + np.arange(sizes.sum())
    brought, scores = contents[places], np.repeat(ranked.scores, sizes)
    first = np.sort(np.unique(brought, return_index=True)[1])[:k]
    return Scored(brought[first], scores[first])


def matrix(
    order: Mapping[str, Sequence[str]], questions: Sequence[str], places: Mapping[str, int]
) -> tuple[Integers, Integers]:
    """Ends and contents for `first_contents`; a question without an answer has none. KeyError for unknown contents."""
    rows = [[places[content] for content in order.get(question, ())] for question in questions]
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(row) for row in rows], dtype=np.int64)])
    return ends, np.array([place for row in rows for place in row], dtype=np.int64)


def _drawn(seed: int, question: str, content: str) -> bytes:
    return hashlib.sha256(f"{seed}\n{question}\n{content}".encode()).digest()
