"""querylect: train query rewriters by reinforcement learning against the retriever they will really use.

The library *verifiers* finds an environment by the name of a top-level package, so this one offers it what
`envs/adapters/verifiers.py` holds, imported where it is asked for: `vf-eval querylect`.
"""

from typing import TYPE_CHECKING

__all__ = ["RetrievalEnv", "RetrievalTaskset"]
__version__ = "0.1.0"

if TYPE_CHECKING:
    from .envs.adapters.verifiers import RetrievalEnv, RetrievalTaskset
else:

    def __getattr__(name: str) -> type:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .envs.adapters import verifiers

        return getattr(verifiers, name)
