"""Random samples for every `limit` setting; they depend only on a seed and on item ids.

Items are ordered by sha256 of the seed and their id. A sample of n is therefore a prefix of every larger sample with
the same seed, and the order of a file does not matter.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from operator import attrgetter
from typing import TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class QuestionSample:
    """Size of a sample, and of what it was drawn from."""

    size: int
    of: int
    seed: int

    def __str__(self) -> str:
        return f"{self.size:,} of {self.of:,}, drawn with seed {self.seed}"

    def of_questions(self) -> str:
        """As `str`, with what was drawn: "20 of 1,611 questions, drawn with seed 0"."""
        return str(self).replace(", drawn", " questions, drawn")


def in_batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """The items in their order, at most `size` at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))


def draw(
    items: Iterable[Item], limit: int | None, seed: int, id_of: Callable[[Item], str] = attrgetter("id")
) -> list[Item]:
    """`limit` items drawn with `seed`, in the order of the draw. Limit None: all items in their own order."""
    if limit is None:
        return list(items)
    return nsmallest(limit, items, key=lambda item: sample_key(seed, id_of(item)))


def spread(items: Sequence[Item], count: int) -> list[Item]:
    """`count` items at even distances, starting with the first."""
    taken = max(0, min(count, len(items)))
    return [items[index * len(items) // taken] for index in range(taken)]


def draw_of_parts(items: Iterable[Item], limit: int | None, seed: int, part_of: Callable[[Item], str]) -> list[Item]:
    """`draw` from each part; parts in order of first appearance. Items have an `id`."""
    parts: dict[str, list[Item]] = {}
    for item in items:
        parts.setdefault(part_of(item), []).append(item)
    return [item for part in parts.values() for item in draw(part, limit, seed)]


def sampled(size: int, total: int, limit: int | None, seed: int) -> QuestionSample | None:
    """The Sample of `size` items out of `total`; None if no limit is set or it kept all items."""
    return QuestionSample(size, total, seed) if limit is not None and size < total else None


def sample_key(seed: int, identifier: str) -> bytes:
    """Sort key of an item in the order of the draw."""
    return hashlib.sha256(f"{seed}\0{identifier}".encode(errors="surrogatepass")).digest()
