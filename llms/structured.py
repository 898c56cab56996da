"""Answers of a fixed form that a pydantic model describes.

An endpoint gets the JSON schema with the request, unless the prompt asks for thinking before the answer; a server that
ignores it is read by json-repair. An answer that does not fit, or was cut off, is sent back once with what is wrong
with it; if the second text does not fit either, it is a failure.

A local model, which honours no schema, writes labelled lines: `Verdict: yes`, one value a line. A list repeats its
label, one line per item (`Missing: none` if it is empty); an item of several parts is one line, `Pieces: 1 | Jane
Austen wrote Emma.`. Other lines are ignored, and the answer ends where a label that has one value comes again: small
models go on.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_origin

import json_repair
from pydantic import BaseModel, ValidationError

from ..envs.plan import is_unicode
from .access import Llm
from .base import THINK_OPEN, LlmResponse, Message, Prompt, SamplingParams
from .prose import answer_of

Form = TypeVar("Form", bound=BaseModel, covariant=True)

_ROW = re.compile(r"[ \t>#*_-]*([^\W\d][\w ]*?(?: \d+)?)[ \t*_]*[:：][ \t*_]*(.*?)[ \t*_]*")
_PLACEHOLDER = re.compile(r"<[^<>]*>|…|\.{3}")


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

    @property
    def lines(self) -> str:
        """The answer as labelled lines."""
        rows, data = list[str](), self.answer.model_dump(mode="json", by_alias=True)
        for entry in _fields(type(self.answer)):
            for item in (data[entry.key] or ["none"]) if entry.listed else [data[entry.key]]:
                parts = item.values() if isinstance(item, dict) else [item]
                text = " | ".join({True: "yes", False: "no"}[p] if isinstance(p, bool) else str(p) for p in parts)
                rows.append(f"{entry.label}: {' '.join(text.split())}")
        return "\n".join(rows)


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
        rows = ["Answer with these lines and nothing else, each beginning with its label:"]
        for entry in (fields := list(_fields(form))):
            hint = self.hints.get(entry.key) or entry.hint
            more = " (one such line for each; none if there is none)" if entry.listed else ""
            rows.append(f"{entry.label}: <{hint}>{more}")
        chat, heading = list[Message](), "\n".join([self.task, "", *rows, "", ""])
        for example in self.examples:
            chat.append(Message(role="user", content=heading + example.case))
            chat.append(Message(role="assistant", content=example.lines))
            heading = ""
        return Prompt((*chat, Message(role="user", content=heading + self.case)), f"{fields[0].label}:")


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
    as_json = llm.json_answers

    def outcome_of(reply: LlmResponse | None) -> Structured[Form]:
        if reply is None:
            return Structured()
        return replace(read(reply.texts[0].text, form, as_json, reply.texts[0].finished), replies=(reply,))

    def repair(index: int) -> Prompt:
        labels = ", ".join(entry.label for entry in _fields(form))
        # The labels alone: a small model copies whatever follows them in a request.
        in_lines = f"Write all of it again, each of these labels on its own line: {labels}"
        problem = f"Your answer does not fit: {outcomes[index].failure}.\n"
        answer = Message(role="assistant", content=outcomes[index].text.strip() or "(empty)")
        message = Message(role="user", content=problem + (instructions(form) if as_json else in_lines))
        schema = strict_schema(form) if as_json else ""
        return replace(chats[index], messages=(*chats[index].messages, answer, message), schema=schema)

    chats = [prompt.worded(form, as_json) for prompt in prompts]
    outcomes = [outcome_of(reply) for reply in llm.ask(chats, draw)]
    failed = [index for index, outcome in enumerate(outcomes) if outcome.failure]
    for index, reply in zip(failed, llm.ask(list(map(repair, failed)), draw) if failed else [], strict=True):
        if reply is not None:
            outcomes[index] = replace(outcome_of(reply), replies=(*outcomes[index].replies, reply))
    return outcomes


def read(text: str, form: type[Form], as_json: bool = True, finished: bool = True) -> Structured[Form]:
    """Parse one text; `finished` says whether it was completed."""
    split = answer_of(text)
    if split.failure or (as_json and not finished):
        return Structured(failure=f"the answer: {split.failure or 'cut off at its token limit'}", text=text)
    answer = split.answer if finished else split.answer.rpartition("\n")[0]  # half a line may be another value
    try:
        values: Any = json_repair.loads(answer) if as_json else _read_lines(answer, form)
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


class _Field(NamedTuple):
    """One field of a form: a plain value, a list of them, or a list of models of plain values."""

    key: str
    listed: bool
    kind: Any
    parts: list[str]
    """The keys of an item that is a model."""

    @property
    def label(self) -> str:
        return self.key if not self.key.islower() else self.key.capitalize().replace("_", " ")

    @property
    def hint(self) -> str:
        kind = {bool: "yes or no", int: "number", float: "number"}.get(self.kind, "text")
        return " | ".join(self.parts) or " or ".join(map(str, get_args(self.kind))) or kind

    def value(self, text: str) -> str | dict[str, str]:
        """The value of a text, which pydantic converts."""
        if self.parts:
            return dict(zip(self.parts, map(str.strip, text.split("|", len(self.parts) - 1)), strict=False))
        text = text.strip('"“” ')
        return text if self.kind is str else text.strip(".").lower() if self.kind is bool else text.strip(".")


def _fields(form: type[BaseModel]) -> Iterator[_Field]:
    for name, info in form.model_fields.items():
        listed = get_origin(info.annotation) in (list, tuple)
        kind = get_args(info.annotation)[0] if listed else info.annotation
        parts = list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []
        yield _Field(info.alias or name, listed, kind, parts)


def _read_lines(text: str, form: type[BaseModel]) -> dict[str, Any]:
    """The values of labelled lines by key."""
    fields = {entry.label.casefold(): entry for entry in _fields(form)}
    values: dict[str, Any] = {}
    for row in text.splitlines():
        match = _ROW.fullmatch(row)
        entry = fields.get(match[1].casefold()) if match else None
        if match is None or entry is None or not match[2] or _PLACEHOLDER.fullmatch(match[2]):
            continue
        if entry.listed and match[2].lower().strip(".") == "none":
            values.setdefault(entry.key, [])
        elif entry.listed:
            values.setdefault(entry.key, []).append(entry.value(match[2]))
        elif entry.key in values:
            break
        else:
            values[entry.key] = entry.value(match[2])
    return values
