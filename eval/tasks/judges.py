"""LLM judges of contexts and answers: one verdict per judge and case.

A judge is written like a method (methods/method.py): a generator that yields prompts for structured answers, so that
the prompts of many cases are batched (`judged`). A verdict has a value or a reason for its absence: an answer that does
not fit the schema, even after a retry, is a failure; a reply that did not come is missing. Neither counts as 0. Every
verdict has the version of the judge's prompts; the judge model is recorded with the results.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ...data.types import Document, Question
from ...llms.base import SamplingParams
from ...llms.structured import AskForm, FormPrompt, Structured, version_in, without_thinking
from ...methods.method import Outcome, PromptStep, Steps
from ...methods.runner import Runner
from . import judge_prompts as prompts
from .items import Item

OFF_FORMAT = "off format"
"""Failure: the judge's answer does not fit the schema."""
NO_STATEMENTS = "no statements"
"""Failure: the judge listed no statement that the answer needs."""


BY_SOURCE = "by_source"
"""Key in `Verdict.said` for the score of each source's passages; None where the judge's answer did not fit."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case to judge: a question, its context and an answer."""

    item: Item
    documents: Sequence[Document]
    """The reader's context."""
    searched: bool
    """Whether there was a search; without one there is no context to judge."""
    answer: str | None
    """None where there is none."""
    sources: Sequence[str] = ()
    """The knowledge base of each document, where several were searched."""


@dataclass(frozen=True, slots=True)
class JudgeScore:
    """One judge's verdict on one case."""

    version: str
    value: float | None = None
    """In [0, 1]; None for a failure or a missing reply."""
    label: str = ""
    failure: str = ""
    """Why there is no value although the model replied; "" otherwise."""
    missing: bool = False
    """Whether the model did not reply."""
    said: Mapping[str, Any] = field(default_factory=dict)
    """The judge's answer as plain data, or the text that did not fit the schema."""

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


Judging = Generator[PromptStep | AskForm | Sequence[AskForm], Any, JudgeScore]


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
    applies: Callable[[Case], bool]
    """Whether the judge applies to a case."""
    steps: Callable[[Case, Setting], Judging]


def judged(runner: Runner, judge: Judge, cases: Sequence[Case], setting: Setting) -> list[JudgeScore | None]:
    """The verdict on each case, in order; None where the judge does not apply.

    Raises as `Runner.run`.
    """
    indices = [index for index, case in enumerate(cases) if judge.applies(case)]
    method = _JudgeMethod(judge, {str(index): cases[index] for index in indices}, setting)
    results = runner.run(method, [Question(str(index), "") for index in indices])
    verdicts: list[JudgeScore | None] = [None] * len(cases)
    for index, result in zip(indices, results, strict=True):
        verdict = JudgeScore(**result.outcome.notes)
        verdicts[index] = replace(verdict, version=version_in(verdict.version, runner.form))
    return verdicts


class _JudgeMethod:
    """Adapts a judge to the interface of a method; question ids are case indices."""

    def __init__(self, judge: Judge, cases: Mapping[str, Case], setting: Setting) -> None:
        self.name, self.versions = judge.name, (judge.version,)
        self._judge, self._cases, self._setting = judge, cases, setting

    def steps(self, question: Question) -> Steps:
        """Run the judge's steps and return the verdict in the notes."""
        verdict = yield from self._judge.steps(self._cases[question.id], self._setting)
        return Outcome(notes=verdict.plain())


def _utility(case: Case, setting: Setting) -> Judging:
    """Seed 000, section 4.6: does the context entail the right answer, help, or neither?"""
    answer: Structured = yield AskForm(
        prompts.utility(case.item, case.documents, setting.words), prompts.Utility, setting.draw
    )
    if answer.value is None:
        return _no_value(prompts.UTILITY, answer)
    value: prompts.Utility = answer.value
    return JudgeScore(
        prompts.UTILITY, float(value.label != prompts.NOT_USEFUL), prompts.LABELS[value.label], said=value.model_dump()
    )


def _relevancy(case: Case, setting: Setting) -> Judging:
    """Seed 002, sections 5.1.2 and 6.1: does any document answer the question?

    The first document that does decides, even if judgements on others failed.
    """
    judgements: dict[str, Any] = {}
    failure: JudgeScore | None = None
    for document in case.documents:
        prompt = prompts.answerable(case.item.question, document, setting.words)
        answer: Structured = yield AskForm(prompt, prompts.Answerable, setting.draw)
        if answer.value is None:
            failure = failure or _no_value(prompts.RELEVANCY, answer)
            continue
        judgements[document.id] = answer.value.answerable
        if answer.value.answerable:
            return JudgeScore(prompts.RELEVANCY, 1.0, said=judgements)
    return failure or JudgeScore(prompts.RELEVANCY, 0.0, said=judgements)


def _declined(case: Case, setting: Setting) -> Judging:
    """Seed 002, section 6.2: does the answer decline to answer?"""
    return _yes_or_no(prompts.DECLINED, prompts.declined(case.item.question, case.answer or ""), setting)


def _faithfulness(case: Case, setting: Setting) -> Judging:
    """Seed 002, section 6.2: do the documents support the answer? An answer that declines is not faithful."""
    prompt = prompts.faithful(case.item.question, case.documents, case.answer or "", setting.words)
    return _yes_or_no(prompts.FAITHFULNESS, prompt, setting)


