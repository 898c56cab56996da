"""Judge prompts and answer schemas: the roles and rules of the papers in this project's own words.

Increase a version with every change of its judge's wording or schema: every result records it. The docstring of a
schema is part of the prompt.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from ...data.types import Document, Question
from ...llms.base import Prompt
from ...llms.structured import FormPrompt, WorkedExample
from ...rewriters.case import case_text, lettered
from .gold import Gold
from .reader import numbered, shortened

UTILITY = "utility-2"
MIMIC = "mimic-2"
RELEVANCY = "answerability-2"
DECLINED = "declined-2"
FAITHFULNESS = "faithfulness-2"
ANSWER_RELEVANCY = "answer-relevancy-2"
GUIDELINE = "guideline-3"
CONTEXT_RECALL = "context-recall-3"

NOT_USEFUL = "NOT_USEFUL"
LABELS = {"ENTAILED": "entailed", "USEFUL_BUT_NOT_ENTAILED": "useful", NOT_USEFUL: "not_useful"}
"""The labels of the utility judge: in its answers → in results."""


MIMIC_LABELS = {"EXCELLENT": "excellent", "GOOD": "good", "POOR": "poor", "INVALID": "invalid"}
"""The labels of the mimic judge: in its answers → in results."""


class Mimic(BaseModel):
    """A rating of the mimic, and why."""

    explanation: str
    quality: Literal["EXCELLENT", "GOOD", "POOR", "INVALID"]


class Utility(BaseModel):
    """What a context is worth for the right answer."""

    selected_answer: str
    label: Literal["ENTAILED", "USEFUL_BUT_NOT_ENTAILED", "NOT_USEFUL"]


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


_UTILITY = (
    "You judge how a context that was found by a search bears on the right answer to a multiple-choice question. Judge "
    "the context alone and leave out what you know.\n"
    "1. selected_answer: the letter of the option that the context by itself speaks for most, or UNSURE. It need not "
    "be the right one.\n"
    "2. label, always with regard to the right answer:\n"
    "- ENTAILED: the right answer follows from the context alone. Every step is there, nothing has to be added or "
    "assumed, the conclusion is certain and not only plausible, and selected_answer is the right answer. Be sparing "
    "with this label.\n"
    "- USEFUL_BUT_NOT_ENTAILED: the context speaks strongly for the right answer and one last step or a little outside "
    "knowledge is missing. It holds at least one of these: a clue, rule, condition or relation that decides for the "
    "right answer; evidence against other plausible options that leaves the right one clearly ahead; a link between "
    "question and right answer that makes it reachable with very little more. Being on the topic is not enough.\n"
    "- NOT_USEFUL: everything else: background, shared words, weak hints, or evidence for another option."
)
_MIMIC = (
    "You rate the second of two hypotheses that were written for a multiple-choice question before a search: the "
    "target is to describe the right answer, the mimic the most plausible wrong one. Explain briefly, then rate it:\n"
    "- EXCELLENT: the mimic is the most plausible alternative for this question, the first that has to be ruled out.\n"
    "- GOOD: the mimic is a plausible alternative, but not the hardest one here.\n"
    "- POOR: the mimic says the same as the target in other words, or is about something that no option speaks of.\n"
    "- INVALID: the target is wrong in itself, so that the pair cannot be rated."
)
_ANSWERABLE = (
    "Judge whether the text below holds the answer to the question. Explain step by step what the question asks for "
    "and what the text says about it, then set answerable to true where the text by itself answers the question, and "
    "to false where it does not."
)
_DECLINED = (
    "Judge whether the reply below declines to answer the question: it says that it does not know, cannot determine "
    "the answer or has no information, and gives none. Explain briefly and set verdict to true where it declines."
)
_FAITHFUL = (
    "Judge whether the documents below support the reply to the question. Any part of them may support it, and it does "
    "not matter that others have nothing to do with it. A reply that says more than the documents do is not supported, "
    "nor is one that declines to answer. Explain briefly and set verdict to true where it is supported."
)
_TO_THE_POINT = (
    "Judge whether the reply below answers what the question asks and can be understood by itself. Whether it is right "
    "does not matter. Explain briefly and set verdict to true where it does."
)
_GOLDEN = "Answer the question completely and correctly from the text below, and from nothing else."
_POINTS = (
    "This is an ideal answer to the question. List the key points that any good answer has to make, each as one short "
    "sentence."
)
_ADHERENCE = (
    "Judge how much of a guideline an answer to the question covers. Explain point by point, then set score to a "
    "number between 0 (no key point is made) and 1 (every key point is made)."
)
_NEEDED = (
    "List the statements of fact that a text must hold so that the question can be answered from it as given below. "
    "Each statement is one short sentence that can be understood by itself. Write in the language of the question."
)
_ATTRIBUTED = (
    "Judge for every numbered statement by itself whether the documents below hold it: attributed is true where they "
    "do and false where they do not, and reason says why. Give every statement once, by its number, and write in the "
    "language of the question."
)


_QUESTION = "Question: Which gas do plants take up for photosynthesis?"
_CONTEXT = "[1] Photosynthesis: Plants take up carbon dioxide through their leaves and give off oxygen."
_REPLY = "Reply: They take up carbon dioxide."
_EXPLANATION = "The reply names carbon dioxide, as document 1 does."
_UTILITY_EXAMPLE = WorkedExample(
    f"{_QUESTION}\n\nOptions:\nA. Oxygen\nB. Carbon dioxide\n\nRight answer: B. Carbon dioxide\n\nContext:\n{_CONTEXT}",
    Utility(selected_answer="B", label="ENTAILED"),
)
_MIMIC_EXAMPLE = WorkedExample(
    f"{_QUESTION}\n\nOptions:\nA. Oxygen\nB. Carbon dioxide\n\nRight answer: B. Carbon dioxide\n\nTarget: Plants "
    "take up carbon dioxide for photosynthesis.\n\nMimic: Plants take up oxygen too, when they breathe at night.",
    Mimic(explanation="Oxygen is the gas that one confuses with the right one.", quality="EXCELLENT"),
)
_ANSWERABLE_EXAMPLE = WorkedExample(
    f"Text: {_CONTEXT.partition(' ')[2]}\n\n{_QUESTION}",
    Answerable(explanation="The question asks for a gas, and the text names carbon dioxide.", answerable=True),
)
_DECLINED_EXAMPLE = WorkedExample(
    f"{_QUESTION}\n\n{_REPLY}", YesNo(explanation="The reply names a gas and does not decline.", verdict=False)
)
_FAITHFUL_EXAMPLE = WorkedExample(
    f"Documents:\n{_CONTEXT}\n\n{_QUESTION}\n\n{_REPLY}", YesNo(explanation=_EXPLANATION, verdict=True)
)
_TO_THE_POINT_EXAMPLE = WorkedExample(
    f"{_QUESTION}\n\n{_REPLY}", YesNo(explanation="A gas is asked for, and the reply names one.", verdict=True)
)
_POINTS_EXAMPLE = WorkedExample(
    f"{_QUESTION}\n\nIdeal answer: Plants take up carbon dioxide and give off oxygen.",
    Points(points=["Plants take up carbon dioxide.", "They give off oxygen."]),
)
_ADHERENCE_EXAMPLE = WorkedExample(
    f"{_QUESTION}\n\nGuideline:\n- Plants take up carbon dioxide.\n- They give off oxygen.\n\n"
    "Answer: They take up carbon dioxide.",
    Adherence(explanation="One of two key points is made.", score=0.5),
)
_NEEDED_EXAMPLE = WorkedExample(
    f"{_QUESTION}\n\nAnswer: carbon dioxide",
    Statements(statements=["Plants take up carbon dioxide for photosynthesis."]),
)
_ATTRIBUTED_EXAMPLE = WorkedExample(
    f"{_QUESTION}\n\nDocuments:\n{_CONTEXT}\n\nStatements:\n1. Plants take up carbon dioxide.",
    Attributions(statements=[Attribution(statement=1, attributed=True, reason="Document 1 says it.")]),
)
"""Only one statement: with two in the example, small models judge more statements than there are."""


def utility(item: Gold, documents: Sequence[Document], words: int) -> FormPrompt:
    """How useful the context is for the right answer."""
    return _prompt(_UTILITY, [*_choice(item), f"Context:\n{_listed(documents, words)}"], _UTILITY_EXAMPLE)


def mimic(item: Gold, plus: str, minus: str) -> FormPrompt:
    """How good the mimic of a pair of hypotheses is."""
    return _prompt(_MIMIC, [*_choice(item), f"Target: {plus}", f"Mimic: {minus}"], _MIMIC_EXAMPLE)


def answerable(question: Question, document: Document, words: int) -> FormPrompt:
    """Whether one document answers the question."""
    parts = [f"Text: {shortened(document, words)}", case_text(question, options=False)]
    return _prompt(_ANSWERABLE, parts, _ANSWERABLE_EXAMPLE)


def declined(question: Question, answer: str) -> FormPrompt:
    """Whether an answer declines."""
    return _prompt(_DECLINED, [case_text(question, options=False), f"Reply: {answer}"], _DECLINED_EXAMPLE)


def faithful(question: Question, documents: Sequence[Document], answer: str, words: int) -> FormPrompt:
    """Whether the documents support an answer."""
    parts = [f"Documents:\n{_listed(documents, words)}", case_text(question, options=False), f"Reply: {answer}"]
    return _prompt(_FAITHFUL, parts, _FAITHFUL_EXAMPLE)


def to_the_point(question: Question, answer: str) -> FormPrompt:
    """Whether an answer addresses the question."""
    parts = [case_text(question, options=False), f"Reply: {answer}"]
    return _prompt(_TO_THE_POINT, parts, _TO_THE_POINT_EXAMPLE)


def golden(item: Gold, words: int) -> Prompt:
    """Generate a golden answer from the question's content documents."""
    parts = [_GOLDEN, f"Text:\n{_listed(item.contents, words)}", case_text(item.question, options=False)]
    return Prompt.of("\n\n".join(parts))


