"""From recorded answers to questions and the contents that answer them. Pure functions.

A written question is kept if the judge says that its content answers it. Questions that differ only in case and
whitespace are one question of several contents. Down-sampling is that of the QB-RAG paper (section 5.2): m̄ is the
*average* number of questions per content, and it is lowered by sampling from the whole set.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..data.types import Document
from ..envs.retrievers.question_index import AnswerabilityEntry, question_id
from ..storage import data_sha256
from .asking import LineAnswers

Vetted = tuple[str, Sequence[str]]
"""A question and the ids of the contents that people say answer it."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The questions in order, and the matrix A."""

    questions: list[Document]
    answers: list[AnswerabilityEntry]
    """Grouped by question."""


def written_pool(records: Iterable[LineAnswers]) -> Pool:
    """The answerable written questions, in the order of their contents."""
    texts: dict[str, str] = {}
    contents: dict[str, list[str]] = {}
    for record in records:
        for judged in record.judged:
            if judged.answerable:
                name = question_id(judged.question)
                texts.setdefault(name, judged.question)
                contents.setdefault(name, []).append(record.id)
    return Pool(
        [Document(name, "", text) for name, text in texts.items()],
        [
            AnswerabilityEntry(question=name, content=content, source="written", judged=True)
            for name, content_ids in contents.items()
            for content in content_ids
        ],
    )


def down_sampled(pool: Pool, mean: float | None, contents: int) -> Pool:
    """round(mean · `contents`) questions of the pool, where `contents` is how many were asked about.

    A smaller sample is a subset of a larger one.
    """
    if mean is None:
        return pool
    shuffled = sorted((question.id for question in pool.questions), key=lambda name: data_sha256([0, name]))
    selected = set(shuffled[: round(mean * contents)])
    return Pool(
        [question for question in pool.questions if question.id in selected],
        [answer for answer in pool.answers if answer.question in selected],
    )


def with_vetted(pool: Pool, vetted: Iterable[Vetted]) -> Pool:
    """The pool followed by the vetted questions; a pair that is both written and vetted counts as vetted."""
    texts = {question.id: question for question in pool.questions}
    answers = {(answer.question, answer.content): answer for answer in pool.answers}
    for text, contents in vetted:
        name = question_id(text)
        texts.setdefault(name, Document(name, "", " ".join(text.split())))
        for content in contents:
            answers[name, content] = AnswerabilityEntry(question=name, content=content, source="vetted", judged=True)
    position = {name: number for number, name in enumerate(texts)}
    return Pool(list(texts.values()), sorted(answers.values(), key=lambda answer: position[answer.question]))


def counts_of(
    records: Sequence[LineAnswers], unsampled: Pool, final: Pool, contents: int, missing: int
) -> dict[str, int]:
    """Counts of contents, questions and pairs at every stage, including everything that was dropped."""
    verdicts = [judged.answerable for record in records for judged in record.judged]
    with_question = {answer.content for answer in final.answers}
    by_source = dict.fromkeys(("written", "vetted"), 0)
    for answer in final.answers:
        by_source[answer.source] += 1
    return {
        "contents": contents,
        "contents_asked": len(records),
        "contents_missing": missing,
        "contents_failed": sum(bool(record.failure) for record in records),
        "contents_without_a_question": contents - len(with_question),
        "questions_written": sum(record.written for record in records),
        "questions_judged": len(verdicts),
        "questions_kept": verdicts.count(True),
        "questions_dropped": verdicts.count(False),
        "questions_unjudged": verdicts.count(None),
        "questions_distinct": len(unsampled.questions),
        "questions": len(final.questions),
        **{f"pairs_{source}": count for source, count in by_source.items()},
    }
