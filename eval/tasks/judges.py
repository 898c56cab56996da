"""LLM judges of contexts and answers: one verdict per judge and case; their prompts are in judges.yaml.

A judge is an async function, like a method (methods/method.py), so that the prompts of many cases travel in batches. A
verdict has a value in [0, 1] or a failure: no reply, or one that did not fit the form even after a repair. Neither
counts as 0.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from string import Template
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, create_model

from ...configs.load import parse_yaml
from ...data.types import Document, Question
from ...llms.base import SamplingParams
from ...llms.structured import FormPrompt, WorkedExample
from ...methods.method import GARBLED, MISSING, Ask, Result, Runner, Search, StageError, answer_text
from ...methods.prompts import numbered, shortened
from ...rewriters.case import case_text, lettered, one_line
from .gold import Gold

PROMPTS = Path(__file__).with_name("judges.yaml").read_text(encoding="utf-8")
_PROMPTS: dict[str, dict[str, Any]] = parse_yaml(PROMPTS)
NO_STATEMENTS = "no statements"
"""Failure: the judge listed no statement that the answer needs."""
LABELS = {"ENTAILED": "entailed", "USEFUL_BUT_NOT_ENTAILED": "useful", "NOT_USEFUL": "not_useful"}
"""The labels of the utility judge: in its answers → in results."""
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


class Attribution(BaseModel):
    """Whether the documents hold a statement, and why."""

    statement: int
    attributed: bool
    reason: str


_TEXT, _YES_NO = (str, ...), (bool, ...)
_VERDICT = create_model("Verdict", explanation=_TEXT, verdict=_YES_NO)
FORMS: Mapping[str, type[BaseModel]] = {
    "utility": Utility,
    "mimic": Mimic,
    "relevancy": create_model("Relevancy", explanation=_TEXT, answerable=_YES_NO),
    **dict.fromkeys(("declined", "faithfulness", "answer_relevancy"), _VERDICT),
    "points": create_model("Points", points=(Annotated[list[str], Field(min_length=1)], ...)),
    "guideline": create_model("Guideline", explanation=_TEXT, score=(Annotated[float, Field(ge=0, le=1)], ...)),
    "statements": create_model("Statements", statements=(list[str], ...)),
    "context_recall": create_model("Attributions", statements=(list[Attribution], ...)),
}
"""The form of the answer to each prompt of judges.yaml; where it is a grade, its last field."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case to judge: a question, what a method found for it, and an answer."""

    item: Gold
    result: Result
    searched: bool
    """Whether there was a search; without one there is no context to judge."""
    answer: str | None


def example(name: str) -> WorkedExample:
    """The worked example of the prompt of that name."""
    case = Template(_PROMPTS[name]["example"]).substitute(_PROMPTS["examples"])
    return WorkedExample(case, FORMS[name].model_validate(_PROMPTS[name]["answer"]))


@dataclass(frozen=True, slots=True)
class _Judging:
    """One case with the model that judges it."""

    case: Case
    ask: Ask
    words: int
    """Words per document in prompts."""
    draw: SamplingParams

    async def form(self, name: str, **values: str) -> dict[str, Any]:
        """An answer to the prompt of that name. Raises StageError where there is none of its form."""
        prompt = FormPrompt(_PROMPTS[name]["task"], self.filled(name, **values), (example(name),))
        return (await self.ask.json(prompt, FORMS[name], self.draw)).model_dump()

    def filled(self, name: str, **values: str) -> str:
        """The case of the prompt of that name."""
        item, notes = self.case.item, self.case.result.notes
        defaults = {
            "question": case_text(item.question, options=False),
            "reply": self.case.answer or "",
            "documents": numbered(self.case.result.documents, self.words),
            "plus": str(notes.get("H_plus")),
            "minus": str(notes.get("H_minus")),
        }
        if item.right is not None:
            options = lettered(item.question.options)
            defaults["choice"] = "\n\n".join(
                [defaults["question"], "\n".join(["Options:", *options]), f"Right answer: {options[item.right]}"]
            )
        return Template(_PROMPTS[name]["case"]).substitute(defaults | values)


def _verdict(value: float, said: Mapping[str, Any], label: str = "") -> Result:
    return Result(notes={"value": value, "label": label, "said": said})


async def _graded(name: str, judging: _Judging) -> Result:
    """A yes, or the label that counts: for HCQR the context is of use, for CHR the mimic is an excellent one (the
    paper's ratings are a physician's)."""
    grades = await judging.form(name)
    *_, grade = grades.values()
    if isinstance(grade, bool):
        return _verdict(float(grade), grades)
    value = float(grade in ("ENTAILED", "USEFUL_BUT_NOT_ENTAILED", "EXCELLENT"))
    return _verdict(value, grades, LABELS.get(grade, grade.lower()))


