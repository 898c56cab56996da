"""querylect: train query rewriters by reinforcement learning against the retriever they will really use.

The public names are imported lazily, since they load large libraries: `train`, `Rewriter`, `load_config`, the client of
a running service, its reward as a function for other trainers, and the two names that the library *verifiers* looks up
in a top-level package (`vf-eval querylect`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__ as __version__

__all__ = [
    "ClientConfig",
    "EnvironmentClient",
    "RetrievalEnv",
    "RetrievalTaskset",
    "Rewriter",
    "load_config",
    "reward_function",
    "train",
]

if TYPE_CHECKING:
    from . import train
    from .configs.load import load_config
    from .configs.schema import ClientConfig
    from .envs.adapters.verifiers import RetrievalEnv, RetrievalTaskset
    from .envs.client.client import EnvironmentClient
    from .inference.adapters.reward import reward_function
    from .inference.rewriter import Rewriter
else:
    _MODULES = {
        "ClientConfig": ".configs.schema",
        "RetrievalEnv": ".envs.adapters.verifiers",
        "RetrievalTaskset": ".envs.adapters.verifiers",
        "Rewriter": ".inference.rewriter",
        "EnvironmentClient": ".envs.client.client",
        "load_config": ".configs.load",
        "reward_function": ".inference.adapters.reward",
    }

    def __getattr__(name: str) -> Any:
        if name == "train":
            return import_module(".train", __name__)
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULES[name], __name__), name)

    def __dir__() -> list[str]:
        return sorted([*__all__, "__version__"])
