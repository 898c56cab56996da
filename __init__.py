"""querylect: train query rewriters by reinforcement learning against the retriever they will really use.

The public names are imported lazily, since they load large libraries: `Rewriter`, and the two names that the library
*verifiers* looks up in a top-level package (`vf-eval querylect`).
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .version import __version__ as __version__

__all__ = ["RetrievalEnv", "RetrievalTaskset", "Rewriter"]

if TYPE_CHECKING:
    from .envs.adapters.verifiers import RetrievalEnv, RetrievalTaskset
    from .inference.rewriter import Rewriter
else:

    def __getattr__(name: str) -> type:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = ".inference.rewriter" if name == "Rewriter" else ".envs.adapters.verifiers"
        return getattr(import_module(module, __name__), name)
