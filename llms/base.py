"""The contract of a language model that is asked: chat messages in, texts with token counts out.

A reply is whole or it is *missing* (None): a model that could not be reached, or refused, never said the empty text.
An empty text is what a model really answered.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypedDict

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
"""Around what a thinking model writes before its answer."""


class Message(TypedDict):
    """One chat message in the form that chat templates take."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model is asked."""

    messages: tuple[Message, ...]
    version: str = ""
    """The version of the wording, for results that name it; another version is another prompt."""
    opening: str = ""
    """What the answer begins with. A local model finds it written in its turn, and its texts begin with it; an endpoint
    cannot be told and begins by itself."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How to sample. `temperature` 0 is greedy."""

    n: int = 1
    """Texts for each prompt."""
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 256
    seed: int = 0
    first_logprobs: int = 0
    """How many likeliest first tokens to give with their log-probabilities; 0 gives none."""


@dataclass(frozen=True, slots=True)
class Text:
    """One sampled text."""

    text: str
    finished: bool
    """False where it was cut at `max_tokens`."""
    first: Mapping[str, float] = field(default_factory=dict)
    """Log-probability by first token after the opening, before temperature; as many as were asked for."""


@dataclass(frozen=True, slots=True)
class Reply:
    """All texts for one prompt. Token counts are None where the endpoint does not say them."""

    texts: tuple[Text, ...]
    prompt_tokens: int | None
    tokens: int | None
    """Tokens of all texts together."""

    def to_json(self) -> str:
        """One line that `from_json` reads back."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> "Reply":
        """Raises ValueError, KeyError or TypeError for what `to_json` did not write."""
        row = json.loads(line)
        return cls(**{**row, "texts": tuple(Text(**text) for text in row["texts"])})


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a prompt has no reply."""

    reason: str


Deliver = Callable[[int, Reply | Failure], None]
"""Takes the outcome of the prompt at a place, as soon as it is there."""


class Backend(Protocol):
    """Where a model runs."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything about the model that its replies depend on, as plain data."""
        ...

    def generate(self, prompts: Sequence[Prompt], draw: Draw, deliver: Deliver, costs: "Costs") -> None:
        """Ask all prompts and deliver each outcome once, in any order.

        Raises QuerylectError where going on is useless; what was delivered before stays valid.
        """
        ...


@dataclass(slots=True)
class Costs:
    """What was spent on a model since it was opened."""

    calls: int = 0
    """Prompts that the model answered."""
    cached: int = 0
    """Prompts whose reply was known already, from the cache or from the same batch."""
    retries: int = 0
    """Requests that were made again."""
    prompt_tokens: int = 0
    """Tokens read in calls, as far as the endpoint says; tokens written alike."""
    tokens: int = 0
    missing: Counter[str] = field(default_factory=Counter)
    """Prompts without a reply, by reason."""

    def count(self, outcome: Reply | Failure) -> None:
        """Count the outcome of one call."""
        if isinstance(outcome, Failure):
            self.missing[outcome.reason] += 1
            return
        self.calls += 1
        self.prompt_tokens += outcome.prompt_tokens or 0
        self.tokens += outcome.tokens or 0

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "missing": dict(self.missing)}
