"""LLM judges of contexts and answers: one verdict per judge and case.

A judge is written like a method (methods/method.py): a generator that yields prompts for structured answers, so that
the prompts of many cases are batched (`judged`). A verdict has a value or a reason for its absence: an answer that does
not fit the schema, even after a retry, is a failure; a reply that did not come is missing. Neither counts as 0. Every
verdict has the version of the judge's prompts; the judge model is recorded with the results.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeVar

from pydantic import BaseModel

from ...data.types import Document, Question
from ...llms.base import SamplingParams
from ...llms.prose import passage_of
from ...llms.structured import AskForm, FormPrompt, Structured, version_in
from ...methods.method import Outcome, PromptStep, Steps
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


Judging = Generator[PromptStep | AskForm | Sequence[AskForm], Any, JudgeScore]
Form = TypeVar("Form", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Judge:
    """A judge: its prompts' version, its cases and its steps."""

    name: str
    version: str
    judges: Literal["context", "answer", "hypotheses"]
    steps: Callable[[Case, Setting], Judging]

    def applies(self, case: Case) -> bool:
        """Whether the case has what is judged."""
        if self.judges == "hypotheses":
            return bool(case.notes.get("H_plus") and case.notes.get("H_minus"))
        return case.searched if self.judges == "context" else case.answer is not None


def judged(runner: Runner, judge: Judge, cases: Sequence[Case], setting: Setting) -> list[JudgeScore | None]:
    """The verdict on each case, in order; None where the judge does not apply.

    Raises as `Runner.run`.
    """
    indices = [index for index, case in enumerate(cases) if judge.applies(case)]
    results = runner.run(_JudgeMethod(judge, cases, setting), [Question(str(index), "") for index in indices])
    verdicts: list[JudgeScore | None] = [None] * len(cases)
    for index, result in zip(indices, results, strict=True):
        verdicts[index] = replace(JudgeScore(**result.outcome.notes), version=version_in(judge.version, runner.form))
    return verdicts


class _JudgeMethod:
    """Adapts a judge to the interface of a method; question ids are case indices."""

    def __init__(self, judge: Judge, cases: Sequence[Case], setting: Setting) -> None:
        self.name, self.versions = judge.name, (judge.version,)
        self._judge, self._cases, self._setting = judge, cases, setting

    def steps(self, question: Question) -> Steps:
        """Run the judge's steps and return the verdict in the notes."""
        try:
            verdict = yield from self._judge.steps(self._cases[int(question.id)], self._setting)
        except _UnjudgedError as error:
            verdict = error.verdict
        return Outcome(notes=asdict(verdict))


class _UnjudgedError(Exception):
    """A structured answer without a value; never leaves this file."""

    def __init__(self, answer: Structured[BaseModel]) -> None:
        super().__init__(answer.failure)
        said = {} if answer.missing else {"text": answer.text, "why": answer.failure}
        self.verdict = JudgeScore(missing=answer.missing, failure="" if answer.missing else OFF_FORMAT, said=said)


def _ask(prompt: FormPrompt, form: type[Form], setting: Setting) -> Generator[AskForm, Structured[Form], Form]:
    """The value of one structured answer. Raises _UnjudgedError where there is none."""
    answer = yield AskForm(prompt, form, setting.draw)
    if answer.value is None:
        raise _UnjudgedError(answer)
    return answer.value


def _utility(case: Case, setting: Setting) -> Judging:
    """The HCQR paper, section 4.6: does the context entail the right answer, help, or neither?"""
    prompt = prompts.utility(case.item, case.documents, setting.words)
    value = yield from _ask(prompt, prompts.Utility, setting)
    useful = float(value.label != prompts.NOT_USEFUL)
    return JudgeScore(value=useful, label=prompts.LABELS[value.label], said=value.model_dump())


