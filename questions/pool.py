"""From what was asked to questions and the contents that answer them. Pure functions.

A written question is kept where the judge says that its content answers it. Questions that are equal but for case and
blanks are one question of several contents. Down-sampling is the paper's (seed 002, section 5.2): m̄ is the *average*
number of questions per content, and it is lowered by drawing from the whole set.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..data.types import Document
from ..envs.question_index import Answer, question_id
from .asking import Asked, digest

Vetted = tuple[str, Sequence[str]]
"""A question and the ids of the contents that people say answer it."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Questions in their order and the matrix A."""

    questions: list[Document]
    answers: list[Answer]
    """Those of a question stand together."""

    @property
    def pairs(self) -> set[tuple[str, str]]:
        """(question id, content id) of every answer."""
        return {(answer.question, answer.content) for answer in self.answers}


def written_pool(asked: Iterable[Asked]) -> Pool:
    """The written questions that are answerable, in the order of their contents."""
    texts: dict[str, str] = {}
    contents: dict[str, list[str]] = {}
    for one in asked:
        for judged in one.judged:
            if judged.answerable:
                name = question_id(judged.question)
                texts.setdefault(name, judged.question)
                contents.setdefault(name, []).append(one.id)
    return Pool(
        [Document(name, "", text) for name, text in texts.items()],
        [
            Answer(question=name, content=content, source="written", judged=True)
            for name, several in contents.items()
            for content in several
        ],
    )


def down_sampled(pool: Pool, mean: float | None, how: str, seed: int, contents: int) -> Pool:
    """The pool with fewer questions; `contents` is how many were asked about.

    `set`: round(mean · contents) questions of all. `content`: at most `mean` questions of each content; one that
    several contents answer stays where any of them keeps it. Of one seed the smaller sample is a part of the larger.
    """
    if mean is None:
        return pool
    drawn = sorted((question.id for question in pool.questions), key=lambda name: digest([seed, name]))
    if how == "set":
        kept = set(drawn[: round(mean * contents)])
    else:
        place = {name: number for number, name in enumerate(drawn)}
        of_content: dict[str, list[str]] = {}
        for answer in pool.answers:
            of_content.setdefault(answer.content, []).append(answer.question)
        kept = {name for own in of_content.values() for name in sorted(own, key=place.__getitem__)[: int(mean)]}
    return Pool(
        [question for question in pool.questions if question.id in kept],
        [answer for answer in pool.answers if answer.question in kept],
    )


def with_vetted(pool: Pool, vetted: Iterable[Vetted]) -> Pool:
    """The pool and the vetted questions behind it; pairs that are both written and vetted are vetted."""
    texts = {question.id: question for question in pool.questions}
    answers = {(answer.question, answer.content): answer for answer in pool.answers}
    for text, contents in vetted:
        name = question_id(text)
        texts.setdefault(name, Document(name, "", " ".join(text.split())))
        for content in contents:
            answers[name, content] = Answer(question=name, content=content, source="vetted", judged=True)
    return with_answers(Pool(list(texts.values()), []), answers.values())


def with_answers(pool: Pool, more: Iterable[Answer]) -> Pool:
    """The pool and further answers of its questions, sorted by question; of equal pairs the first one stays."""
    place = {question.id: number for number, question in enumerate(pool.questions)}
    answers: dict[tuple[str, str], Answer] = {}
    for answer in [*pool.answers, *more]:
        answers.setdefault((answer.question, answer.content), answer)
    return Pool(pool.questions, sorted(answers.values(), key=lambda answer: place[answer.question]))


def counts_of(asked: Sequence[Asked], written: Pool, final: Pool, contents: int, missing: int) -> dict[str, int]:
    """What became of everything: nothing is left out without being counted."""
    verdicts = [judged.answerable for one in asked for judged in one.judged]
    reached = {answer.content for answer in final.answers}
    by_source = dict.fromkeys(("written", "vetted", "similar", "completed"), 0)
    for answer in final.answers:
        by_source[answer.source] += 1
    return {
        "contents": contents,
        "contents_asked": len(asked),
        "contents_missing": missing,
        "contents_failed": sum(bool(one.failure) for one in asked),
        "contents_without_a_question": contents - len(reached),
        "questions_written": sum(one.written for one in asked),
        "questions_judged": len(verdicts),
        "questions_kept": verdicts.count(True),
        "questions_dropped": verdicts.count(False),
        "questions_unjudged": verdicts.count(None),
        "questions_distinct": len(written.questions),
        "questions": len(final.questions),
        **{f"pairs_{source}": count for source, count in by_source.items()},
    }
