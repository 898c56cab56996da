"""The model files of an export: safetensors, tokenizer with chat template, generation config. Never a pickle.

Merged, or trained whole, the folder holds exactly the weights that `querylect eval` samples from, in their type. An
adapter is copied as it is, and only the name of its base changes: to one that others can resolve.
"""

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..configs.schema import RunConfig
from ..errors import ConfigError
from ..rollouts.engine import Engine
from .base import Base

ADAPTER_FILES = ("adapter_model.safetensors",)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The policy of a checkpoint, its adapter merged in, ready to answer."""

    model: Any
    tokenizer: Any
    engine: Engine

    @property
    def dtype(self) -> str:
        """Of its weights."""
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def stop_ids(self) -> list[int]:
        """Ids that end an answer."""
        return sorted(self.engine.stop_ids)


def load(config: RunConfig, checkpoint: Path, dtype: str | None) -> Loaded:
    """The policy as evaluation loads it; `dtype` is the type in which it was measured. Raises as `load_policy`."""
    from ..rollouts.policy import load_policy
    from ..rollouts.transformers_engine import TransformersEngine

    policy = config.policy if dtype is None else config.policy.model_copy(update={"dtype": dtype})
    model, tokenizer = load_policy(policy, checkpoint)
    rollout = config.rollout
    return Loaded(model, tokenizer, TransformersEngine(model, tokenizer, rollout.micro_batch, rollout.longest_sequence))


def refuse_lone_adapter(base: Base, checkpoint: Path) -> None:
    """ConfigError where others could not put the adapter of `checkpoint` on the weights it was trained on."""
    remedy = "Give --merge-lora to export whole weights"
    if base.dequantised:
        raise ConfigError(
            f"{checkpoint} is an adapter, and its base {base.name} was read from a quantised GGUF file: no one else "
            f"has these weights, and on others it is another policy than the one that was measured. {remedy}."
        )
    if base.hub_id is None:
        raise ConfigError(
            f"{checkpoint} is an adapter, and its base {base.name} lies only on this machine. {remedy}, or say with "
            "--base-model under which Hub id the same weights are found."
        )


def write_merged(place: Path, loaded: Loaded, new_tokens: int) -> None:
    """Write whole weights, tokenizer and generation config into `place`."""
    from transformers import GenerationConfig

    kept = loaded.model.generation_config
    loaded.model.generation_config = GenerationConfig()  # written below; the base may sample, and this one never does
    try:
        loaded.model.save_pretrained(place)
    finally:
        loaded.model.generation_config = kept
    for weights in place.glob("*.safetensors"):
        shutil.copymode(place / "config.json", weights)  # safetensors keeps them from everyone else
    _write_around(place, loaded, new_tokens)


def write_adapter(place: Path, loaded: Loaded, checkpoint: Path, base: Base, new_tokens: int) -> None:
    """Copy the adapter, its base named by its Hub id, and write tokenizer and generation config beside it."""
    place.mkdir(parents=True, exist_ok=True)
    for name in ADAPTER_FILES:
        shutil.copyfile(checkpoint / name, place / name)
    values = json.loads((checkpoint / "adapter_config.json").read_text(encoding="utf-8"))
    values["base_model_name_or_path"] = base.hub_id
    text = json.dumps(values, ensure_ascii=False, indent=2, sort_keys=True)
    (place / "adapter_config.json").write_text(text + "\n", encoding="utf-8")
    _write_around(place, loaded, new_tokens)


def _write_around(place: Path, loaded: Loaded, new_tokens: int) -> None:
    loaded.tokenizer.save_pretrained(place)
    generation_config(loaded, new_tokens).save_pretrained(place)


def generation_config(loaded: Loaded, new_tokens: int) -> Any:
    """Greedy answers of turn 1, as they were measured, ended by the same tokens."""
    from transformers import GenerationConfig

    return GenerationConfig(
        do_sample=False,
        max_new_tokens=new_tokens,
        eos_token_id=_one_or_all(loaded.stop_ids),
        pad_token_id=loaded.tokenizer.pad_token_id,
        bos_token_id=loaded.tokenizer.bos_token_id,
    )


def _one_or_all(ids: Iterable[int]) -> int | list[int]:
    found = list(ids)
    return found[0] if len(found) == 1 else found
