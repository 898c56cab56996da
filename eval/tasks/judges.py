"""Judging contexts and answers with a language model: one judge, one question, one verdict.

A judge is written like a method (rewriters/method.py): a generator that yields prompts for answers of a fixed form, so
that the prompts of many questions travel together (`judged`). A verdict has a value, or it has none and says why: an
answer off the form, even after it was asked again, is a failure; a reply that did not come is missing. Neither is ever
a 0. Every verdict bears the version of the judge's prompts; who judged stands in the results beside it.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ...data.types import Document, Question
from ...llms.base import Draw
from ...llms.structured import FormPrompt, Structured, version_in, without_thinking
from ...rewriters.method import Ask, AskForm, Outcome, Steps
from ..methods import Runner
from . import judge_prompts as prompts
from .items import Item

OFF_FORMAT = "off format"
"""The failure of a judge that did not answer in the form that it was asked for."""
NO_STATEMENTS = "no statements"
"""The failure of a judge that named nothing which an answer needs."""


BY_SOURCE = "by_source"
"""What a verdict says of the passages of each source; None where the judge was off its form."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is judged."""

    item: Item
    documents: Sequence[Document]
    """The context that the reader was given."""
    searched: bool
    """Whether there was a search at all: without one there is no context to judge."""
    answer: str | None
    """None where there is none."""
    sources: Sequence[str] = ()
    """The knowledge base of each document, where several were searched."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one judge says of one case."""

    version: str
    value: float | None = None
    """In [0, 1]; None where there is a failure or a reply is missing."""
    label: str = ""
    failure: str = ""
    """Why there is no value although the model replied."""
    missing: bool = False
    """Whether the model did not reply."""
    said: Mapping[str, Any] = field(default_factory=dict)
    """What the judge gave as plain data, or the text that was off the form."""

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


Judging = Generator[Ask | AskForm | Sequence[AskForm], Any, Verdict]


@dataclass(frozen=True)
class Setting:
    """How judges are asked."""

    words: int = 200
    """Words shown of each document."""
    draw: Draw = field(default_factory=lambda: Draw(max_tokens=1024))


@dataclass(frozen=True, slots=True)
class Judge:
    """One way of judging."""

    name: str
    version: str
    applies: Callable[[Case], bool]
    """Whether there is something to judge."""
    steps: Callable[[Case, Setting], Judging]


def judged(runner: Runner, judge: Judge, cases: Sequence[Case], setting: Setting) -> list[Verdict | None]:
    """The verdict on each case, in their order; None where there is nothing to judge.

    Raises as `Runner.run`.
    """
    places = [place for place, case in enumerate(cases) if judge.applies(case)]
    bench = _Bench(judge, {str(place): cases[place] for place in places}, setting)
    ran = runner.run(bench, [Question(str(place), "") for place in places])
    found: list[Verdict | None] = [None] * len(cases)
    for place, one in zip(places, ran, strict=True):
        verdict = Verdict(**one.outcome.notes)
        found[place] = replace(verdict, version=version_in(verdict.version, runner.form))
    return found


class _Bench:
    """A judge in the form of a method: questions name the cases."""

    def __init__(self, judge: Judge, cases: Mapping[str, Case], setting: Setting) -> None:
        self.name, self.versions = judge.name, (judge.version,)
        self._judge, self._cases, self._setting = judge, cases, setting

    def steps(self, question: Question) -> Steps:
        """The judge's steps; the verdict stands in the notes."""
        verdict = yield from self._judge.steps(self._cases[question.id], self._setting)
        return Outcome(notes=verdict.plain())


def _utility(case: Case, setting: Setting) -> Judging:
    """Seed 000, section 4.6: does the context decide for the right answer, help, or neither?"""
    answer: Structured = yield AskForm(
        prompts.utility(case.item, case.documents, setting.words), prompts.Utility, setting.draw
    )
    if answer.value is None:
        return _without(prompts.UTILITY, answer)
    value: prompts.Utility = answer.value
    return Verdict(
        prompts.UTILITY, float(value.label != prompts.NOT_USEFUL), prompts.LABELS[value.label], said=value.model_dump()
    )


def _relevancy(case: Case, setting: Setting) -> Judging:
    """Seed 002, sections 5.1.2 and 6.1: does any document answer the question?

    One that does settles it, whatever became of the judgements on others.
    """
    said: dict[str, Any] = {}
    wrong: Verdict | None = None
    for document in case.documents:
        prompt = prompts.answerable(case.item.question, document, setting.words)
        answer: Structured = yield AskForm(prompt, prompts.Answerable, setting.draw)
        if answer.value is None:
            wrong = wrong or _without(prompts.RELEVANCY, answer)
            continue
        said[document.id] = answer.value.answerable
        if answer.value.answerable:
            return Verdict(prompts.RELEVANCY, 1.0, said=said)
    return wrong or Verdict(prompts.RELEVANCY, 0.0, said=said)


