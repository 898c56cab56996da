"""Sentence encoders for comparing texts, not for search."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError, ModelError

Encode = Callable[[Sequence[str]], npt.NDArray[np.float32]]
"""Texts to vectors (texts, d)."""


def open_encoder(name: str, setting: str = "--model") -> tuple[Encode, str]:
    """A sentence encoder (as `env.retriever`: folder, package:NAME, Hub id or recipe) and its identifier.

    Errors name `setting`: ConfigError for another kind of retriever, ModelError for an unusable one.
    """
    from ..envs.recipes import find_recipe
    from ..envs.retrievers.encoder import Encoder

    recipe = find_recipe(name)
    if recipe.kind != "dense":
        raise ConfigError(f"{setting} {name!r} is {recipe.kind}; expected a model that gives a text one dense vector.")
    try:
        encoder = Encoder.open(recipe)
    except ModelError as error:
        raise ModelError(f"{setting} {name!r} cannot be used: {error}") from error
    return encoder.queries, f"{name} ({encoder.fingerprint})"
