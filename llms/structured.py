"""Answers of a fixed form: JSON that a pydantic model describes, read strictly.

A reply must be one JSON object that validates, and nothing else; thinking before it and one code fence around it are
taken off. A reply that is not gets one chance to be mended, shown its own text and what is wrong with it. What is still
wrong then is recorded as a failure with its text: it is neither dropped nor guessed at.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from .access import Llm
from .base import Draw, Message, Prompt, Reply

Form = TypeVar("Form", bound=BaseModel)

_FENCE = re.compile(r"\A```(?:json)?\s*\n(.*)\n\s*```\Z", re.DOTALL)
_SHOWN_ERRORS = 5


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


def ask_structured(llm: Llm, prompts: Sequence[Prompt], form: type[Form], draw: Draw) -> list[Structured[Form]]:
    """One value of `form` for each prompt, in their order; `draw.n` must be 1. Raises as `Llm.ask`."""
    if draw.n != 1:
        raise ValueError(f"n is {draw.n}; a structured answer is one text")
    outcomes: list[Structured[Form]] = []
    for reply in llm.ask(prompts, draw):
        if reply is None:
            outcomes.append(Structured())
        else:
            outcomes.append(replace(read(reply.texts[0].text, form), replies=(reply,)))
    wrong = [place for place, outcome in enumerate(outcomes) if outcome.failure]
    again = [_repair(prompts[place], outcomes[place], form) for place in wrong]
    for place, reply in zip(wrong, llm.ask(again, draw) if again else [], strict=True):
        if reply is not None:
            second = read(reply.texts[0].text, form)
            replies = (*outcomes[place].replies, reply)
            outcomes[place] = replace(second, repaired=True, replies=replies)
    return outcomes


def read(text: str, form: type[Form]) -> Structured[Form]:
    """Read one text strictly."""
    body = without_thinking(text).strip()
    if fenced := _FENCE.match(body):
        body = fenced[1]
    try:
        return Structured(value=form.model_validate_json(body, strict=True), text=text)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)[:_SHOWN_ERRORS]
        said = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'the answer'}: {one['msg']}" for one in problems)
        return Structured(failure=said, text=text)


def without_thinking(text: str) -> str:
    """`text` without a <think> part that it begins with; the empty text where that part never ends."""
    start = text.lstrip()
    return start.partition("</think>")[2] if start.startswith("<think>") else text


def instructions(form: type[BaseModel]) -> str:
    """The sentence that asks for `form`, for the end of a prompt."""
    schema = json.dumps(form.model_json_schema(), ensure_ascii=False)
    return f"Answer with one JSON object and nothing else. It must fit this JSON schema:\n{schema}"


def _repair(prompt: Prompt, wrong: Structured, form: type[BaseModel]) -> Prompt:
    ask = f"Your answer does not have the required form: {wrong.failure}.\n{instructions(form)}"
    said = Message(role="assistant", content=wrong.text)
    return Prompt((*prompt.messages, said, Message(role="user", content=ask)), prompt.version)