def _declined(case: Case, setting: Setting) -> Judging:
    """Seed 002, section 6.2: does the answer decline to answer?"""
    return _yes_or_no(prompts.DECLINED, prompts.declined(case.item.question, case.answer or ""), setting)


def _faithfulness(case: Case, setting: Setting) -> Judging:
    """Seed 002, section 6.2: do the documents support the answer? An answer that declines is not faithful."""
    shown = prompts.faithful(case.item.question, case.documents, case.answer or "", setting.words)
    return _yes_or_no(prompts.FAITHFULNESS, shown, setting)


def _answer_relevancy(case: Case, setting: Setting) -> Judging:
    """Seed 002, section 6.2: does the answer address the question, whether or not it is right?"""
    return _yes_or_no(prompts.ANSWER_RELEVANCY, prompts.to_the_point(case.item.question, case.answer or ""), setting)


def _yes_or_no(version: str, prompt: FormPrompt, setting: Setting) -> Judging:
    answer: Structured = yield AskForm(prompt, prompts.YesNo, setting.draw)
    if answer.value is None:
        return _without(version, answer)
    return Verdict(version, float(answer.value.verdict), said=answer.value.model_dump())


def _guideline(case: Case, setting: Setting) -> Judging:
    """Seed 002, section 6.2, in three steps: a golden answer, its key points, how much of them the answer covers."""
    reply = yield Ask(prompts.golden(case.item, setting.words), setting.draw)
    if reply is None:
        return Verdict(prompts.GUIDELINE, missing=True)
    golden = without_thinking(reply.texts[0].text).strip()
    if not golden:
        said = {"text": reply.texts[0].text, "why": "the golden answer is empty"}
        return Verdict(prompts.GUIDELINE, failure=OFF_FORMAT, said=said)
    listed: Structured = yield AskForm(prompts.key_points(case.item.question, golden), prompts.Points, setting.draw)
    if listed.value is None:
        return _without(prompts.GUIDELINE, listed)
    points: list[str] = listed.value.points
    scored: Structured = yield AskForm(
        prompts.adherence(case.item.question, points, case.answer or ""), prompts.Adherence, setting.draw
    )
    if scored.value is None:
        return _without(prompts.GUIDELINE, scored)
    return Verdict(prompts.GUIDELINE, scored.value.score, said={"points": points, "score": scored.value.score})


def _context_recall(case: Case, setting: Setting) -> Judging:
    """Seed 004, eq. 4 and appendix C, in two steps: what an answer needs, and how much of it the context holds.

    Where the context comes from several sources the passages of each are judged by themselves as well (table 3).
    """
    listed: Structured = yield AskForm(prompts.needed(case.item), prompts.Statements, setting.draw)
    if listed.value is None:
        return _without(prompts.CONTEXT_RECALL, listed)
    statements: list[str] = [one for one in listed.value.statements if one.strip()]
    if not statements:
        return Verdict(prompts.CONTEXT_RECALL, failure=NO_STATEMENTS, said={"text": listed.text})
    sources = list(dict.fromkeys(case.sources))
    parts = [
        [document for document, source in zip(case.documents, case.sources, strict=True) if source == one]
        for one in (sources if len(sources) > 1 else ())
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
            return _without(prompts.CONTEXT_RECALL, reply)
    found, *own = [_marks(reply, len(statements)) for reply in replies]
    if found is None:
        why = replies[0].failure or f"{len(statements)} statements were to be judged, each once"
        return Verdict(prompts.CONTEXT_RECALL, failure=OFF_FORMAT, said={"text": replies[0].text, "why": why})
    said: dict[str, Any] = {"statements": statements, "attributed": found}
    if sources:
        said[BY_SOURCE] = {
            source: sum(marks) / len(marks) if marks is not None else None
            for source, marks in zip(sources, own or [found], strict=True)
        }
    return Verdict(prompts.CONTEXT_RECALL, sum(found) / len(found), said=said)


def _marks(reply: Structured, count: int) -> list[bool] | None:
    """Whether each of `count` statements is held, in their order; None where one is not judged, or twice."""
    if reply.value is None:
        return None
    marks = {one.statement: one.attributed for one in reply.value.statements}
    if sorted(marks) != list(range(1, count + 1)) or len(reply.value.statements) != count:
        return None
    return [marks[number] for number in sorted(marks)]


def _without(version: str, answer: Structured) -> Verdict:
    """The verdict where an answer of a fixed form has no value."""
    if answer.missing:
        return Verdict(version, missing=True)
    return Verdict(version, failure=OFF_FORMAT, said={"text": answer.text, "why": answer.failure})


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
