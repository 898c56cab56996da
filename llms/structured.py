"""Answers of a fixed form that a pydantic model describes, parsed strictly: as one JSON object, or as labelled lines.

A reply must be one JSON object that validates, or the lines of llms/lines.py, and nothing else; thinking before it and
one code fence around it are removed. An invalid reply gets one repair: the model is shown its text and the problems. If
the second text is invalid too, it is recorded as a failure with its text, neither dropped nor guessed at.

Callers write a prompt once (`FormPrompt`). As lines it becomes a chat: the task, an example and its answer, then the
case; the answer begins with its first label, which is prefilled for a local model. In a repair, the valid first parts
are prefilled too.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from ..configs.llm import AnswerForm
from . import lines
from .access import Llm
from .base import THINK_CLOSE, THINK_OPEN, LlmResponse, Message, Prompt, SamplingParams

Form = TypeVar("Form", bound=BaseModel, covariant=True)

_FENCE = re.compile(r"\A```(?:json|text)?\s*\n(.*)\n\s*```\Z", re.DOTALL)
_MAX_ERRORS = 5


@dataclass(frozen=True, slots=True)
class WorkedExample:
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
    """A prompt for an answer of a fixed form, independent of how the answer is written (JSON or lines)."""

    task: str
    """The instructions for any case."""
    case: str
    version: str
    """The version of the wording."""
    examples: tuple[WorkedExample, ...] = ()
    """Used if answers are lines; for JSON, `request` contains its own examples."""
    request: str = ""
    """The request for JSON; "" is one with the schema."""
    request_last: bool = True
    """JSON: whether the request follows the case or precedes it."""
    gist: Mapping[str, str] = field(default_factory=dict)
    """Lines: a description of each part, by key, if the task does not give it."""

    def worded(self, form: type[BaseModel], way: AnswerForm = "json") -> Prompt:
        """The prompt for an answer written in that way."""
        if way == "lines":
            task = f"{self.task}\n\n{lines.request(form, self.gist)}"
            chat: list[Message] = []
            for example in self.examples:
                prefix = f"{task}\n\n" if not chat else ""
                chat.append(Message(role="user", content=f"{prefix}{example.case}"))
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
    """The outcome of one prompt: a value, a failure, or neither, which is a missing reply."""

    value: Form | None = None
    failure: str = ""
    """What is wrong with the last text; "" if there is a value or no reply."""
    text: str = ""
    """The last text."""
    repaired: bool = False
    """Whether the first text was invalid and the model was asked again."""
    replies: tuple[LlmResponse, ...] = field(default=(), compare=False, repr=False)
    """The replies of the model, for the costs: none, one, or two if it was asked again."""

    @property
    def missing(self) -> bool:
        """Whether the model did not reply."""
        return self.value is None and not self.failure


def ask_structured(
    llm: Llm, prompts: Sequence[Prompt | FormPrompt], form: type[Form], draw: SamplingParams, way: AnswerForm = "json"
) -> list[Structured[Form]]:
    """One value of `form` for each prompt, in their order; `draw.n` must be 1. Raises as `Llm.ask`.

    A plain `Prompt` is asked as it is: it must itself ask for an answer written in `way`.
    """
    if draw.n != 1:
        raise ValueError(f"n is {draw.n}; a structured answer is one text")
    plain_prompts = [prompt if isinstance(prompt, Prompt) else prompt.worded(form, way) for prompt in prompts]
    outcomes: list[Structured[Form]] = []
    for reply in llm.ask(plain_prompts, draw):
        if reply is None:
            outcomes.append(Structured())
        else:
            outcomes.append(_read_reply(reply, form, way))
    failed = [index for index, outcome in enumerate(outcomes) if outcome.failure]
    repairs = [_repair(plain_prompts[index], outcomes[index], form, way) for index in failed]
    for index, reply in zip(failed, llm.ask(repairs, draw) if repairs else [], strict=True):
        if reply is not None:
            second = _read_reply(reply, form, way)
            outcomes[index] = replace(second, repaired=True, replies=(*outcomes[index].replies, reply))
    return outcomes


def read(text: str, form: type[Form], way: AnswerForm = "json", finished: bool = True) -> Structured[Form]:
    """Parse one text strictly; `finished` says whether it was completed."""
    body = without_thinking(text).strip()
    if fenced := _FENCE.match(body):
        body = fenced[1]
    json_text, order_failure = body, ""
    if way == "lines":
        parsed = lines.read_lines(body, form, finished)
        json_text, order_failure = json.dumps(parsed.values), parsed.failure
    try:
        value = form.model_validate_json(json_text, strict=True)
    except ValidationError as error:
        problems = [f"{path or 'the answer'}: {message}" for path, message in _problems(error)]
        return Structured(failure="; ".join([order_failure, *problems] if order_failure else problems), text=text)
    return Structured(failure=order_failure, text=text) if order_failure else Structured(value=value, text=text)


def without_thinking(text: str) -> str:
    """`text` without a leading <think> part; the empty text if that part never ends."""
    return parted(text)[1]


def parted(text: str) -> tuple[str, str]:
    """The thinking of a leading <think> part, and the text after it; "" and `text` without one."""
    start = text.lstrip()
    if not start.startswith(THINK_OPEN):
        return "", text
    thinking, _, answer = start.removeprefix(THINK_OPEN).partition(THINK_CLOSE)
    return thinking, answer


def instructions(form: type[BaseModel]) -> str:
    """The sentence that asks for `form` as JSON, for the end of a prompt."""
    schema = json.dumps(form.model_json_schema(), ensure_ascii=False)
    return f"Answer with one JSON object and nothing else. It must fit this JSON schema:\n{schema}"


def _read_reply(reply: LlmResponse, form: type[Form], way: AnswerForm) -> Structured[Form]:
    text = reply.texts[0]
    return replace(read(text.text, form, way, text.finished), replies=(reply,))


def _problems(error: ValidationError) -> list[tuple[str, str]]:
    """The first errors: the field, and what is wrong with it."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)[:_MAX_ERRORS]
    return [(".".join(map(str, entry["loc"])), entry["msg"]) for entry in errors]


