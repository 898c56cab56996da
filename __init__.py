"""querylect: train query rewriters by reinforcement learning against the retriever they will really use."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .use.rewriter import Rewriter as Rewriter

__all__ = ["Rewriter", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`querylect.Rewriter`, imported when it is first asked for: it brings the libraries that models need."""
    if name == "Rewriter":
        from .use.rewriter import Rewriter

        return Rewriter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
