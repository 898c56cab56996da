"""From ranked questions to ranked contents: algorithm 1 of QB-RAG (sections 4.3.1 and 4.3.2). Pure functions.

Questions are processed from the most similar on; each adds the contents that answer it and are not in the ranking yet,
until there are k. If several contents answer a question, the paper's tie rules order them: newer content first, then
the content that answers more questions, then at random. The random order is fixed for each pair of a question and a
content, so that a ranking depends on nothing but its query.

The paper's pseudocode is ambiguous if the matrix is not sparse. Here a question adds all its contents in this order, as
columns of equal similarity would.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from .fusion import Scored
from .question_index import AnswerabilityEntry, Content

Integers = npt.NDArray[np.int64]


def in_tie_order(answers: Iterable[AnswerabilityEntry], contents: Mapping[str, Content]) -> dict[str, list[str]]:
    """The contents of each question in the order of the tie rules, the preferred one first.

    The content of a later call is newer. The number of questions of a content is counted in `answers`.
    """
    pairs = {(answer.question, answer.content): None for answer in answers}
    questions = Counter(content for _, content in pairs)
    by_question: dict[str, list[str]] = {}
    for question, content in pairs:
        by_question.setdefault(question, []).append(content)
    for question, content_ids in by_question.items():
        if len(content_ids) > 1:
            content_ids.sort(key=lambda name, question=question: _tie_key(question, name))  # type: ignore[misc]
            content_ids.sort(key=lambda name: questions[name], reverse=True)  # stable: ties keep the previous order
            content_ids.sort(key=lambda name: contents[name].round, reverse=True)
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
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(row) for row in rows], dtype=np.int64)])
    return ends, np.array([position for row in rows for position in row], dtype=np.int64)


def _tie_key(question: str, content: str) -> bytes:
    return hashlib.sha256(f"0\n{question}\n{content}".encode()).digest()
