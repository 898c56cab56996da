"""Loading the policy: a folder of safetensors, one GGUF file (de-quantised), or a Hub id; an adapter is merged in."""

import copy
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.distributed.tensor import DTensor

from ..configs.schema import PolicyConfig
from ..errors import CheckpointError, ConfigError, ModelError, in_one_line
from ..sources import adapter_error, resolve_model
from ..storage import parse_json
from .checkpoints import base_under, optimized_prompt
from .fingerprint import fingerprint
from .gguf import dequantised
from .memory import keep_freed_memory

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

    from .tokenizer import Tokenizer

_PEFT_PREFIX = "base_model.model."
"""What peft puts before the names of the model it wraps."""


def load_policy(
    config: PolicyConfig, adapter: Path | None = None, base_fingerprint: str | None = None
) -> "tuple[PreTrainedModel, Tokenizer]":
    """Return (causal language model in evaluation mode, tokenizer).

    `adapter` is a checkpoint folder: LoRA weights are merged into the model, full weights replace it, an optimised
    prompt leaves it as it is.
    `base_fingerprint` is that of the weights which LoRA weights were trained on; None is what their run wrote down.
    Raises ModelError where the name holds no causal language model with a chat template, CheckpointError where the
    adapter does not fit, or was trained on other weights.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    keep_freed_memory()
    if optimized_prompt(adapter) is not None:
        adapter = None
    label = f"policy.model {config.model!r}"
    full = adapter is not None and not (adapter / "adapter_config.json").exists()
    source = str(adapter) if full else resolve_model(config.model)
    try:
        if not full:
            source = safetensors_source(config)
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=config.trust_remote_code)
        result: Any = AutoModelForCausalLM.from_pretrained(
            source,
            output_loading_info=True,
            trust_remote_code=config.trust_remote_code,
            dtype=torch_dtype(config),
            attn_implementation="sdpa",
            use_safetensors=True,  # weights in a pickle are refused
        )
        model, loaded = result
        if getattr(model, "_hf_peft_config_loaded", False):  # of a Hub id, or beside whole weights
            raise adapter_error(config.model, model.name_or_path)
        _refuse_missing(loaded)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise (CheckpointError if full else ModelError)(
            f"{label}: no causal language model could be loaded from {source!r} "
            f"({in_one_line(error, 200)}). Expected config.json with weights and a tokenizer, one GGUF file, or a Hub "
            "id that can be reached.",
        ) from error
    templates = tokenizer.chat_template
    if not templates:
        raise ModelError(f"{label}: its tokenizer has no chat template; choose an instruction-tuned model.")
    if isinstance(templates, dict) and "default" not in templates:
        raise ModelError(f"{label}: none of its chat templates ({', '.join(templates)}) is named default.")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if adapter is not None and not full:
        trained_on = base_fingerprint or base_under(adapter)
        if trained_on is not None:
            _refuse_other_base(model, config.model, adapter, trained_on)
        model = _merge_adapter(model, adapter)
    model.eval()
    return model, cast("Tokenizer", tokenizer)  # its annotations allow more results than our calls have


def move_to(model: nn.Module, target: torch.device | torch.dtype | str) -> None:
    """`model.to(target)`, which PreTrainedModel wraps so that a type checker cannot read its arguments."""
    model.to(target)


def safetensors_source(config: PolicyConfig) -> str:
    """The folder or Hub id that holds `policy.model` as safetensors; a GGUF file is de-quantised first.

    Raises ModelError for a name that cannot be resolved and for several GGUF files, ValueError for one that
    cannot be read.
    """
    source = resolve_model(config.model)
    folder = Path(source)
    files = [] if any(folder.glob("*.safetensors")) else sorted(folder.glob("*.gguf"))
    if len(files) > 1:
        raise ModelError(
            f"policy.model {config.model!r}: {len(files)} GGUF files; expected one. Give a folder that holds only one "
            "of them."
        )
    return str(dequantised(files[0], torch_dtype(config))) if files else source


def torch_dtype(config: PolicyConfig) -> torch.dtype:
    """What the policy computes in, and the type of weights that are not trained; `auto` is bfloat16 where the device
    multiplies faster in it, else float32."""
    if config.dtype != "auto":
        return torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
    return torch.bfloat16 if has_fast_bfloat16() else torch.float32


def has_fast_bfloat16() -> bool:
    """Whether the GPU, or the processor where there is none, multiplies bfloat16 matrices faster than float32 ones.

    GPUs that only emulate bfloat16 (before Ampere) do not.
    """
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return cpu_has_fast_bfloat16()


def cpu_has_fast_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 matrices faster than float32 ones: with AMX, or AMD's AVX512-BF16.

    GFLOP/s of one core without AMX, bfloat16 against float32: Intel Emerald Rapids 82 against 156, AMD EPYC (Zen 5) 440
    against 108. A rule, not a timing, so that every process of a run and its resumption compute in the same type.
    """
    if torch.cpu._is_amx_tile_supported():
        return True
    processor = torch.cpu.get_capabilities()
    return bool(processor.get("avx512_bf16")) and str(processor.get("cpu_name")).startswith("AMD")