def _answer_relevancy(case: Case, setting: Setting) -> Judging:
    """Seed 002, section 6.2: does the answer address the question, whether or not it is right?"""
    return _yes_or_no(prompts.ANSWER_RELEVANCY, prompts.to_the_point(case.item.question, case.answer or ""), setting)


def _yes_or_no(version: str, prompt: FormPrompt, setting: Setting) -> Judging:
    answer: Structured = yield AskForm(prompt, prompts.YesNo, setting.draw)
    if answer.value is None:
        return _no_value(version, answer)
    return JudgeScore(version, float(answer.value.verdict), said=answer.value.model_dump())


def _guideline(case: Case, setting: Setting) -> Judging:
    """Seed 002, section 6.2, in three steps: a golden answer, its key points, how much of them the answer covers."""
    reply = yield PromptStep(prompts.golden(case.item, setting.words), setting.draw)
    if reply is None:
        return JudgeScore(prompts.GUIDELINE, missing=True)
    golden = without_thinking(reply.texts[0].text).strip()
    if not golden:
        details = {"text": reply.texts[0].text, "why": "the golden answer is empty"}
        return JudgeScore(prompts.GUIDELINE, failure=OFF_FORMAT, said=details)
    points_reply: Structured = yield AskForm(
        prompts.key_points(case.item.question, golden), prompts.Points, setting.draw
    )
    if points_reply.value is None:
        return _no_value(prompts.GUIDELINE, points_reply)
    points: list[str] = points_reply.value.points
    score_reply: Structured = yield AskForm(
        prompts.adherence(case.item.question, points, case.answer or ""), prompts.Adherence, setting.draw
    )
    if score_reply.value is None:
        return _no_value(prompts.GUIDELINE, score_reply)
    return JudgeScore(
        prompts.GUIDELINE, score_reply.value.score, said={"points": points, "score": score_reply.value.score}
    )


def _context_recall(case: Case, setting: Setting) -> Judging:
    """Seed 004, eq. 4 and appendix C, in two steps: list the needed statements, then check them against the context.

    Where the context has several sources, the passages of each source are also judged separately (table 3).
    """
    statements_reply: Structured = yield AskForm(prompts.needed(case.item), prompts.Statements, setting.draw)
    if statements_reply.value is None:
        return _no_value(prompts.CONTEXT_RECALL, statements_reply)
    statements: list[str] = [statement for statement in statements_reply.value.statements if statement.strip()]
    if not statements:
        return JudgeScore(prompts.CONTEXT_RECALL, failure=NO_STATEMENTS, said={"text": statements_reply.text})
    sources = list(dict.fromkeys(case.sources))
    parts = [
        [document for document, source in zip(case.documents, case.sources, strict=True) if source == name]
        for name in (sources if len(sources) > 1 else ())
    ]
    replies: list[Structured] = yield [
        AskForm(
            prompts.attributed(case.item.question, documents, statements, setting.words),
            prompts.Attributions,
            setting.draw,
        )
        for documents in (case.documents, *parts)
    ]
    for reply in replies:
        if reply.missing:
            return _no_value(prompts.CONTEXT_RECALL, reply)
    marked, *marked_by_source = [_marks(reply, len(statements)) for reply in replies]
    if marked is None:
        why = replies[0].failure or f"{len(statements)} statements were to be judged, each once"
        return JudgeScore(prompts.CONTEXT_RECALL, failure=OFF_FORMAT, said={"text": replies[0].text, "why": why})
    details: dict[str, Any] = {"statements": statements, "attributed": marked}
    if sources:
        details[BY_SOURCE] = {
            source: sum(marks) / len(marks) if marks is not None else None
            for source, marks in zip(sources, marked_by_source or [marked], strict=True)
        }
    return JudgeScore(prompts.CONTEXT_RECALL, sum(marked) / len(marked), said=details)


def _marks(reply: Structured, count: int) -> list[bool] | None:
    """Whether each of `count` statements is attributed, in order; None unless each is judged exactly once."""
    if reply.value is None:
        return None
    marks = {attribution.statement: attribution.attributed for attribution in reply.value.statements}
    if sorted(marks) != list(range(1, count + 1)) or len(reply.value.statements) != count:
        return None
    return [marks[number] for number in sorted(marks)]


def _no_value(version: str, answer: Structured) -> JudgeScore:
    """The verdict for a structured answer without a value."""
    if answer.missing:
        return JudgeScore(version, missing=True)
    return JudgeScore(version, failure=OFF_FORMAT, said={"text": answer.text, "why": answer.failure})


def _has_context(case: Case) -> bool:
    return case.searched


def _has_answer(case: Case) -> bool:
    return case.answer is not None


JUDGES: Mapping[str, Judge] = {
    judge.name: judge
    for judge in (
        Judge("utility", prompts.UTILITY, _has_context, _utility),
        Judge("relevancy", prompts.RELEVANCY, _has_context, _relevancy),
        Judge("context_recall", prompts.CONTEXT_RECALL, _has_context, _context_recall),
        Judge("declined", prompts.DECLINED, _has_answer, _declined),
        Judge("faithfulness", prompts.FAITHFULNESS, _has_answer, _faithfulness),
        Judge("answer_relevancy", prompts.ANSWER_RELEVANCY, _has_answer, _answer_relevancy),
        Judge("guideline", prompts.GUIDELINE, _has_answer, _guideline),
    )
}
