"""A bounded memory of computed values: what is missing is computed together, what was not asked for longest goes."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Memo(Generic[Key, Value]):
    """At most `room` values by key. Not thread-safe."""

    def __init__(self, room: int) -> None:
        self._room = max(1, room)
        self._known: OrderedDict[Key, Value] = OrderedDict()

    def get_all(self, keys: Iterable[Key], compute: Callable[[list[Key]], Sequence[Value]]) -> dict[Key, Value]:
        """The value of every key; `compute` is called at most once, with the keys that are not known, each once."""
        wanted = dict.fromkeys(keys)
        new = [key for key in wanted if key not in self._known]
        fresh = dict(zip(new, compute(new), strict=True)) if new else {}
        found = {key: fresh[key] if key in fresh else self._known[key] for key in wanted}
        for key, value in found.items():
            self._known[key] = value
            self._known.move_to_end(key)
        while len(self._known) > self._room:
            self._known.popitem(last=False)
        return found
