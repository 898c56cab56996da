"""Sentence encoders for comparing texts, not for search."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError

Encode = Callable[[Sequence[str]], npt.NDArray[np.float32]]
"""Texts to vectors (texts, d)."""


def open_encoder(name: str) -> tuple[Encode, str]:
    """A sentence encoder (as `env.retriever`: folder, package:NAME, Hub id or preset) and its identifier.

    Raises ConfigError for another kind of retriever, ModelError for an unusable one.
    """
    from ..envs.presets import find_preset
    from ..envs.retrievers.encoder import Encoder

    preset = find_preset(name)
    if preset.kind != "dense":
        raise ConfigError(f"--model {name!r} is {preset.kind}; expected a model that gives a text one dense vector.")
    encoder = Encoder(preset)
    return encoder.queries, f"{name} ({encoder.fingerprint})"
