"""LLM judges of contexts and answers: one verdict per judge and case.

A judge is an async function of one case, like a method (methods/method.py), and the prompts of many cases are batched.
A verdict has a value or a reason for its absence: an answer that does not fit the schema, even after a retry, is a
failure; a reply that did not come is missing. Neither counts as 0. Every verdict has the version of the judge's
prompts; the judge model is recorded with the results.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from ...data.types import Document, Question
from ...llms.base import SamplingParams
from ...llms.prose import passage_of
from ...llms.structured import FormPrompt, Structured
from ...methods.method import MISSING, Ask, Result, Search, StageError
from ...methods.runner import Runner
from . import judge_prompts as prompts
from .gold import Gold

OFF_FORMAT = "off format"
"""Failure: the judge's answer does not fit the schema."""
NO_STATEMENTS = "no statements"
"""Failure: the judge listed no statement that the answer needs."""
BY_SOURCE = "by_source"
"""Key in `JudgeScore.said` for the score of each source's passages; None where the judge's answer did not fit."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case to judge: a question, its context and an answer."""

    item: Gold
    documents: Sequence[Document]
    """The reader's context."""
    searched: bool
    """Whether there was a search; without one there is no context to judge."""
    answer: str | None
    """None where there is none."""
    sources: Sequence[str] = ()
    """The knowledge base of each document, where several were searched."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What the method wrote on the way."""


@dataclass(frozen=True, slots=True)
class JudgeScore:
    """One judge's verdict on one case."""

    version: str = ""
    """Of the judge's prompts."""
    value: float | None = None
    """In [0, 1]; None for a failure or a missing reply."""
    label: str = ""
    failure: str = ""
    """Why there is no value although the model replied; "" otherwise."""
    missing: bool = False
    """Whether the model did not reply."""
    said: Mapping[str, Any] = field(default_factory=dict)
    """The judge's answer as plain data, or the text that did not fit the schema."""


@dataclass(frozen=True)
class Setting:
    """Settings of all judges."""

    words: int = 200
    """Words per document in prompts."""
    draw: SamplingParams = field(default_factory=lambda: SamplingParams(max_tokens=1024))


@dataclass(frozen=True, slots=True)
class Judge:
    """A judge: its prompts' version, its cases and its steps."""

    name: str
    version: str
    judges: Literal["context", "answer", "hypotheses"]
    judge: Callable[[Case, Ask, Setting], Coroutine[Any, Any, JudgeScore]]

    def applies(self, case: Case) -> bool:
        """Whether the case has what is judged."""
        if self.judges == "hypotheses":
            return bool(case.notes.get("H_plus") and case.notes.get("H_minus"))
        return case.searched if self.judges == "context" else case.answer is not None


def judged(runner: Runner, judge: Judge, cases: Sequence[Case], setting: Setting) -> list[JudgeScore | None]:
    """The verdicts on each case, in order; None where the judge does not apply.

    Raises as `Runner.run`.
    """
    verdicts: list[JudgeScore | None] = [None] * len(cases)

    async def method(question: Question, ask: Ask, search: Search) -> Result:
        index = int(question.id)
        try:
            verdict = await judge.judge(cases[index], ask, setting)
        except StageError as error:
            verdict = _unjudged(error)
        verdicts[index] = replace(verdict, version=judge.version)
        return Result()

    runner.run(method, [Question(str(index), "") for index, case in enumerate(cases) if judge.applies(case)])
    return verdicts


def _unjudged(error: StageError) -> JudgeScore:
    """The verdict where the judge did not reply, or with something else than a verdict."""
    missing = error.failure == MISSING
    return JudgeScore(missing=missing, failure="" if missing else OFF_FORMAT, said=error.notes)


async def _utility(case: Case, ask: Ask, setting: Setting) -> JudgeScore:
    """The HCQR paper, section 4.6: does the context entail the right answer, help, or neither?"""
    prompt = prompts.utility(case.item, case.documents, setting.words)
    value = await ask.json(prompt, prompts.Utility, setting.draw)
    useful = float(value.label != prompts.NOT_USEFUL)
    return JudgeScore(value=useful, label=prompts.LABELS[value.label], said=value.model_dump())


async def _mimic(case: Case, ask: Ask, setting: Setting) -> JudgeScore:
    """The CHR paper, section 4.6: how good is the mimic hypothesis? The paper's ratings are a physician's."""
    prompt = prompts.mimic(case.item, str(case.notes["H_plus"]), str(case.notes["H_minus"]))
    value = await ask.json(prompt, prompts.Mimic, setting.draw)
    label = prompts.MIMIC_LABELS[value.quality]
    return JudgeScore(value=float(label == "excellent"), label=label, said=value.model_dump())


async def _relevancy(case: Case, ask: Ask, setting: Setting) -> JudgeScore:
    """The QB-RAG paper, sections 5.1.2 and 6.1: does any document answer the question?

    The first document that does decides, even if judgements on others failed.
    """
    judgements: dict[str, object] = {}
    failure: JudgeScore | None = None
    for document in case.documents:
        prompt = prompts.answerable(case.item.question, document, setting.words)
        try:
            value = await ask.json(prompt, prompts.Answerable, setting.draw)
        except StageError as error:
            failure = failure or _unjudged(error)
            continue
        judgements[document.id] = value.answerable
        if value.answerable:
            return JudgeScore(value=1.0, said=judgements)
    return failure or JudgeScore(value=0.0, said=judgements)