def key_points(question: Question, answer: str) -> FormPrompt:
    """Extract the guideline, the key points, of a golden answer."""
    parts = [case_text(question, options=False), f"Ideal answer: {answer}"]
    return _prompt(_POINTS, parts, _POINTS_EXAMPLE)


def adherence(question: Question, points: Sequence[str], answer: str) -> FormPrompt:
    """How much of the guideline an answer covers."""
    listed = "\n".join(f"- {point}" for point in points)
    parts = [case_text(question, options=False), f"Guideline:\n{listed}", f"Answer: {answer}"]
    return _prompt(_ADHERENCE, parts, _ADHERENCE_EXAMPLE)


def needed(item: Gold) -> FormPrompt:
    """The statements of fact needed for the right answer."""
    right = item.answers[0] + "".join(f" (or: {answer})" for answer in item.answers[1:])
    parts = [case_text(item.question, options=False), f"Answer: {right}"]
    return _prompt(_NEEDED, parts, _NEEDED_EXAMPLE)


def attributed(question: Question, documents: Sequence[Document], statements: Sequence[str], words: int) -> FormPrompt:
    """Which of the statements the context supports."""
    listed = "\n".join(f"{number}. {statement}" for number, statement in enumerate(statements, start=1))
    documents_part = f"Documents:\n{_listed(documents, words)}"
    parts = [case_text(question, options=False), documents_part, f"Statements:\n{listed}"]
    return _prompt(_ATTRIBUTED, parts, _ATTRIBUTED_EXAMPLE)


def _choice(item: Gold) -> list[str]:
    assert item.right is not None, "the judge takes multiple choice"
    options = lettered(item.question.options)
    return [
        case_text(item.question, options=False),
        "Options:\n" + "\n".join(options),
        f"Right answer: {options[item.right]}",
    ]


def _listed(documents: Sequence[Document], words: int) -> str:
    return "\n".join(numbered(documents, words)) or "(none was found)"


def _prompt(task: str, parts: Sequence[str], example: WorkedExample) -> FormPrompt:
    return FormPrompt(task, "\n\n".join(parts), (example,))