def add_lora(model: "PreTrainedModel", config: PolicyConfig) -> "PreTrainedModel | PeftModel":
    """The model with fresh trainable LoRA weights in float32, whatever the type of the model, or unchanged with all
    weights trainable where `lora` is None.

    Raises ModelError for adapters of the embedding or the output layer: where these are tied, sampling, saving and
    merging would each make another policy of them.
    """
    if config.lora is None:
        return model
    from peft import LoraConfig, get_peft_model
    from peft.tuners.tuners_utils import BaseTunerLayer

    lora = config.lora
    targets: str | list[str] = lora.target_modules
    layers = None
    if lora.last_layers is not None:
        depth = int(model.config.get_text_config().num_hidden_layers)
        layers = list(range(max(0, depth - lora.last_layers), depth))
        if targets == "all-linear":  # peft takes layers together with a list only
            linear = {name.rsplit(".", 1)[-1] for name, part in model.named_modules() if isinstance(part, nn.Linear)}
            targets = sorted(linear - {"lm_head"})
    adapters = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # annotated as int; any scale works
        target_modules=targets,
        layers_to_transform=layers,
        task_type="CAUSAL_LM",
    )
    adapted = get_peft_model(model, adapters)
    if any(isinstance(part, BaseTunerLayer) for part in (model.get_input_embeddings(), model.get_output_embeddings())):
        raise ModelError(
            f"policy.lora.target_modules {targets} names the embedding or the output layer of {config.model!r}. Leave "
            "it out, or train all weights (policy.lora=null)."
        )
    return adapted


def cast_adapters(model: nn.Module, config: PolicyConfig) -> None:
    """Give LoRA weights the type of the model: ZeRO-3 gathers weights of one type only. Its optimizer holds float32
    copies; call this after whatever trains without it."""
    if config.lora is None:
        return
    dtype = next(weight.dtype for weight in model.parameters() if not weight.requires_grad)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.to(dtype)


class MergedCopy:
    """A copy of a LoRA policy with the adapter merged in, refreshed from the trained weights before each rollout.

    Sampling from it costs no adapter arithmetic, and the trained base weights are never rounded by merging and
    unmerging. Without an adapter the copy is the policy itself, unless `separate` asks for another one: where ZeRO-3 or
    FSDP2 splits the trained weights over processes, each process samples from a full copy, refreshed weight by weight.
    There `refresh` is a collective call.
    """

    def __init__(self, policy: "PreTrainedModel | PeftModel", separate: bool = False) -> None:
        self.policy = policy
        self.lora = [(name, module) for name, module in policy.named_modules() if hasattr(module, "get_delta_weight")]
        self.model: PreTrainedModel = cast("PreTrainedModel", policy)
        if self.lora:
            # A copy keeps what a fresh model cast to bfloat16 would lose: rotary frequencies stay in float32.
            self.model = copy.deepcopy(policy).unload()  # type: ignore[operator]
            self.model.requires_grad_(False)
            self._targets = dict(self.model.named_parameters())
        elif separate:
            self.model = copy.deepcopy(self.model)
            self.model.requires_grad_(False)

    @torch.no_grad()
    def refresh(self) -> nn.Module:
        """Bring the copy up to date and return it."""
        for name, module in self.lora:
            with gathered(module):
                target = self._targets[name.removeprefix(_PEFT_PREFIX) + ".weight"]
                weight: torch.Tensor = module.get_base_layer().weight
                for adapter in module.active_adapters:
                    weight = weight + module.get_delta_weight(adapter).to(weight.dtype)
                target.copy_(weight)
        if self.model is not self.policy and not self.lora:
            for module_copy, trained in zip(self.model.modules(), self.policy.modules(), strict=True):
                targets = list(module_copy.parameters(recurse=False))
                if targets:
                    with gathered(trained):
                        for target, weight in zip(targets, trained.parameters(recurse=False), strict=True):
                            target.copy_(weight)
        return self.model

    def sleep(self) -> None:
        """Nothing to release: the copy stays in memory."""


class _LoraModule(Protocol):
    """A module of the policy with LoRA adapters."""

    active_adapters: list[str]

    def get_delta_weight(self, adapter: str) -> torch.Tensor: ...

    def get_base_layer(self) -> nn.Module: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...


