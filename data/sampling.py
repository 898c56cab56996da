"""The one way that a `limit` takes some of many: a random sample that depends on a seed and on ids alone.

Items are ordered by sha256 of the seed and their id. A sample of n is therefore the beginning of every larger sample of
the same seed, and the order of a file does not matter.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import nsmallest
from operator import attrgetter
from typing import Any, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Sample:
    """How many of how many were drawn."""

    size: int
    of: int
    seed: int

    def __str__(self) -> str:
        return f"{self.size:,} of {self.of:,}, drawn with seed {self.seed}"


def draw(
    items: Iterable[Item], limit: int | None, seed: int, id_of: Callable[[Item], str] = attrgetter("id")
) -> list[Item]:
    """`limit` items drawn with `seed`, in the order of the draw; all of them, in their own order, where it is None."""
    if limit is None:
        return list(items)
    return nsmallest(limit, items, key=lambda item: sample_key(seed, id_of(item)))


def draw_of_parts(items: Iterable[Item], limit: int | None, seed: int, part_of: Callable[[Item], str]) -> list[Item]:
    """`draw` of every part, part after part in the order in which they first appear. Items have an `id`."""
    parts: dict[str, list[Item]] = {}
    for item in items:
        parts.setdefault(part_of(item), []).append(item)
    return [item for part in parts.values() for item in draw(part, limit, seed)]


def sampled(size: int, of: int, limit: int | None, seed: int) -> Sample | None:
    """What to say of `size` items that a `limit` left of `of`; None where no limit is set or it left all."""
    return Sample(size, of, seed) if limit is not None and size < of else None


def sample_of(values: Any) -> Sample | None:
    """The sample that `results.json` describes; None where all questions were asked."""
    return Sample(int(values["size"]), int(values["of"]), int(values["seed"])) if values else None


def sample_key(seed: int, identifier: str) -> bytes:
    """Where an item stands in the order of the draw."""
    return hashlib.sha256(f"{seed}\0{identifier}".encode(errors="surrogatepass")).digest()