async def _declined(case: Case, ask: Ask, setting: Setting) -> JudgeScore:
    """The QB-RAG paper, section 6.2: does the answer decline to answer?"""
    return await _yes_or_no(prompts.declined(case.item.question, case.answer or ""), ask, setting)


async def _faithfulness(case: Case, ask: Ask, setting: Setting) -> JudgeScore:
    """The QB-RAG paper, section 6.2: do the documents support the answer? An answer that declines is not faithful."""
    return await _yes_or_no(
        prompts.faithful(case.item.question, case.documents, case.answer or "", setting.words), ask, setting
    )


async def _answer_relevancy(case: Case, ask: Ask, setting: Setting) -> JudgeScore:
    """The QB-RAG paper, section 6.2: does the answer address the question, whether or not it is right?"""
    return await _yes_or_no(prompts.to_the_point(case.item.question, case.answer or ""), ask, setting)


async def _yes_or_no(prompt: FormPrompt, ask: Ask, setting: Setting) -> JudgeScore:
    value = await ask.json(prompt, prompts.YesNo, setting.draw)
    return JudgeScore(value=float(value.verdict), said=value.model_dump())


async def _guideline(case: Case, ask: Ask, setting: Setting) -> JudgeScore:
    """The QB-RAG paper, section 6.2, in three steps: a golden answer, its key points, how much of these is covered."""
    reply = await ask(prompts.golden(case.item, setting.words), setting.draw)
    golden = passage_of(reply.texts[0].text).answer
    if not golden:
        details = {"text": reply.texts[0].text, "why": "the golden answer is empty"}
        return JudgeScore(failure=OFF_FORMAT, said=details)
    question = case.item.question
    points = (await ask.json(prompts.key_points(question, golden), prompts.Points, setting.draw)).points
    prompt = prompts.adherence(question, points, case.answer or "")
    score = (await ask.json(prompt, prompts.Adherence, setting.draw)).score
    return JudgeScore(value=score, said={"points": points, "score": score})


async def _context_recall(case: Case, ask: Ask, setting: Setting) -> JudgeScore:
    """The Misknow-RAG paper, eq. 4 and appendix C: list the needed statements, then check them against the context.

    Where the context has several sources, the passages of each source are also judged separately (table 3).
    """
    answer = await ask.json(prompts.needed(case.item), prompts.Statements, setting.draw)
    statements = [statement for statement in answer.statements if statement.strip()]
    if not statements:
        return JudgeScore(failure=NO_STATEMENTS)
    sources = list(dict.fromkeys(case.sources))
    parts = [
        [document for document, source in zip(case.documents, case.sources, strict=True) if source == name]
        for name in (sources if len(sources) > 1 else ())
    ]
    prompt = partial(prompts.attributed, case.item.question, statements=statements, words=setting.words)
    replies = await asyncio.gather(
        *(
            ask.structured(prompt(documents), prompts.Attributions, setting.draw)
            for documents in (case.documents, *parts)
        )
    )
    marked, *marked_by_source = [_marks(reply, len(statements)) for reply in replies]
    if marked is None:
        why = replies[0].failure or f"{len(statements)} statements were to be judged, each once"
        return JudgeScore(failure=OFF_FORMAT, said={"text": replies[0].text, "why": why})
    details: dict[str, object] = {"statements": statements, "attributed": marked}
    if sources:
        details[BY_SOURCE] = {
            source: sum(marks) / len(marks) if marks is not None else None
            for source, marks in zip(sources, marked_by_source or [marked], strict=True)
        }
    return JudgeScore(value=sum(marked) / len(marked), said=details)


def _marks(reply: Structured[prompts.Attributions], count: int) -> list[bool] | None:
    """Whether each of `count` statements is attributed, in order; None unless each is judged exactly once."""
    if reply.value is None:
        return None
    marks = {attribution.statement: attribution.attributed for attribution in reply.value.statements}
    if sorted(marks) != list(range(1, count + 1)) or len(reply.value.statements) != count:
        return None
    return [marks[number] for number in sorted(marks)]


JUDGES: Mapping[str, Judge] = {
    judge.name: judge
    for judge in (
        Judge("utility", prompts.UTILITY, "context", _utility),
        Judge("mimic", prompts.MIMIC, "hypotheses", _mimic),
        Judge("relevancy", prompts.RELEVANCY, "context", _relevancy),
        Judge("context_recall", prompts.CONTEXT_RECALL, "context", _context_recall),
        Judge("declined", prompts.DECLINED, "answer", _declined),
        Judge("faithfulness", prompts.FAITHFULNESS, "answer", _faithfulness),
        Judge("answer_relevancy", prompts.ANSWER_RELEVANCY, "answer", _answer_relevancy),
        Judge("guideline", prompts.GUIDELINE, "answer", _guideline),
    )
}
