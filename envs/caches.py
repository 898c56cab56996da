"""A cache bounded in bytes that forgets what was not asked for the longest, and counts its hits.

Used for rankings (by index hash and plan) and for embeddings (by text). One thread at a time may use it.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

ENTRY_BYTES = 200
"""Rough cost of an entry besides key and value: its place in the dictionary and in the order of use."""


class ByteCache(Generic[Key, Value]):
    """The entries used last; `size` gives what a key and its value take, in bytes."""

    def __init__(self, room: int, size: Callable[[Key, Value], int]) -> None:
        """`room` in bytes; 0 keeps nothing."""
        self.room = room
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self._size = size
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        """The value kept for the key, or None."""
        entry = self._entries.get(key)
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Key, value: Value) -> None:
        """Keep a value and drop the oldest while there is no room; one that is larger than all room is not kept."""
        if key in self._entries:
            self.bytes -= self._entries.pop(key)[1]
        cost = ENTRY_BYTES + self._size(key, value)
        if cost > self.room:
            return
        self._entries[key] = (value, cost)
        self.bytes += cost
        while self.bytes > self.room:
            self.bytes -= self._entries.popitem(last=False)[1][1]


def remembered(
    cache: ByteCache[Key, Value], keys: Iterable[Key], compute: Callable[[list[Key]], Sequence[Value]]
) -> dict[Key, Value]:
    """The value of every key; `compute` is called at most once, with the keys that the cache lacks, each once."""
    wanted = dict.fromkeys(keys)
    found = {key: value for key in wanted if (value := cache.get(key)) is not None}
    new = [key for key in wanted if key not in found]
    for key, value in zip(new, compute(new) if new else (), strict=True):
        found[key] = value
        cache.put(key, value)
    return found
