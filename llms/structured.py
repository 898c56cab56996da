"""Answers of a fixed form that a pydantic model describes: as one JSON object, or as labelled lines.

The object may be anywhere in the reply, with keys in any case; lines (llms/lines.py) are accepted where JSON was asked
for, and JSON for lines. Ambiguous answers are invalid: several different objects, an object that was cut off, a
placeholder, a value that does not fit. The model is then asked once more and shown its text and the problems; an
endpoint gets the JSON schema in that repair. If the second text is invalid too, it is recorded as a failure.

Callers write a prompt once (`FormPrompt`). As lines it becomes a chat: the task, an example and its answer, then the
case; the answer begins with its first label, which is prefilled for a local model. In a repair, the valid first parts
are prefilled too.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from ..configs.llm import AnswerForm
from ..envs.plan import is_unicode
from . import lines
from .access import Llm
from .base import LlmResponse, Message, Prompt, SamplingParams
from .json_answers import find_values
from .prose import answer_of, without_fences

Form = TypeVar("Form", bound=BaseModel, covariant=True)

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
    field_hints: Mapping[str, str] = field(default_factory=dict)
    """Lines: a description of each part, by key, if the task does not give it."""

    def worded(self, form: type[BaseModel], way: AnswerForm = "json") -> Prompt:
        """The prompt for an answer written in that way."""
        if way == "lines":
            task = f"{self.task}\n\n{lines.request(form, self.field_hints)}"
            chat: list[Message] = []
            for example in self.examples:
                prefix = f"{task}\n\n" if not chat else ""
                chat.append(Message(role="user", content=f"{prefix}{example.case}"))
                chat.append(Message(role="assistant", content=lines.render(example.answer)))
            chat.append(Message(role="user", content=self.case if chat else f"{task}\n\n{self.case}"))
            return Prompt(tuple(chat), version_in(self.version, way), lines.opening(form, {}))
        request = self.request or instructions(form)
        parts = [self.task, self.case, request] if self.request_last else [self.task, request, self.case]
        content = "\n\n".join(part for part in parts if part)
        return Prompt((Message(role="user", content=content),), self.version)


def version_in(version: str, way: AnswerForm) -> str:
    """The version of a wording whose answers are written in that way."""
    return version if way == "json" else f"{version}/{way}"


@dataclass(frozen=True, slots=True)
class Structured(Generic[Form]):
    """The outcome of one prompt: a value, a failure, or neither, which is a missing reply."""

    value: Form | None = None
    failure: str = ""
    """The problem of the last text; "" if there is a value or no reply."""
    text: str = ""
    """The last text."""
    replies: tuple[LlmResponse, ...] = field(default=(), compare=False, repr=False)
    """The replies of the model, for the costs: none, one, or two if it was asked again."""

    @property
    def missing(self) -> bool:
        """Whether the model did not reply."""
        return self.value is None and not self.failure


def ask_structured(
    llm: Llm, prompts: Sequence[Prompt | FormPrompt], form: type[Form], draw: SamplingParams, way: AnswerForm = "json"
) -> list[Structured[Form]]:
    """One value of `form` for each prompt, in their order, from the first text of each reply. Raises as `Llm.ask`.

    A plain `Prompt` is asked as it is: it must itself ask for an answer written in `way`.
    """
    plain_prompts = [prompt if isinstance(prompt, Prompt) else prompt.worded(form, way) for prompt in prompts]
    outcomes: list[Structured[Form]] = [
        _read_reply(reply, form, way) if reply is not None else Structured() for reply in llm.ask(plain_prompts, draw)
    ]
    failed = [index for index, outcome in enumerate(outcomes) if outcome.failure]
    repairs = [_repair(plain_prompts[index], outcomes[index], form, way) for index in failed]
    if llm.schemas and way == "json" and repairs:
        schema = strict_schema(form)
        repairs = [replace(prompt, schema=schema) for prompt in repairs]
    for index, reply in zip(failed, llm.ask(repairs, draw) if repairs else [], strict=True):
        if reply is not None:
            second = _read_reply(reply, form, way)
            outcomes[index] = replace(second, replies=(*outcomes[index].replies, reply))
    return outcomes


def read(text: str, form: type[Form], way: AnswerForm = "json", finished: bool = True) -> Structured[Form]:
    """Parse one text; `finished` says whether it was completed. `way` is tried first, then the other one."""
    split = answer_of(text)
    failure = split.failure if is_unicode(text) else "invalid unicode"
    if failure:
        return Structured(failure=f"the answer: {failure}", text=text)
    ways: Sequence[AnswerForm] = ("json", "lines") if way == "json" else ("lines", "json")
    outcomes = [_read_one(split.answer, form, syntax, finished) for syntax in ways]
    outcome = next((outcome for outcome in outcomes if outcome.value is not None), outcomes[0])
    return replace(outcome, text=text)


def _read_one(answer: str, form: type[Form], way: AnswerForm, finished: bool) -> Structured[Form]:
    """One value of the form; two that differ are ambiguous."""
    candidates: list[object]
    if way == "lines":
        candidates = [lines.read_lines(without_fences(answer), form, finished)]
    else:
        candidates = [inner for value in find_values(answer, finished) for inner in _objects(value)]
    values, problem = list[Form](), ""
    for candidate in candidates:
        try:
            values.append(form.model_validate(lines.fitted(candidate, form) if way == "json" else candidate))
        except ValidationError as error:
            errors = error.errors(include_url=False, include_context=False, include_input=False)[:_MAX_ERRORS]
            problem = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'the answer'}: {e['msg']}" for e in errors)
    if values and all(value == values[0] for value in values):
        return Structured(value=values[0])
    if values:
        return Structured(failure="the answer: several objects of the form, which differ; write one")
    return Structured(failure=problem or "the answer: no complete JSON object")


def _objects(value: object) -> list[object]:
    """A value, and the objects inside it."""
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value, *(inner for member in members if isinstance(member, dict) for inner in _objects(member))]


def strict_schema(form: type[BaseModel]) -> str:
    """The JSON schema of a form in the dialect of strict structured outputs, as JSON."""
    from openai import pydantic_function_tool

    schema: Any = pydantic_function_tool(form, name="answer")["function"]["parameters"]
    return json.dumps(schema, sort_keys=True)


def instructions(form: type[BaseModel]) -> str:
    """The sentence that asks for `form` as JSON, for the end of a prompt."""
    schema = json.dumps(form.model_json_schema(), ensure_ascii=False)
    return f"Answer with one JSON object and nothing else. It must fit this JSON schema:\n{schema}"


def _read_reply(reply: LlmResponse, form: type[Form], way: AnswerForm) -> Structured[Form]:
    text = reply.texts[0]
    return replace(read(text.text, form, way, text.finished), replies=(reply,))


def _repair(prompt: Prompt, outcome: Structured[BaseModel], form: type[BaseModel], way: AnswerForm) -> Prompt:
    # The labels alone: a small model copies whatever follows them in the request.
    labels = ", ".join(lines.labels_of(form)) if way == "lines" else ""
    request = f"Write all of it again, each of these labels on a line of its own: {labels}" if labels else ""
    instruction = f"Your answer does not have the required form: {outcome.failure}.\n{request or instructions(form)}"
    answer = Message(role="assistant", content=outcome.text.strip() or "(empty)")
    opening = lines.opening(form, _valid_prefix(outcome, form)) if way == "lines" else ""
    return Prompt((*prompt.messages, answer, Message(role="user", content=instruction)), prompt.version, opening)


def _valid_prefix(outcome: Structured[BaseModel], form: type[BaseModel]) -> dict[str, object]:
    """The values of the first fields of an invalid answer in lines, up to the first invalid one."""
    values = lines.read_lines(answer_of(outcome.text).answer, form, outcome.replies[-1].texts[0].finished)
    try:
        form.model_validate(values)
    except ValidationError as error:
        invalid = {str(entry["loc"][0]) for entry in error.errors() if entry["loc"]}
        keys = list(takewhile(lambda key: key not in invalid, (field.key for field in lines.fields_of(form))))
        return {key: values[key] for key in keys if key in values}
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