def _mimic(case: Case, setting: Setting) -> Judging:
    """The CHR paper, section 4.6: how good is the mimic hypothesis? The paper's ratings are a physician's."""
    prompt = prompts.mimic(case.item, str(case.notes["H_plus"]), str(case.notes["H_minus"]))
    value = yield from _ask(prompt, prompts.Mimic, setting)
    label = prompts.MIMIC_LABELS[value.quality]
    return JudgeScore(value=float(label == "excellent"), label=label, said=value.model_dump())


def _relevancy(case: Case, setting: Setting) -> Judging:
    """The QB-RAG paper, sections 5.1.2 and 6.1: does any document answer the question?

    The first document that does decides, even if judgements on others failed.
    """
    judgements: dict[str, object] = {}
    failure: JudgeScore | None = None
    for document in case.documents:
        prompt = prompts.answerable(case.item.question, document, setting.words)
        try:
            value = yield from _ask(prompt, prompts.Answerable, setting)
        except _UnjudgedError as error:
            failure = failure or error.verdict
            continue
        judgements[document.id] = value.answerable
        if value.answerable:
            return JudgeScore(value=1.0, said=judgements)
    return failure or JudgeScore(value=0.0, said=judgements)


def _declined(case: Case, setting: Setting) -> Judging:
    """The QB-RAG paper, section 6.2: does the answer decline to answer?"""
    return _yes_or_no(prompts.declined(case.item.question, case.answer or ""), setting)


def _faithfulness(case: Case, setting: Setting) -> Judging:
    """The QB-RAG paper, section 6.2: do the documents support the answer? An answer that declines is not faithful."""
    return _yes_or_no(prompts.faithful(case.item.question, case.documents, case.answer or "", setting.words), setting)


def _answer_relevancy(case: Case, setting: Setting) -> Judging:
    """The QB-RAG paper, section 6.2: does the answer address the question, whether or not it is right?"""
    return _yes_or_no(prompts.to_the_point(case.item.question, case.answer or ""), setting)


def _yes_or_no(prompt: FormPrompt, setting: Setting) -> Judging:
    value = yield from _ask(prompt, prompts.YesNo, setting)
    return JudgeScore(value=float(value.verdict), said=value.model_dump())


def _guideline(case: Case, setting: Setting) -> Judging:
    """The QB-RAG paper, section 6.2, in three steps: a golden answer, its key points, how much of these is covered."""
    reply = yield PromptStep(prompts.golden(case.item, setting.words), setting.draw)
    if reply is None:
        return JudgeScore(missing=True)
    golden = passage_of(reply.texts[0].text).answer
    if not golden:
        details = {"text": reply.texts[0].text, "why": "the golden answer is empty"}
        return JudgeScore(failure=OFF_FORMAT, said=details)
    question = case.item.question
    points = (yield from _ask(prompts.key_points(question, golden), prompts.Points, setting)).points
    prompt = prompts.adherence(question, points, case.answer or "")
    score = (yield from _ask(prompt, prompts.Adherence, setting)).score
    return JudgeScore(value=score, said={"points": points, "score": score})


def _context_recall(case: Case, setting: Setting) -> Judging:
    """The Misknow-RAG paper, eq. 4 and appendix C: list the needed statements, then check them against the context.

    Where the context has several sources, the passages of each source are also judged separately (table 3).
    """
    answer: Structured[prompts.Statements] = yield AskForm(prompts.needed(case.item), prompts.Statements, setting.draw)
    if answer.value is None:
        raise _UnjudgedError(answer)
    statements = [statement for statement in answer.value.statements if statement.strip()]
    if not statements:
        return JudgeScore(failure=NO_STATEMENTS, said={"text": answer.text})
    sources = list(dict.fromkeys(case.sources))
    parts = [
        [document for document, source in zip(case.documents, case.sources, strict=True) if source == name]
        for name in (sources if len(sources) > 1 else ())
    ]
    replies: list[Structured[prompts.Attributions]] = yield [
        AskForm(
            prompts.attributed(case.item.question, documents, statements, setting.words),
            prompts.Attributions,
            setting.draw,
        )
        for documents in (case.documents, *parts)
    ]
    for reply in replies:
        if reply.missing:
            raise _UnjudgedError(reply)
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
