"""The contract of a language model that is asked: chat messages in, texts with token counts out.

A reply is complete or it is *missing* (None): a model that refused or could not be reached gives None, never the empty
text. An empty text is a real answer.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Protocol, Self, TypedDict, TypeVar

T = TypeVar("T")

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
"""Tags around what a thinking model writes before its answer."""


def complete_sum(counts: Sequence[int | None]) -> int | None:
    """The sum; None if any count is unknown, as where an endpoint does not report it."""
    return None if None in counts else sum(count or 0 for count in counts)


class Message(TypedDict):
    """One chat message in the form that chat templates take."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request to a model."""

    messages: tuple[Message, ...]
    opening: str = ""
    """The start of the answer. It is prefilled for a local model, whose texts then include it; an endpoint gets no
    prefill."""
    schema: str = ""
    """The JSON schema of the answer, as JSON, for endpoints with structured outputs; "" for any text."""

    @classmethod
    def of(cls, text: str) -> Self:
        """One user message, for chat templates without a system role."""
        return cls((Message(role="user", content=text),))


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample. `temperature` 0 is greedy."""

    n: int = 1
    """Texts per prompt."""
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 256
    seed: int = 0
    first_logprobs: int = 0
    """How many of the likeliest first tokens to return with their log-probabilities; 0 returns none."""


@dataclass(frozen=True, slots=True)
class Text:
    """One sampled text."""

    text: str
    finished: bool
    """False if it was cut at `max_tokens`."""
    first: Mapping[str, float] = field(default_factory=dict)
    """Log-probability by first token after the opening, before temperature; as many as were requested."""


@dataclass(frozen=True, slots=True)
class LlmResponse:
    """All texts for one prompt. Token counts are None if the endpoint does not report them."""

    texts: tuple[Text, ...]
    prompt_tokens: int | None
    tokens: int | None
    """Tokens of all texts together."""


Deliver = Callable[[int, LlmResponse | str], None]
"""Takes the reply to the prompt at an index, or why there is none, as soon as it is available."""


class Backend(Protocol):
    """Where a model runs."""

    @property
    def identity(self) -> Mapping[str, object]:
        """Everything about the model that its replies depend on, as plain data."""

    def generate(self, prompts: Sequence[Prompt], draw: SamplingParams, deliver: Deliver) -> None:
        """Ask all prompts and deliver each outcome once, in any order.

        Raises QuerylectError if continuing is useless; outcomes delivered before stay valid.
        """


@dataclass(slots=True)
class Costs:
    """The costs of a model since it was opened."""

    calls: int = 0
    """Prompts that the model answered."""
    cached: int = 0
    """Prompts that needed no call: the reply came from the cache or from an equal prompt of the batch."""
    prompt_tokens: int = 0
    """Tokens read in calls, as far as the endpoint reports them; `tokens` counts those written."""
    tokens: int = 0
    missing: Counter[str] = field(default_factory=Counter)
    """Prompts without a reply, by reason."""

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "missing": dict(self.missing)}


def outside_loop(function: Callable[[], T]) -> T:
    """Call a function that runs an event loop: in a thread where the caller has one already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()
