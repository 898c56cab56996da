"""The contract of a generation engine: prompt ids in, sampled ids out.

Log-probabilities are those with which the ids were really drawn: after temperature and after top_p, normalised over
what was left ("processed" in vLLM). At top_p 1 they are what a forward pass of the trainer gives.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ..random_streams import stream

if TYPE_CHECKING:
    from ..chat import Tokenizer


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion: its ids (the end-of-turn id included where it was sampled) and their log-probabilities."""

    ids: list[int]
    logprobs: list[float]
    finished: bool
    """Whether an end-of-turn id was sampled; False where max_new_tokens cut the completion."""
    first: Mapping[int, float] = field(default_factory=dict)
    """The likeliest first ids with their log-probabilities before temperature, where `Sampling` asks for them."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. `temperature` 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 64
    streams: tuple[int, ...] = ()
    """The random stream of each prompt (rollouts/random_streams.py); empty names them by their number."""
    first: int = 0
    """How many likeliest first ids are given; only the transformers engine gives any."""

    def streams_of(self, prompts: int) -> tuple[int, ...]:
        """The streams of this number of prompts."""
        return self.streams or tuple(stream(number) for number in range(prompts))


class WeightSync(Protocol):
    """Keeps an engine's weights up to date with the policy under training."""

    def refresh(self) -> object:
        """Bring the engine up to date before the rollouts of a step. Collective where weights are split over
        processes, or one engine is that of all."""
        ...

    def sleep(self) -> None:
        """There is no rollout for a while: the engine may give memory back until it is refreshed or asked."""
        ...


class Engine(Protocol):
    """Generates `n` completions for every prompt; each distinct prompt is prefilled once."""

    tokenizer: "Tokenizer"
    stop_ids: set[int]
    """Ids that end a turn."""

    def generate(self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling) -> list[list[Completion]]:
        """Return `n` samples for each prompt, in the order of the prompts."""
        ...


class StreamingEngine(Engine, Protocol):
    """An engine that takes requests at any time."""

    def wake(self) -> None:
        """Be ready for requests. Collective under ZeRO-3: every process calls it, also one that requests nothing."""
        ...

    def submit(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Future[Completion]]:
        """Begin `n` samples of a prompt, the same that `generate` gives for its stream, each done when it has ended."""
        ...

    def advance(self) -> bool:
        """Compute a little, where the engine computes in the thread that asks; False where others compute."""
        ...

    def cancel(self) -> None:
        """Drop all samples that have not ended."""
        ...
