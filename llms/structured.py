"""Answers of a fixed form that a pydantic model describes.

An endpoint gets the JSON schema with the request, unless the prompt asks for thinking before the answer; a server that
ignores it is read by json-repair. A local model writes labelled lines (llms/lines.py). An answer that does not fit, or
was cut off, is sent back once with what is wrong with it; if the second text does not fit either, it is a failure.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import json_repair
from pydantic import BaseModel, ValidationError

from ..envs.plan import is_unicode
from . import lines
from .access import Llm
from .base import THINK_OPEN, LlmResponse, Message, Prompt, SamplingParams
from .prose import answer_of

Form = TypeVar("Form", bound=BaseModel, covariant=True)


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


def worked(examples: Iterable[Mapping[str, Any]], form: type[BaseModel]) -> tuple[WorkedExample, ...]:
    """The examples of a template: mappings of `case`, and `answer` as data."""
    return tuple(WorkedExample(example["case"], form.model_validate(example["answer"])) for example in examples)


@dataclass(frozen=True, slots=True)
class FormPrompt:
    """A prompt for an answer of a fixed form."""

    task: str
    """The instructions for any case."""
    case: str
    examples: tuple[WorkedExample, ...] = ()
    """For answers in lines: earlier turns of the chat."""
    request: str = ""
    """The request for JSON, between task and case; "" is one with the schema."""
    hints: Mapping[str, str] = field(default_factory=dict)
    """Lines: a description of fields by key."""

    def worded(self, form: type[BaseModel], as_json: bool) -> Prompt:
        """The prompt for an answer as JSON, or in lines after the examples."""
        if as_json:
            text = "\n\n".join([self.task, self.request or instructions(form), self.case])
            return replace(Prompt.of(text), schema="" if THINK_OPEN in text else strict_schema(form))
        task, chat = f"{self.task}\n\n{lines.request(form, self.hints)}\n\n", list[Message]()
        for example in (*self.examples, None):
            chat.append(Message(role="user", content=f"{'' if chat else task}{example.case if example else self.case}"))
            if example:
                chat.append(Message(role="assistant", content=lines.render(example.answer)))
        return Prompt(tuple(chat), lines.opening(form))


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
    llm: Llm, prompts: Sequence[FormPrompt], form: type[Form], draw: SamplingParams
) -> list[Structured[Form]]:
    """One value of `form` for each prompt, in their order, from the first text of each reply. Raises as `Llm.ask`."""
    chats = [prompt.worded(form, llm.json_answers) for prompt in prompts]
    outcomes = [_read_reply(reply, form, llm.json_answers) for reply in llm.ask(chats, draw)]
    failed = [index for index, outcome in enumerate(outcomes) if outcome.failure]
    repairs = [_repair(chats[index], outcomes[index], form, llm.json_answers) for index in failed]
    for index, reply in zip(failed, llm.ask(repairs, draw) if repairs else [], strict=True):
        if reply is not None:
            second = _read_reply(reply, form, llm.json_answers)
            outcomes[index] = replace(second, replies=(*outcomes[index].replies, reply))
    return outcomes


def read(text: str, form: type[Form], as_json: bool = True, finished: bool = True) -> Structured[Form]:
    """Parse one text; `finished` says whether it was completed."""
    split = answer_of(text)
    if split.failure or (as_json and not finished):
        return Structured(failure=f"the answer: {split.failure or 'cut off at its token limit'}", text=text)
    answer = split.answer if finished else split.answer.rpartition("\n")[0]  # half a line may be another value
    try:
        values: Any = json_repair.loads(answer) if as_json else lines.read(answer, form)
    except (RecursionError, ValueError):
        return Structured(failure="the answer: nested too deeply", text=text)
    if isinstance(values, list):  # several values in one text: the last object is the answer
        values = next((value for value in reversed(values) if isinstance(value, dict)), values)
    if not is_unicode(text + json.dumps(values, ensure_ascii=False)):
        return Structured(failure="the answer: half a character", text=text)
    try:
        return Structured(value=form.model_validate(values), text=text)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)[:5]
        problems = [f"{'.'.join(map(str, e['loc'])) or 'the answer'}: {e['msg']}" for e in errors]
        return Structured(failure="; ".join(problems), text=text)


def strict_schema(form: type[BaseModel]) -> str:
    """The JSON schema of a form in the dialect of strict structured outputs, as JSON."""
    from openai import pydantic_function_tool

    schema: Any = pydantic_function_tool(form, name="answer")["function"]["parameters"]
    return json.dumps(schema, sort_keys=True)


def instructions(form: type[BaseModel]) -> str:
    """The sentence that asks for `form` as JSON."""
    schema = json.dumps(form.model_json_schema(), ensure_ascii=False)
    return f"Answer with one JSON object and nothing else. It must fit this JSON schema:\n{schema}"


def _read_reply(reply: LlmResponse | None, form: type[Form], as_json: bool) -> Structured[Form]:
    if reply is None:
        return Structured()
    return replace(read(reply.texts[0].text, form, as_json, reply.texts[0].finished), replies=(reply,))


def _repair(prompt: Prompt, outcome: Structured[BaseModel], form: type[BaseModel], as_json: bool) -> Prompt:
    labels = ", ".join(field.label for field in lines.fields_of(form))
    # The labels alone: a small model copies whatever follows them in a request.
    request = (
        instructions(form) if as_json else f"Write all of it again, each of these labels on its own line: {labels}"
    )
    answer = Message(role="assistant", content=outcome.text.strip() or "(empty)")
    message = Message(role="user", content=f"Your answer does not fit: {outcome.failure}.\n{request}")
    schema = strict_schema(form) if as_json else ""
    return replace(prompt, messages=(*prompt.messages, answer, message), schema=schema)
