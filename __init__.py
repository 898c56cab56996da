"""querylect: train query rewriters by reinforcement learning against the retriever they will really use.

The public names are imported lazily, since they load large libraries: `train`, `Rewriter`, `load_config`, the client of
a running service, its reward as a function for other trainers, and the two names that the library *verifiers* looks up
in a top-level package (`vf-eval querylect`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__ as __version__

if TYPE_CHECKING:
    from . import train as train
    from .configs.load import load_config as load_config
    from .configs.schema import ClientConfig as ClientConfig
    from .envs.adapters.verifiers import RetrievalEnv as RetrievalEnv
    from .envs.adapters.verifiers import RetrievalTaskset as RetrievalTaskset
    from .envs.client.client import EnvironmentClient as EnvironmentClient
    from .inference.adapters.reward import reward_function as reward_function
    from .inference.rewriter import Rewriter as Rewriter

_MODULES = {
    "ClientConfig": ".configs.schema",
    "RetrievalEnv": ".envs.adapters.verifiers",
    "RetrievalTaskset": ".envs.adapters.verifiers",
    "Rewriter": ".inference.rewriter",
    "EnvironmentClient": ".envs.client.client",
    "load_config": ".configs.load",
    "reward_function": ".inference.adapters.reward",
    "train": ".train",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_MODULES[name], __name__)
    return module if name == "train" else getattr(module, name)
