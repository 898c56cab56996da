"""Values that are computed only for the keys that a cache lacks. Not thread-safe."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from cachetools import LRUCache

Key = TypeVar("Key")
Value = TypeVar("Value")


def remembered(
    cache: LRUCache[Key, Value], keys: Iterable[Key], compute: Callable[[list[Key]], Sequence[Value]]
) -> dict[Key, Value]:
    """The value of every key; `compute` is called at most once, with the keys that the cache lacks, each once."""
    unique = dict.fromkeys(keys)
    values = {key: value for key in unique if (value := cache.get(key)) is not None}
    missing = [key for key in unique if key not in values]
    for key, value in zip(missing, compute(missing) if missing else (), strict=True):
        values[key] = cache[key] = value
    return values
