"""LLM judges of contexts and answers: one verdict per judge and case; their prompts are in judges.yaml.

A judge is an async function, like a method (methods/method.py), so that the prompts of many cases travel in batches. A
verdict has a value in [0, 1] or a failure: no reply, or one that did not fit the form even after a repair. Neither
counts as 0.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field

from ...configs.load import parse_yaml
from ...data.types import Document, Question
from ...llms.base import SamplingParams
from ...llms.structured import FormPrompt, WorkedExample
from ...methods.method import GARBLED, MISSING, Ask, Result, Runner, Search, StageError, answer_text
from ...rewriters.case import case_text, lettered
from .gold import Gold
from .reader import numbered, shortened

PROMPTS = Path(__file__).with_name("judges.yaml").read_text(encoding="utf-8")
_PROMPTS: dict[str, dict[str, Any]] = parse_yaml(PROMPTS)
NO_STATEMENTS = "no statements"
"""Failure: the judge listed no statement that the answer needs."""
LABELS = {"ENTAILED": "entailed", "USEFUL_BUT_NOT_ENTAILED": "useful", "NOT_USEFUL": "not_useful"}
"""The labels of the utility judge: in its answers → in results."""
MIMIC_LABELS = {name: name.lower() for name in ("EXCELLENT", "GOOD", "POOR", "INVALID")}
BY_SOURCE = "by_source"
"""Key in a verdict's `said` for the score of each source's passages; None where the judge's answer did not fit."""


class Utility(BaseModel):
    """What a context is worth for the right answer."""

    selected_answer: str
    label: Literal["ENTAILED", "USEFUL_BUT_NOT_ENTAILED", "NOT_USEFUL"]


class Mimic(BaseModel):
    """A rating of the mimic, and why."""

    explanation: str
    quality: Literal["EXCELLENT", "GOOD", "POOR", "INVALID"]


class Answerable(BaseModel):
    """Whether a text answers the question, and why."""

    explanation: str
    answerable: bool


class YesNo(BaseModel):
    """A verdict, and why."""

    explanation: str
    verdict: bool


class Points(BaseModel):
    """The key points of an answer."""

    points: Annotated[list[str], Field(min_length=1)]


class Adherence(BaseModel):
    """How much of a guideline an answer covers, and why."""

    explanation: str
    score: Annotated[float, Field(ge=0, le=1)]


class Statements(BaseModel):
    """What has to be known for an answer."""

    statements: list[str]


class Attribution(BaseModel):
    """Whether the documents hold a statement, and why."""

    statement: int
    attributed: bool
    reason: str


class Attributions(BaseModel):
    """A judgement of every statement."""

    statements: list[Attribution]


@dataclass(frozen=True, slots=True)
class Case:
    """One case to judge: a question, its context and an answer."""

    item: Gold
    documents: Sequence[Document]
    """The reader's context."""
    searched: bool
    """Whether there was a search; without one there is no context to judge."""
    answer: str | None
    sources: Sequence[str] = ()
    """The knowledge base of each document, where several were searched."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What the method wrote on the way."""


@dataclass(frozen=True, slots=True)
class JudgeScore:
    value: float
    label: str = ""
    said: Mapping[str, Any] = field(default_factory=dict)
    """The judge's answer as plain data."""


Form = TypeVar("Form", bound=BaseModel)


def example(name: str, form: type[BaseModel]) -> WorkedExample:
    """The worked example of the prompt of that name."""
    case = Template(_PROMPTS[name]["example"]).substitute(_PROMPTS["examples"])
    return WorkedExample(case, form.model_validate(_PROMPTS[name]["answer"]))


@dataclass(frozen=True, slots=True)
class _Judging:
    """One case with the model that judges it."""

    case: Case
    ask: Ask
    words: int
    """Words per document in prompts."""
    draw: SamplingParams

    async def form(self, name: str, form: type[Form], **values: str) -> Form:
        """An answer to the prompt of that name. Raises StageError where there is none of this form."""
        prompt = FormPrompt(_PROMPTS[name]["task"], self.filled(name, **values), (example(name, form),))
        return await self.ask.json(prompt, form, self.draw)

    def filled(self, name: str, **values: str) -> str:
        """The case of the prompt of that name."""
        item = self.case.item
        question = case_text(item.question, options=False)
        return Template(_PROMPTS[name]["case"]).substitute(
            {"question": question, "reply": self.case.answer or "", "documents": self.listed(self.case.documents)}
            | values
        )

    def listed(self, documents: Sequence[Document]) -> str:
        return "\n".join(numbered(documents, self.words)) or "(none was found)"

    @property
    def choice(self) -> str:
        """Question, options and right answer of multiple choice."""
        item, options = self.case.item, lettered(self.case.item.question.options)
        assert item.right is not None, "the judge takes multiple choice"
        question = case_text(item.question, options=False)
        return "\n\n".join([question, "\n".join(["Options:", *options]), f"Right answer: {options[item.right]}"])


async def _utility(judging: _Judging) -> JudgeScore:
    """Does the context entail the right answer, help, or neither?"""
    answer = await judging.form("utility", Utility, choice=judging.choice)
    return JudgeScore(float(answer.label != "NOT_USEFUL"), LABELS[answer.label], answer.model_dump())


async def _mimic(judging: _Judging) -> JudgeScore:
    """How good is the mimic hypothesis? The paper's ratings are a physician's."""
    notes = judging.case.notes
    plus, minus = str(notes["H_plus"]), str(notes["H_minus"])
    answer = await judging.form("mimic", Mimic, choice=judging.choice, plus=plus, minus=minus)
    return JudgeScore(float(answer.quality == "EXCELLENT"), MIMIC_LABELS[answer.quality], answer.model_dump())


