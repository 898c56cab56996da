"""Training: GRPO on trees, credit assignment, packed rows, run folders, trackers.

The package is callable: `querylect.train("demo", ["train.steps=20"])` trains from Python (`call.py`), and help shows
what the call takes.
"""

import sys
from inspect import signature
from types import ModuleType

from .call import train as _train


class _Callable(ModuleType):
    __call__ = staticmethod(_train)


__doc__ = _train.__doc__ or ""
__signature__ = signature(_train)
sys.modules[__name__].__class__ = _Callable
