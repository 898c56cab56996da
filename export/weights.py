"""The model files of an export: safetensors, tokenizer with chat template, generation config; no pickle files.

Merged or fully fine-tuned weights are exactly those that `querylect eval` samples from, in the same dtype. An adapter
is copied unchanged, except for the name of its base model, which becomes the Hub id.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..configs.schema import PolicyConfig, RolloutConfig
from ..errors import ConfigError
from ..rollouts.chat import Tokenizer
from ..rollouts.engines.base import Engine
from ..storage import parse_json
from .base import BaseModelSource

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Loaded:
    """The policy of a checkpoint with its adapter merged in, and an engine for it."""

    model: "PreTrainedModel"
    tokenizer: Tokenizer
    engine: Engine

    @property
    def dtype(self) -> str:
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def stop_ids(self) -> list[int]:
        """Ids that end an answer."""
        return sorted(self.engine.stop_ids)


def load(settings: PolicyConfig, rollout: RolloutConfig, checkpoint: Path, dtype: str | None) -> Loaded:
    """Load the policy as evaluation does; `dtype` is the one of the evaluation. Raises as `load_policy`."""
    from ..rollouts.engines.transformers import TransformersEngine
    from ..rollouts.policy import load_policy

    policy = settings if dtype is None else settings.model_copy(update={"dtype": dtype})
    model, tokenizer = load_policy(policy, checkpoint)
    return Loaded(model, tokenizer, TransformersEngine(model, tokenizer, rollout.micro_batch, rollout.longest_sequence))


def refuse_lone_adapter(base: BaseModelSource, checkpoint: Path) -> None:
    """Raise ConfigError if the base weights of the adapter in `checkpoint` are not publicly available."""
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


def write_merged(folder: Path, loaded: Loaded, new_tokens: int) -> None:
    """Write merged weights, tokenizer and generation config to `folder`."""
    from transformers import GenerationConfig

    original_config = loaded.model.generation_config
    loaded.model.generation_config = GenerationConfig()  # the base model's may enable sampling; written below
    try:
        loaded.model.save_pretrained(folder)
    finally:
        loaded.model.generation_config = original_config
    for weights in folder.glob("*.safetensors"):
        shutil.copymode(folder / "config.json", weights)  # safetensors makes its files readable to the owner only
    _write_tokenizer_and_config(folder, loaded, new_tokens)


def write_adapter(folder: Path, loaded: Loaded, checkpoint: Path, base: BaseModelSource, new_tokens: int) -> None:
    """Copy the adapter, with its base model set to the Hub id, and write tokenizer and generation config."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(checkpoint / "adapter_model.safetensors", folder / "adapter_model.safetensors")
    values = parse_json((checkpoint / "adapter_config.json").read_text(encoding="utf-8"))
    values["base_model_name_or_path"] = base.hub_id
    text = json.dumps(values, ensure_ascii=False, indent=2, sort_keys=True)
    (folder / "adapter_config.json").write_text(text + "\n", encoding="utf-8")
    _write_tokenizer_and_config(folder, loaded, new_tokens)


def _write_tokenizer_and_config(folder: Path, loaded: Loaded, new_tokens: int) -> None:
    """Also the configuration of greedy decoding with the token limit and stop tokens of turn 1 in evaluation."""
    from transformers import GenerationConfig

    loaded.tokenizer.save_pretrained(folder)
    stop_ids = loaded.stop_ids
    GenerationConfig(
        do_sample=False,
        max_new_tokens=new_tokens,
        eos_token_id=stop_ids[0] if len(stop_ids) == 1 else stop_ids,
        pad_token_id=loaded.tokenizer.pad_token_id,
        bos_token_id=loaded.tokenizer.bos_token_id,
    ).save_pretrained(folder)