async def _relevancy(judging: _Judging) -> JudgeScore:
    """Does any document answer the question? The first one that does decides, even if judgements on others failed."""
    judgements: dict[str, object] = {}
    failure: StageError | None = None
    for document in judging.case.documents:
        try:
            answer = await judging.form("relevancy", Answerable, document=shortened(document, judging.words))
        except StageError as error:
            failure = failure or error
            continue
        judgements[document.id] = answer.answerable
        if answer.answerable:
            return JudgeScore(1.0, said=judgements)
    if failure is not None:
        raise failure
    return JudgeScore(0.0, said=judgements)


def _yes_or_no(name: str) -> Callable[[_Judging], Coroutine[Any, Any, JudgeScore]]:
    async def judge(judging: _Judging) -> JudgeScore:
        answer = await judging.form(name, YesNo)
        return JudgeScore(float(answer.verdict), said=answer.model_dump())

    return judge


async def _guideline(judging: _Judging) -> JudgeScore:
    """A golden answer from the question's documents, its key points, and how much of these an answer covers."""
    contents = judging.listed(judging.case.item.contents)
    prompt = f"{_PROMPTS['golden']['task']}\n\n{judging.filled('golden', documents=contents)}"
    golden = answer_text(await judging.ask(prompt, judging.draw))
    if not golden:
        raise StageError(GARBLED, problem="the golden answer is empty")
    points = (await judging.form("points", Points, golden=golden)).points
    listed = "\n".join(f"- {point}" for point in points)
    score = (await judging.form("guideline", Adherence, points=listed)).score
    return JudgeScore(score, said={"points": points, "score": score})


async def _context_recall(judging: _Judging) -> JudgeScore:
    """The share of the statements needed for the right answer that the context holds; where it has several sources,
    also of each source's passages (the Misknow-RAG paper, table 3)."""
    case = judging.case
    right = " (or: ".join(case.item.answers) + ")" * (len(case.item.answers) - 1)
    needed = (await judging.form("statements", Statements, right=right)).statements
    statements = [statement for statement in needed if statement.strip()]
    if not statements:
        raise StageError(NO_STATEMENTS)
    listed = "\n".join(f"{number}. {statement}" for number, statement in enumerate(statements, start=1))

    async def marks(documents: Sequence[Document]) -> list[bool]:
        shown = judging.listed(documents)
        answer = await judging.form("context_recall", Attributions, statements=listed, documents=shown)
        by_number = {judged.statement: judged.attributed for judged in answer.statements}
        if sorted(by_number) != list(range(1, len(statements) + 1)) or len(answer.statements) != len(statements):
            raise StageError(GARBLED, problem=f"{len(statements)} statements were to be judged, each once")
        return [by_number[number] for number in sorted(by_number)]

    async def share(documents: Sequence[Document]) -> float | None:
        try:
            judged = await marks(documents)
        except StageError as error:
            if error.failure == MISSING:
                raise
            return None
        return sum(judged) / len(judged)

    sources = list(dict.fromkeys(case.sources))
    passages = [
        [document for document, source in zip(case.documents, case.sources, strict=True) if source == name]
        for name in (sources if len(sources) > 1 else ())
    ]
    attributed, shares = await asyncio.gather(marks(case.documents), asyncio.gather(*map(share, passages)))
    value = sum(attributed) / len(attributed)
    by_source = {BY_SOURCE: dict(zip(sources, shares or [value], strict=True))} if sources else {}
    return JudgeScore(value, said={"statements": statements, "attributed": attributed, **by_source})


JUDGES: Mapping[
    str, tuple[Literal["context", "answer", "hypotheses"], Callable[..., Coroutine[Any, Any, JudgeScore]]]
] = {
    "utility": ("context", _utility),
    "mimic": ("hypotheses", _mimic),
    "relevancy": ("context", _relevancy),
    "context_recall": ("context", _context_recall),
    **{name: ("answer", _yes_or_no(name)) for name in ("declined", "faithfulness", "answer_relevancy")},
    "guideline": ("answer", _guideline),
}
"""What each judges, and how."""


def judged(
    runner: Runner, names: Sequence[str], cases: Sequence[Case], words: int, draw: SamplingParams
) -> list[dict[str, dict[str, Any]]]:
    """The verdicts on each case by judge, as plain data: `value` (None for a failure), `label`, `said`, `failure`. A
    judge who has nothing to judge is not there. Raises as `Runner.run`."""
    pairs = [(case, name) for case in cases for name in names if _applies(name, case)]

    async def judge(question: Question, ask: Ask, search: Search) -> Result:
        case, name = pairs[int(question.id)]
        verdict = await JUDGES[name][1](_Judging(case, ask, words, draw))
        return Result(notes={"value": verdict.value, "label": verdict.label, "said": verdict.said})

    runs = iter(runner.run(judge, [Question(str(number), "") for number in range(len(pairs))]))
    verdicts: list[dict[str, dict[str, Any]]] = []
    for case in cases:
        results = {name: next(runs).result for name in names if _applies(name, case)}
        verdicts.append(
            {
                name: {"value": None, "label": "", "said": result.notes, "failure": result.failure}
                if result.failure
                else {**result.notes, "failure": ""}
                for name, result in results.items()
            }
        )
    return verdicts


def _applies(name: str, case: Case) -> bool:
    """Whether the case has what is judged."""
    if JUDGES[name][0] == "hypotheses":
        return bool(case.notes.get("H_plus") and case.notes.get("H_minus"))
    return case.searched if JUDGES[name][0] == "context" else case.answer is not None
