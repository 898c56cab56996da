"""The contract of a generation engine: prompt ids in, sampled ids out.

Log-probabilities are those with which the ids were really drawn: after temperature and after top_p, normalised over
what was left ("processed" in vLLM). At top_p 1 they are what a forward pass of the trainer gives.

Random numbers depend on what is sampled and not on what is sampled beside it. A stream is a 64-bit number that names
one place: a question of a step, a turn under it, a sample of that turn. Its random numbers are a hash of the name and
of how many were taken before (splitmix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
2014). So a tree is the same tree in whatever batch, order or process it grows, and a resumed run needs no saved state.
"""

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ...errors import ModelError

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
    """The random stream of each prompt; empty names them by their number."""
    first: int = 0
    """How many likeliest first ids are given; only the transformers engine gives any."""


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
    """Generates completions; each distinct prompt is prefilled once."""

    tokenizer: "Tokenizer"
    stop_ids: set[int]
    """Ids that end a turn."""

    def generate(self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling) -> list[list[Completion]]:
        """Return `n` samples for each prompt, in the order of the prompts."""
        ...


class StreamingEngine(Engine, Protocol):
    """An engine that takes requests at any time."""

    def submit(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Future[Completion]]:
        """Begin `n` samples of a prompt, the same that `generate` gives for its stream, each done when it has ended."""
        ...

    def advance(self) -> bool:
        """Compute a little, where the engine computes in the thread that asks; False where others compute."""
        ...

    def cancel(self) -> None:
        """Drop all samples that have not ended."""
        ...


def not_finite(model: str) -> ModelError:
    """The error of a model whose log-probabilities are NaN."""
    return ModelError(
        f"{model} answers with numbers that are not finite: its weights or its arithmetic overflowed. "
        "Start a new run from an earlier checkpoint, with a lower train.learning_rate or policy.dtype=float32."
    )


def stream(*names: object) -> int:
    """The stream named by `names`, a signed 64-bit number. Equal names give equal streams, in every process."""
    digest = hashlib.blake2b("\x1f".join(map(str, names)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
