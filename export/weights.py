"""The model files of an export: safetensors, tokenizer with chat template, generation config; no pickle files.

Merged or fully fine-tuned weights are exactly those that `querylect eval` samples from, in the same dtype. An adapter
is copied unchanged, except for the name of its base model, which becomes the Hub id.
"""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..rollouts.chat import Tokenizer
from ..storage import parse_json
from .source import BaseModelSource

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def refuse_lone_adapter(base: BaseModelSource, checkpoint: Path) -> None:
    """Raise ConfigError if the base weights of the adapter in `checkpoint` are not publicly available."""
    if base.dequantised or base.hub_id is None:
        reason = "was read from a quantised GGUF file, so others do not have its weights"
        remedy = "Give --merge-lora to export whole weights"
        if not base.dequantised:
            reason = "lies only on this machine"
            remedy += ", or say with --base-model under which Hub id the same weights are found"
        raise ConfigError(f"{checkpoint} is an adapter, and its base {base.name} {reason}. {remedy}.")


def write_merged(folder: Path, model: "PreTrainedModel") -> None:
    """Write the weights of a policy, with its adapter merged in."""
    from transformers import GenerationConfig

    model.generation_config = GenerationConfig()  # the base model's may enable sampling
    model.save_pretrained(folder)
    for weights in folder.glob("*.safetensors"):
        shutil.copymode(folder / "config.json", weights)  # safetensors makes its files readable to the owner only


def write_adapter(folder: Path, checkpoint: Path, base: BaseModelSource) -> None:
    """Copy the adapter, with its base model set to the Hub id."""
    shutil.copyfile(checkpoint / "adapter_model.safetensors", folder / "adapter_model.safetensors")
    values = parse_json((checkpoint / "adapter_config.json").read_text(encoding="utf-8"))
    values["base_model_name_or_path"] = base.hub_id
    text = json.dumps(values, ensure_ascii=False, indent=2, sort_keys=True)
    (folder / "adapter_config.json").write_text(text + "\n", encoding="utf-8")


def write_tokenizer(folder: Path, tokenizer: Tokenizer, stop_ids: list[int], max_new_tokens: int) -> None:
    """Also the configuration of greedy decoding with the token limit and stop tokens of turn 1 in evaluation."""
    from transformers import GenerationConfig

    tokenizer.save_pretrained(folder)
    GenerationConfig(
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=stop_ids[0] if len(stop_ids) == 1 else stop_ids,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
    ).save_pretrained(folder)
