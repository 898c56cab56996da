"""What writer and judge are asked (seed 002, sections 5.1.1 and 5.1.2, appendices H.1 and H.2), in our own words.

The writer is a teacher who sets an examination, as the paper's is, with the same instructions and the same key; the
example is this project's. The wording for the judge is not printed (listing 2 is empty): what the paper says of it is
kept, a step-by-step explanation and then the verdict.
"""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from ..data.types import Document
from ..llms.base import Message, Prompt
from ..llms.structured import Example, FormPrompt

WRITER_VERSION = "qb-rag-questions-1"
JUDGE_VERSIONS = {"structured": "qb-rag-judge-1", "yes_no": "qb-rag-judge-yes-no-1"}
"""To be raised with every change of the wording: they stand in every question index."""

_EXAMPLE_TEXT = (
    "Keep insulin that you are not using yet in the refrigerator, and never freeze it. The pen or vial in use may stay "
    "at room temperature for about four weeks. Heat spoils insulin, so do not leave it in a parked car."
)
_JUDGE = (
    "Decide whether a text answers a question. It does where everything that the question asks for can be answered "
    "from the text alone; being about the same subject is not enough."
)


class Written(BaseModel):
    """The writer's answer."""

    model_config = ConfigDict(extra="forbid")

    questions: list[str]


class Verdict(BaseModel):
    """The judge's answer: first the reasons, then what follows from them."""

    model_config = ConfigDict(extra="forbid")

    explanation: str
    answerable: bool


_WRITTEN = Example(
    f"Text: {_EXAMPLE_TEXT}\nQuestions:",
    Written(
        questions=[
            "Where should I keep the insulin that I have not opened yet?",
            "How long can the pen that I am using stay out of the refrigerator?",
            "Can I leave my insulin in the car on a hot day?",
        ]
    ),
)
_JUDGED = Example(
    f"Text: {_EXAMPLE_TEXT}\n\nQuestion: May I freeze insulin?",
    Verdict(explanation="It asks about freezing, and the text says never to freeze it.", answerable=True),
)


def writer_prompt(content: Document, count: int, about: str, words: int) -> FormPrompt:
    """What the writer is asked."""
    task = [
        f"You are a teacher who prepares an examination. Set {count} questions that together cover all of the text "
        "below, each about something else. Ask only about what the text itself says.",
        f"The text was {about}. Write the questions that it was written to answer, as the people whom it addresses "
        "would ask them: in the first person, with details, in words that a high-school student understands. Each must "
        "be answerable from the text alone; do not copy its sentences.",
    ]
    request = (
        f'Give at least {count} questions, as one JSON object with the key "questions" and nothing else. An example of '
        f"form and style, with three questions:\n\n{_WRITTEN.case} {_WRITTEN.json}"
    )
    case = f"Now this text. Use what it says and no other knowledge.\nText: {cut(content, words)}\nQuestions:"
    return FormPrompt("\n\n".join(task), case, WRITER_VERSION, (_WRITTEN,), request, request_last=False)


def judge_prompt(question: str, content: Document, words: int) -> FormPrompt:
    """Whether a content answers a question: an explanation and a verdict."""
    request = (
        "Think step by step: what does the question ask for, what does the text say about it, is anything missing? "
        'Answer with one JSON object and nothing else: {"explanation": your reasoning in a few sentences, '
        '"answerable": true or false}.'
    )
    return FormPrompt(_JUDGE, _pair(question, content, words), JUDGE_VERSIONS["structured"], (_JUDGED,), request)


def yes_no_prompt(question: str, content: Document, words: int) -> Prompt:
    """The same, for a verdict in one word."""
    said = "\n\n".join([_JUDGE, _pair(question, content, words), "Answer with Yes or No and nothing else."])
    return Prompt((Message(role="user", content=said),), JUDGE_VERSIONS["yes_no"])


def _pair(question: str, content: Document, words: int) -> str:
    return f"Text: {cut(content, words)}\n\nQuestion: {question}"


def cut(content: Document, words: int) -> str:
    """Title and text in at most so many words."""
    kept = content.contents.split()
    return " ".join(kept[:words])


def yes_or_no(text: str, first: Mapping[str, float]) -> bool | None:
    """The verdict in a first token: the likelier of Yes and No where probabilities are known, else the word itself.

    None where neither is there.
    """
    known: dict[str, float] = {}
    for token, logprob in first.items():
        word = _word(token)
        if word in ("yes", "no"):
            known[word] = max(logprob, known.get(word, logprob))
    if known:
        return known.get("yes", float("-inf")) > known.get("no", float("-inf"))
    return {"yes": True, "no": False}.get(_word(text))


def _word(text: str) -> str:
    return text.strip().strip(".!,*\"'").casefold()
