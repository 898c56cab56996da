"""The dimensions of a language model without loading it: from its config.json, else from its name.

Imports neither torch nor transformers.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...errors import ModelError
from ...sources import resolve_model
from ...storage import parse_json


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder of `layers` equal layers; widths are in elements of one token."""

    parameters: int
    hidden: int
    intermediate: int
    """Width of the MLP; for a mixture of experts, the total width of the active experts of a token."""
    layers: int
    queries: int
    """Number of attention heads times head width."""
    keys: int
    """Number of key-value heads times head width."""
    vocabulary: int
    source: str = ""
    """Description of the source."""


def _shape(size: float, hidden: int, inner: int, layers: int, queries: int, keys: int, words: int) -> ModelShape:
    return ModelShape(round(size * 1e6), hidden, inner, layers, queries, keys, words)


KNOWN = {
    "smollm2-135m": _shape(134.5, 576, 1536, 30, 576, 192, 49_152),
    "qwen2.5-3b": _shape(3086, 2048, 11_008, 36, 2048, 256, 151_936),
    "qwen2.5-7b": _shape(7616, 3584, 18_944, 28, 3584, 512, 152_064),
    "qwen3-0.6b": _shape(596, 1024, 3072, 28, 2048, 1024, 151_936),
    "qwen3-1.7b": _shape(1721, 2048, 6144, 28, 2048, 1024, 151_936),
    "qwen3-4b": _shape(4022, 2560, 9728, 36, 4096, 1024, 151_936),
    "qwen3-8b": _shape(8191, 4096, 12_288, 36, 4096, 1024, 151_936),
    "qwen3-14b": _shape(14_768, 5120, 17_408, 40, 5120, 1024, 151_936),
    "qwen3-32b": _shape(32_762, 5120, 25_600, 64, 8192, 1024, 151_936),
    "llama-3.2-3b": _shape(3213, 3072, 8192, 28, 3072, 1024, 128_256),
}
"""Published dimensions of common models, by the prefix of their name on the Hub."""


def shape_of(model: str) -> ModelShape | None:
    """The dimensions of `policy.model`: from the config.json of a folder, an installed package or the Hub cache, else
    as published, by its name or that of its GGUF file. None if unknown."""
    try:
        folder = Path(resolve_model(model))
    except ModelError:
        return None
    for path in (folder / "config.json", _cached(model)):
        if path is not None and path.is_file():
            with suppress(KeyError, TypeError, ValueError):  # it describes a model of another kind
                return from_config(parse_json(path.read_text(encoding="utf-8")), f"{model}, by its config.json")
    names = [path.stem for path in sorted(folder.glob("*.gguf"))] if folder.is_dir() else [Path(model).name]
    published = (shape for name in names for key, shape in KNOWN.items() if name.lower().startswith(key))
    return next((replace(shape, source=f"{model}, by its published sizes") for shape in published), None)


def _cached(model: str) -> Path | None:
    if find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        return None
    return Path(path) if isinstance(path, str) else None


def from_config(config: Mapping[str, Any], source: str = "") -> ModelShape:
    """The dimensions in transformers' config.json. Raises KeyError if it does not describe such a decoder."""
    full_config, config = config, config.get("text_config") or config

    def read_int(*names: str) -> int:
        for name in names:
            if config.get(name) is not None:
                return int(config[name])
        raise KeyError(names[0])

    hidden, layers = read_int("hidden_size", "n_embd"), read_int("num_hidden_layers", "n_layer")
    heads = read_int("num_attention_heads", "n_head")
    width = int(config.get("head_dim") or hidden // heads)
    queries, keys = heads * width, int(config.get("num_key_value_heads") or heads) * width
    gated = "n_embd" not in config
    inner = int(config.get("intermediate_size") or config.get("n_inner") or 4 * hidden)
    experts = int(config.get("num_experts") or config.get("num_local_experts") or 0)
    mlp = (3 if gated else 2) * hidden * inner
    if experts:
        inner = int(config.get("moe_intermediate_size") or inner)
        mlp = experts * (3 * hidden * inner + hidden)
        inner *= int(config.get("num_experts_per_tok") or 1)
    tied = bool(config.get("tie_word_embeddings", full_config.get("tie_word_embeddings", not gated)))
    words = read_int("vocab_size")
    layer = 2 * hidden * (queries + keys) + mlp + 2 * hidden
    parameters = layers * layer + words * hidden * (1 if tied else 2) + hidden
    return ModelShape(parameters, hidden, inner, layers, queries, keys, words, source)