def _repair(prompt: Prompt, outcome: Structured, form: type[BaseModel], way: AnswerForm) -> Prompt:
    # The labels alone: a small model copies whatever follows them in the request.
    labels = ", ".join(lines.labels_of(form)) if way == "lines" else ""
    request = f"Write all of it again, each of these labels on a line of its own: {labels}" if labels else ""
    instruction = f"Your answer does not have the required form: {outcome.failure}.\n{request or instructions(form)}"
    answer = Message(role="assistant", content=outcome.text)
    opening = lines.opening(form, _valid_prefix(outcome, form)) if way == "lines" else ""
    return Prompt((*prompt.messages, answer, Message(role="user", content=instruction)), prompt.version, opening)


def _valid_prefix(outcome: Structured, form: type[BaseModel]) -> dict[str, object]:
    """The values of the first parts of an invalid answer in lines, up to the first invalid part."""
    finished = outcome.replies[-1].texts[0].finished
    values = lines.read_lines(without_thinking(outcome.text).strip(), form, finished).values
    try:
        form.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        invalid = {str(entry["loc"][0]) for entry in error.errors() if entry["loc"]}
        valid: dict[str, object] = {}
        for key in (part.key for part in lines.parts_of(form)):
            if key in invalid or key not in values:
                return valid
            valid[key] = values[key]
    return {}


Role = Literal["writer", "reader"]
"""Which of two models is asked: the reader writes answers and drafts of them, the writer everything else."""


@dataclass(frozen=True, slots=True)
class AskForm:
    """One prompt for an answer of a fixed form; the answer is a `llms.structured.Structured`.

    Whoever runs the method decides whether it is written as JSON or as lines; a plain `Prompt` asks for JSON.
    """

    prompt: Prompt | FormPrompt
    form: type[BaseModel]
    draw: SamplingParams
    role: Role = "writer"