@torch.no_grad()
def merged_weights(
    policy: nn.Module, dtype: torch.dtype, device: torch.device | str | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every weight under the name it has in a checkpoint, one at a time, with LoRA adapters merged in.

    What is yielded is of `dtype` and on `device` (None: where it lies). The trained weights are not touched. Raises
    ConfigError for weights of which this process holds only a part.
    """
    lora = [cast("_LoraModule", module) for module in policy.modules() if hasattr(module, "get_delta_weight")]
    adapted = {id(module.get_base_layer().weight): module for module in lora}
    base = {id(weight) for module in lora for weight in module.get_base_layer().parameters()}
    adapters = {id(weight) for module in lora for weight in module.parameters()} - base
    for name, parameter in policy.named_parameters():
        if id(parameter) in adapters:
            continue
        if isinstance(parameter, DTensor) or not parameter.numel():
            raise ConfigError(
                f"weight {name} is split over the processes, by FSDP2 or ZeRO-3, and only whole weights can be merged. "
                "Gather it first (rollouts/policy.py, gathered)."
            )
        weight = parameter.detach()
        module = adapted.get(id(parameter))
        for adapter in module.active_adapters if module is not None else ():
            weight = weight + module.get_delta_weight(adapter).to(weight.dtype)  # type: ignore[union-attr]
        yield name.removeprefix(_PEFT_PREFIX).replace(".base_layer.", "."), weight.to(device=device, dtype=dtype)


def gathered(module: nn.Module) -> AbstractContextManager[object]:
    """The module's weights, gathered from all processes while the block runs where ZeRO-3 or FSDP2 has split them.
    Collective there."""
    split = [weight for weight in module.parameters() if hasattr(weight, "ds_id")]
    if not split:
        return _whole_parameters(module)
    import deepspeed

    return deepspeed.zero.GatheredParameters(split)  # type: ignore[no-any-return]


@contextmanager
def _whole_parameters(module: nn.Module) -> Iterator[None]:
    """Within this context whole weights, without gradients, take the place of those that FSDP2 has split."""
    split = [
        (part, name, weight)
        for part in module.modules()
        for name, weight in part.named_parameters(recurse=False)
        if isinstance(weight, DTensor)
    ]
    try:
        for part, name, weight in split:
            setattr(part, name, nn.Parameter(whole(weight), requires_grad=False))
        yield
    finally:
        for part, name, weight in split:
            setattr(part, name, weight)


@torch.no_grad()
def whole(weight: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or all of one that FSDP2 has split, without gradient. Collective there."""
    return weight.full_tensor() if isinstance(weight, DTensor) else weight


def is_split(weight: torch.Tensor) -> bool:
    """Whether every process has a part of the weight, by ZeRO-3 or FSDP2."""
    return isinstance(weight, DTensor) or hasattr(weight, "ds_id")


def _refuse_other_base(model: nn.Module, name: str, adapter: Path, trained_on: str) -> None:
    now = fingerprint(model)
    if now != trained_on:
        raise CheckpointError(
            f"checkpoint {adapter} was trained on other weights than {name!r} holds now (fingerprint "
            f"{trained_on[:12]} → {now[:12]}): on these it is another policy than the one that was measured. Bring "
            "back the weights that it was trained on."
        )


def _refuse_missing(loaded: Mapping[str, Collection[str]]) -> None:
    """`loaded` is the loading info of transformers, which fills in random weights for missing ones."""
    missing = sorted(loaded["missing_keys"])
    if missing:
        raise ValueError(f"its weights lack {len(missing)} tensors of the model, such as {missing[0]}")


def _refuse_unmatched(saved: set[str], adapted: nn.Module) -> None:
    """Raise ValueError where a saved adapter has other tensors than the model that is to hold them: peft goes on with
    random weights in the place of missing ones."""
    from peft import get_peft_model_state_dict

    unmatched = saved ^ set(get_peft_model_state_dict(adapted, save_embedding_layers=False))
    if unmatched:
        raise ValueError(f"{len(unmatched)} tensors are only in it or only in the policy, such as {min(unmatched)}")


def _refuse_other_methods(adapter_config: Path) -> None:
    """Raise ValueError for an adapter that is not LoRA: others of peft (X-LoRA, prompt tuning) name further models to
    read, in any folder or on the Hub. Raises OSError where the file cannot be read."""
    values = parse_json(adapter_config.read_text(encoding="utf-8"))
    method = values.get("peft_type") if isinstance(values, dict) else None
    if method != "LORA":
        raise ValueError(f"its peft_type is {method!r}; expected 'LORA'")


def _merge_adapter(model: "PreTrainedModel", adapter: Path) -> "PreTrainedModel":
    from peft import PeftModel

    try:
        with safe_open(
            adapter / "adapter_model.safetensors", "pt"
        ) as file:  # a pickle, which peft would open, ends here
            saved = set(file.keys())
        _refuse_other_methods(adapter / "adapter_config.json")
        adapted = PeftModel.from_pretrained(model, str(adapter), use_safetensors=True)
        _refuse_unmatched(saved, adapted)
        merged: PreTrainedModel = adapted.merge_and_unload()
        return merged
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise CheckpointError(
            f"checkpoint {adapter} does not fit the policy ({in_one_line(error, 200)}). "
            "It was trained on another model, or is incomplete: name the right run or an earlier checkpoint."
        ) from error
