"""Answers of a fixed form that a pydantic model describes, read strictly: as one JSON object, or as labelled lines.

A reply must be one JSON object that validates, or the lines of llms/lines.py, and nothing else; thinking before it and
one code fence around it are taken off. A reply that is not gets one chance to be mended, shown its own text and what is
wrong with it. What is still wrong then is recorded as a failure with its text: it is neither dropped nor guessed at.

Whoever asks writes a prompt once (`FormPrompt`). As lines it becomes a chat: the task, an example and its answer, then
the case; and the answer begins with its first label, which is written for a model that runs here. Where it is mended,
what was right of it is written for the model too.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from ..configs.llm import AnswerForm
from . import lines
from .access import Llm
from .base import THINK_CLOSE, THINK_OPEN, Draw, Message, Prompt, Reply

Form = TypeVar("Form", bound=BaseModel)

_FENCE = re.compile(r"\A```(?:json|text)?\s*\n(.*)\n\s*```\Z", re.DOTALL)
_SHOWN_ERRORS = 5


@dataclass(frozen=True, slots=True)
class Example:
    """One worked answer."""

    case: str
    """As in a prompt."""
    answer: BaseModel

    @property
    def json(self) -> str:
        """The answer as one JSON object."""
        return json.dumps(self.answer.model_dump(mode="json", by_alias=True), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class FormPrompt:
    """A prompt for an answer of a fixed form, before it is said in which way that is written."""

    task: str
    """What is to be done with any case."""
    case: str
    version: str
    """Of the wording."""
    examples: tuple[Example, ...] = ()
    """Shown where answers are lines; JSON shows those that stand in `request`."""
    request: str = ""
    """How JSON is asked for; "" gives its schema."""
    request_last: bool = True
    """JSON: whether the request stands after the case, or before it."""
    gist: Mapping[str, str] = field(default_factory=dict)
    """Lines: what a part holds, by key, where the task does not say it."""

    def worded(self, form: type[BaseModel], way: AnswerForm = "json") -> Prompt:
        """What the model is asked."""
        if way == "lines":
            task = f"{self.task}\n\n{lines.request(form, self.gist)}"
            chat: list[Message] = []
            for example in self.examples:
                before = f"{task}\n\n" if not chat else ""
                chat.append(Message(role="user", content=f"{before}{example.case}"))
                chat.append(Message(role="assistant", content=lines.render(example.answer)))
            chat.append(Message(role="user", content=self.case if chat else f"{task}\n\n{self.case}"))
            return Prompt(tuple(chat), version_in(self.version, way), lines.opening(form))
        request = self.request or instructions(form)
        parts = [self.task, self.case, request] if self.request_last else [self.task, request, self.case]
        return Prompt((Message(role="user", content="\n\n".join(part for part in parts if part)),), self.version)


def version_in(version: str, way: AnswerForm) -> str:
    """The version of a wording whose answers are written in that way."""
    return version if way == "json" else f"{version}/{way}"


@dataclass(frozen=True, slots=True)
class Structured(Generic[Form]):
    """What became of one prompt: exactly one of a value, a failure, or neither, which is a missing reply."""

    value: Form | None = None
    failure: str = ""
    """What is wrong with the last text; "" where there is a value or no reply."""
    text: str = ""
    """The last text."""
    repaired: bool = False
    """Whether the first text was wrong and the model was asked again."""
    replies: tuple[Reply, ...] = field(default=(), compare=False, repr=False)
    """What the model replied, for the costs: none, one, or two where it was asked again."""

    @property
    def missing(self) -> bool:
        """Whether the model did not reply."""
        return self.value is None and not self.failure


def ask_structured(
    llm: Llm, prompts: Sequence[Prompt | FormPrompt], form: type[Form], draw: Draw, way: AnswerForm = "json"
) -> list[Structured[Form]]:
    """One value of `form` for each prompt, in their order; `draw.n` must be 1. Raises as `Llm.ask`.

    A plain `Prompt` is asked as it is: it must itself ask for what `way` says.
    """
    if draw.n != 1:
        raise ValueError(f"n is {draw.n}; a structured answer is one text")
    asked = [prompt if isinstance(prompt, Prompt) else prompt.worded(form, way) for prompt in prompts]
    outcomes: list[Structured[Form]] = []
    for reply in llm.ask(asked, draw):
        if reply is None:
            outcomes.append(Structured())
        else:
            outcomes.append(_read_reply(reply, form, way))
    wrong = [place for place, outcome in enumerate(outcomes) if outcome.failure]
    again = [_repair(asked[place], outcomes[place], form, way) for place in wrong]
    for place, reply in zip(wrong, llm.ask(again, draw) if again else [], strict=True):
        if reply is not None:
            second = _read_reply(reply, form, way)
            outcomes[place] = replace(second, repaired=True, replies=(*outcomes[place].replies, reply))
    return outcomes


def read(text: str, form: type[Form], way: AnswerForm = "json", finished: bool = True) -> Structured[Form]:
    """Read one text strictly; `finished` says whether it came to its end."""
    body = without_thinking(text).strip()
    if fenced := _FENCE.match(body):
        body = fenced[1]
    said, order = body, ""
    if way == "lines":
        found = lines.read_lines(body, form, finished)
        said, order = json.dumps(found.values), found.failure
    try:
        value = form.model_validate_json(said, strict=True)
    except ValidationError as error:
        wrong = [f"{where or 'the answer'}: {what}" for where, what in _problems(error)]
        return Structured(failure="; ".join([order, *wrong] if order else wrong), text=text)
    return Structured(failure=order, text=text) if order else Structured(value=value, text=text)


def without_thinking(text: str) -> str:
    """`text` without a <think> part that it begins with; the empty text where that part never ends."""
    return parted(text)[1]


def parted(text: str) -> tuple[str, str]:
    """The thinking of a <think> part that `text` begins with, and what stands behind it; "" and `text` without one."""
    start = text.lstrip()
    if not start.startswith(THINK_OPEN):
        return "", text
    thinking, _, rest = start.removeprefix(THINK_OPEN).partition(THINK_CLOSE)
    return thinking, rest


def instructions(form: type[BaseModel]) -> str:
    """The sentence that asks for `form` as JSON, for the end of a prompt."""
    schema = json.dumps(form.model_json_schema(), ensure_ascii=False)
    return f"Answer with one JSON object and nothing else. It must fit this JSON schema:\n{schema}"


def _read_reply(reply: Reply, form: type[Form], way: AnswerForm) -> Structured[Form]:
    said = reply.texts[0]
    return replace(read(said.text, form, way, said.finished), replies=(reply,))


def _problems(error: ValidationError) -> list[tuple[str, str]]:
    """The first errors: the field, and what is wrong with it."""
    told = error.errors(include_url=False, include_context=False, include_input=False)[:_SHOWN_ERRORS]
    return [(".".join(map(str, one["loc"])), one["msg"]) for one in told]


def _repair(prompt: Prompt, wrong: Structured, form: type[BaseModel], way: AnswerForm) -> Prompt:
    # The labels alone: a small model copies what stands behind them in the request.
    labels = ", ".join(lines.labels_of(form)) if way == "lines" else ""
    request = f"Write all of it again, each of these labels on a line of its own: {labels}" if labels else ""
    ask = f"Your answer does not have the required form: {wrong.failure}.\n{request or instructions(form)}"
    said = Message(role="assistant", content=wrong.text)
    opening = lines.opening(form, _right(wrong, form)) if way == "lines" else ""
    return Prompt((*prompt.messages, said, Message(role="user", content=ask)), prompt.version, opening)


def _right(wrong: Structured, form: type[BaseModel]) -> dict[str, Any]:
    """The values of the first parts of a wrong answer in lines, those before the part that is wrong."""
    finished = wrong.replies[-1].texts[0].finished
    values = lines.read_lines(without_thinking(wrong.text).strip(), form, finished).values
    try:
        form.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        refused = {str(one["loc"][0]) for one in error.errors() if one["loc"]}
        kept: dict[str, Any] = {}
        for key in (part.key for part in lines.parts_of(form)):
            if key in refused or key not in values:
                return kept
            kept[key] = values[key]
    return {}
