"""The contract of a generation engine: prompt ids in, sampled ids out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion: its ids (the end-of-turn id included where it was sampled) and their log-probabilities."""

    ids: list[int]
    logprobs: list[float]
    finished: bool
    """Whether an end-of-turn id was sampled; False where max_new_tokens cut the completion."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. `temperature` 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 64
    streams: tuple[int, ...] = ()
    """The random stream of each prompt (rollouts/streams.py); empty draws from torch's global one."""


class Engine(Protocol):
    """Generates `n` completions for every prompt; each distinct prompt is prefilled once."""

    tokenizer: Any

    def generate(self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling) -> list[list[Sample]]:
        """Return `n` samples for each prompt, in the order of the prompts."""
        ...
