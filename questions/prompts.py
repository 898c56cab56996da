"""Prompts of writer and judge (the QB-RAG paper, sections 5.1.1 and 5.1.2, appendices H.1 and H.2), in our own words.

As in the paper, the writer is a teacher who sets an examination, with the same instructions and the same JSON key; the
example is this project's. The paper does not print the judge's prompt (listing 2 is empty); ours follows its
description: a step-by-step explanation, then the verdict.
"""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from ..data.types import Document
from ..llms.base import Message, Prompt
from ..llms.structured import FormPrompt, WorkedExample

WRITER_VERSION = "qb-rag-questions-1"
JUDGE_VERSIONS = {"structured": "qb-rag-judge-1", "yes_no": "qb-rag-judge-yes-no-1"}
"""Raise these with every change of the wording: every question index records them."""

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


class OneQuestion(BaseModel):
    """The answer of a writer that is asked for a single question."""

    model_config = ConfigDict(extra="forbid")

    question: str


ONE_QUESTION_REQUEST = 'Answer with one JSON object and nothing else: {"question": "your question"}.'


class Verdict(BaseModel):
    """The judge's answer: first the reasons, then what follows from them."""

    model_config = ConfigDict(extra="forbid")

    explanation: str
    answerable: bool


_WRITER_EXAMPLE = WorkedExample(
    f"Text: {_EXAMPLE_TEXT}\nQuestions:",
    Written(
        questions=[
            "Where should I keep the insulin that I have not opened yet?",
            "How long can the pen that I am using stay out of the refrigerator?",
            "Can I leave my insulin in the car on a hot day?",
        ]
    ),
)
_JUDGE_EXAMPLE = WorkedExample(
    f"Text: {_EXAMPLE_TEXT}\n\nQuestion: May I freeze insulin?",
    Verdict(explanation="It asks about freezing, and the text says never to freeze it.", answerable=True),
)


def writer_prompt(content: Document, count: int, origin: str, words: int) -> FormPrompt:
    task = [
        f"You are a teacher who prepares an examination. Set {count} questions that together cover all of the text "
        "below, each about something else. Ask only about what the text itself says.",
        f"The text was {origin}. Write the questions that it was written to answer, as the people whom it addresses "
        "would ask them: in the first person, with details, in words that a high-school student understands. Each must "
        "be answerable from the text alone; do not copy its sentences.",
    ]
    request = (
        f'Give at least {count} questions, as one JSON object with the key "questions" and nothing else. An example of '
        f"form and style, with three questions:\n\n{_WRITER_EXAMPLE.case} {_WRITER_EXAMPLE.json}"
    )
    case = f"Now this text. Use what it says and no other knowledge.\nText: {cut(content, words)}\nQuestions:"
    return FormPrompt(
        "\n\n".join(task),
        case,
        WRITER_VERSION,
        (_WRITER_EXAMPLE,),
        request,
        request_last=False,
    )


def judge_prompt(question: str, content: Document, words: int) -> FormPrompt:
    """The prompt for the judge: whether a content answers a question, as an explanation and a verdict."""
    request = (
        "Think step by step: what does the question ask for, what does the text say about it, is anything missing? "
        'Answer with one JSON object and nothing else: {"explanation": your reasoning in a few sentences, '
        '"answerable": true or false}.'
    )
    return FormPrompt(
        _JUDGE,
        _pair(question, content, words),
        JUDGE_VERSIONS["structured"],
        (_JUDGE_EXAMPLE,),
        request,
    )


def yes_no_prompt(question: str, content: Document, words: int) -> Prompt:
    """The prompt for the judge that asks for a verdict in one word."""
    text = "\n\n".join([_JUDGE, _pair(question, content, words), "Answer with Yes or No and nothing else."])
    messages = (Message(role="user", content=text),)
    return Prompt(messages, JUDGE_VERSIONS["yes_no"])


def _pair(question: str, content: Document, words: int) -> str:
    return f"Text: {cut(content, words)}\n\nQuestion: {question}"


def cut(content: Document, words: int) -> str:
    """The first `words` words of title and text."""
    all_words = content.contents.split()
    return " ".join(all_words[:words])


def yes_or_no(text: str, first: Mapping[str, float]) -> bool | None:
    """The verdict in the first token: the likelier of Yes and No if log-probabilities are given, else the word itself.

    None if it is neither.
    """
    logprobs: dict[str, float] = {}
    for token, logprob in first.items():
        word = _word(token)
        if word in ("yes", "no"):
            logprobs[word] = max(logprob, logprobs.get(word, logprob))
    if logprobs:
        return logprobs.get("yes", float("-inf")) > logprobs.get("no", float("-inf"))
    return {"yes": True, "no": False}.get(_word(text))


def _word(text: str) -> str:
    return text.strip().strip(".!,*\"'").casefold()