async def _relevancy(judging: _Judging) -> Result:
    """Does any document answer the question? The first one that does decides, even if judgements on others failed."""
    judgements: dict[str, object] = {}
    failure: StageError | None = None
    for document in judging.case.result.documents:
        try:
            answer = await judging.form("relevancy", document=shortened(one_line(document), judging.words))
        except StageError as error:
            failure = failure or error
            continue
        judgements[document.id] = answer["answerable"]
        if answer["answerable"]:
            return _verdict(1.0, judgements)
    if failure is not None:
        raise failure
    return _verdict(0.0, judgements)


async def _guideline(judging: _Judging) -> Result:
    """A golden answer from the question's documents, its key points, and how much of these an answer covers."""
    contents = numbered(judging.case.item.contents, judging.words)
    prompt = f"{_PROMPTS['golden']['task']}\n\n{judging.filled('golden', documents=contents)}"
    golden = answer_text(await judging.ask(prompt, judging.draw))
    if not golden:
        raise StageError(GARBLED, problem="the golden answer is empty")
    points = (await judging.form("points", golden=golden))["points"]
    score = (await judging.form("guideline", points="\n".join(f"- {point}" for point in points)))["score"]
    return _verdict(score, {"points": points, "score": score})


async def _context_recall(judging: _Judging) -> Result:
    """The share of the statements needed for the right answer that the context holds; where it has several sources,
    also of each source's passages (the Misknow-RAG paper, table 3)."""
    result, answers = judging.case.result, judging.case.item.answers
    right = " (or: ".join(answers) + ")" * (len(answers) - 1)
    needed = (await judging.form("statements", right=right))["statements"]
    statements = [statement for statement in needed if statement.strip()]
    if not statements:
        raise StageError(NO_STATEMENTS)
    listed = "\n".join(f"{number}. {statement}" for number, statement in enumerate(statements, start=1))

    async def share(documents: Sequence[Document]) -> float:
        listing = numbered(documents, judging.words)
        marks = (await judging.form("context_recall", statements=listed, documents=listing))["statements"]
        if sorted(mark["statement"] for mark in marks) != list(range(1, len(statements) + 1)):
            raise StageError(GARBLED, problem=f"{len(statements)} statements were to be judged, each once")
        return fmean(mark["attributed"] for mark in marks)

    async def share_of(source: str) -> float | None:
        try:
            return await share([d for d, name in zip(result.documents, result.sources, strict=True) if name == source])
        except StageError as error:
            if error.failure == MISSING:
                raise
            return None

    sources = [source for source in dict.fromkeys(result.sources) if source]
    several = sources if len(sources) > 1 else []
    value, shares = await asyncio.gather(share(result.documents), asyncio.gather(*map(share_of, several)))
    by_source = {BY_SOURCE: dict(zip(sources, shares or [value], strict=True))} if sources else {}
    return _verdict(value, {"statements": statements, **by_source})


JUDGES: Mapping[
    str, tuple[Literal["context", "answer", "hypotheses"], Callable[[_Judging], Coroutine[Any, Any, Result]]]
] = {
    "utility": ("context", partial(_graded, "utility")),
    "mimic": ("hypotheses", partial(_graded, "mimic")),
    "relevancy": ("context", _relevancy),
    "context_recall": ("context", _context_recall),
    **{name: ("answer", partial(_graded, name)) for name in ("declined", "faithfulness", "answer_relevancy")},
    "guideline": ("answer", _guideline),
}
"""What each judges, and how."""


def judged(
    runner: Runner, names: Sequence[str], cases: Sequence[Case], words: int, draw: SamplingParams
) -> list[dict[str, dict[str, Any]]]:
    """The verdicts on each case by judge, as plain data: `value` (None for a failure), `label`, `said`, `failure`. A
    judge who has nothing to judge is not there. Raises as `Runner.run`."""
    pairs = [(number, name) for number, case in enumerate(cases) for name in names if _applies(name, case)]

    async def judge(question: Question, ask: Ask, search: Search) -> Result:
        number, name = pairs[int(question.id)]
        return await JUDGES[name][1](_Judging(cases[number], ask, words, draw))

    runs = runner.run(judge, [Question(str(index), "") for index in range(len(pairs))])
    verdicts: list[dict[str, dict[str, Any]]] = [{} for _ in cases]
    for (number, name), run in zip(pairs, runs, strict=True):
        failed = {"value": None, "label": "", "said": run.result.notes}
        verdicts[number][name] = {**(failed if run.result.failure else run.result.notes), "failure": run.result.failure}
    return verdicts


def _applies(name: str, case: Case) -> bool:
    """Whether the case has what is judged."""
    if JUDGES[name][0] == "hypotheses":
        return bool(case.result.notes.get("H_plus") and case.result.notes.get("H_minus"))
    return case.searched if JUDGES[name][0] == "context" else case.answer is not None
