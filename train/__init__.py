"""Training: GRPO on trees, credit assignment, packed rows, run folders, trackers.

The package is callable: `querylect.train("demo", ["train.steps=20"])` trains from Python (`call.py`).
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


class _Callable(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> "Path":
        from .call import train

        return train(*args, **options)


sys.modules[__name__].__class__ = _Callable
