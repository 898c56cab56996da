"""An LRU cache bounded in bytes that counts its hits.

Used for rankings (by index hash and plan) and for embeddings (by text). Not thread-safe.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

ENTRY_BYTES = 200
"""Approximate bytes of an entry besides key and value: its slot in the ordered dictionary."""


class ByteCache(Generic[Key, Value]):
    """The most recently used entries; `size` gives the bytes of a key and its value."""

    def __init__(self, max_bytes: int, size: Callable[[Key, Value], int]) -> None:
        """`max_bytes` 0 keeps nothing."""
        self.max_bytes = max_bytes
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self._size = size
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        """The cached value, or None."""
        entry = self._entries.get(key)
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Key, value: Value) -> None:
        """Store a value and evict the least recently used ones; a value larger than the cache is not stored."""
        if key in self._entries:
            self.bytes -= self._entries.pop(key)[1]
        cost = ENTRY_BYTES + self._size(key, value)
        if cost > self.max_bytes:
            return
        self._entries[key] = (value, cost)
        self.bytes += cost
        while self.bytes > self.max_bytes:
            self.bytes -= self._entries.popitem(last=False)[1][1]


AnyCache = ByteCache[Any, Any]


def remembered(
    cache: ByteCache[Key, Value], keys: Iterable[Key], compute: Callable[[list[Key]], Sequence[Value]]
) -> dict[Key, Value]:
    """The value of every key; `compute` is called at most once, with the keys that the cache lacks, each once."""
    unique = dict.fromkeys(keys)
    values = {key: value for key in unique if (value := cache.get(key)) is not None}
    missing = [key for key in unique if key not in values]
    for key, value in zip(missing, compute(missing) if missing else (), strict=True):
        values[key] = value
        cache.put(key, value)
    return values
