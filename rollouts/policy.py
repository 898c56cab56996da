"""Loading the policy: a folder of safetensors, one GGUF file, or a Hub id; an adapter is merged in.

A GGUF file is de-quantised once: transformers needs half a minute to read one, and a second to read its copy. Copies
lie under `$XDG_CACHE_HOME/querylect` (~/.cache/querylect) and can be removed at any time.
"""

import ctypes
import hashlib
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from ..configs.schema import PolicyConfig
from ..errors import CheckpointError, ModelError, in_one_line
from ..sources import adapter_error, resolve_model
from ..storage import parse_json
from .checkpoints import base_under, optimized_prompt

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

    from .chat import Tokenizer

log = logging.getLogger(__name__)

FINGERPRINT_VALUES = 65_536
"""Values of each tensor that count: a swapped model differs in nearly all; 8 billion are too many to read."""


def load_policy(
    config: PolicyConfig, adapter: Path | None = None, base_fingerprint: str | None = None
) -> "tuple[PreTrainedModel, Tokenizer]":
    """Return (causal language model in evaluation mode, tokenizer).

    `adapter` is a checkpoint folder: LoRA weights are merged into the model, full weights replace it, an optimised
    prompt leaves it as it is. `base_fingerprint` is that of the weights which LoRA weights were trained on; None is
    what their run wrote down.

    Raises ModelError where the name holds no causal language model with a chat template, CheckpointError where the
    adapter does not fit, or was trained on other weights.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    keep_freed_memory()
    if optimized_prompt(adapter) is not None:
        adapter = None
    label = f"policy.model {config.model!r}"
    full = adapter is not None and not (adapter / "adapter_config.json").exists()
    source = str(adapter) if full else safetensors_source(config)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        result: Any = AutoModelForCausalLM.from_pretrained(
            source,
            output_loading_info=True,
            dtype=torch_dtype(config),
            attn_implementation="sdpa",
            use_safetensors=True,  # weights in a pickle are refused
        )
        model, loaded = result
        if getattr(model, "_hf_peft_config_loaded", False):  # of a Hub id, or beside whole weights
            raise adapter_error(config.model, model.name_or_path)
        if missing := sorted(loaded["missing_keys"]):  # transformers fills in random weights
            raise ValueError(f"its weights lack {len(missing)} tensors of the model, such as {missing[0]}")
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise (CheckpointError if full else ModelError)(
            f"{label}: no causal language model could be loaded from {source!r} ({in_one_line(error, 200)})."
        ) from error
    templates = tokenizer.chat_template
    if not templates:
        raise ModelError(f"{label}: its tokenizer has no chat template; choose an instruction-tuned model.")
    if isinstance(templates, dict) and "default" not in templates:
        raise ModelError(f"{label}: none of its chat templates ({', '.join(templates)}) is named default.")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if adapter is not None and not full:
        trained_on, now = base_fingerprint or base_under(adapter), fingerprint(model)
        if trained_on is not None and now != trained_on:
            raise CheckpointError(
                f"checkpoint {adapter} was trained on other weights than {config.model!r} holds now (fingerprint "
                f"{trained_on[:12]} → {now[:12]}). Bring back the weights that it was trained on."
            )
        model = _merge_adapter(model, adapter)
    model.eval()
    return model, cast("Tokenizer", tokenizer)  # its annotations allow more results than our calls have


def _merge_adapter(model: "PreTrainedModel", adapter: Path) -> "PreTrainedModel":
    from peft import PeftModel, get_peft_model_state_dict

    try:
        with safe_open(adapter / "adapter_model.safetensors", "pt") as file:  # peft would open a pickle instead
            saved = set(file.keys())
        values = parse_json((adapter / "adapter_config.json").read_text(encoding="utf-8"))
        method = values.get("peft_type") if isinstance(values, dict) else None
        if method != "LORA":  # other methods of peft (X-LoRA, prompt tuning) name further models to read
            raise ValueError(f"its peft_type is {method!r}; expected 'LORA'")
        adapted = PeftModel.from_pretrained(model, str(adapter), use_safetensors=True)
        # peft goes on with random weights in the place of missing ones
        if unmatched := saved ^ set(get_peft_model_state_dict(adapted, save_embedding_layers=False)):
            raise ValueError(f"{len(unmatched)} tensors are only in it or only in the policy, such as {min(unmatched)}")
        return cast("PreTrainedModel", adapted.merge_and_unload())
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise CheckpointError(
            f"checkpoint {adapter} does not fit the policy ({in_one_line(error, 200)}). "
            "It was trained on another model, or is incomplete: name the right run or an earlier checkpoint."
        ) from error


@torch.no_grad()
def fingerprint(model: nn.Module) -> str:
    """SHA-256 over the name, shape and up to FINGERPRINT_VALUES values, at even distances, of every parameter.

    Values count as bfloat16, so that the same weights loaded in float32 have the same fingerprint.
    """
    hasher = hashlib.sha256()
    for name, tensor in sorted(model.named_parameters()):
        values = tensor.detach().flatten()
        values = values[:: max(1, values.numel() // FINGERPRINT_VALUES)].to(torch.bfloat16).contiguous().cpu()
        hasher.update(f"{name} {tuple(tensor.shape)}\n".encode())
        hasher.update(values.view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()


def move_to(model: nn.Module, target: torch.device | torch.dtype | str) -> None:
    """`model.to(target)`, which PreTrainedModel wraps so that a type checker cannot read its arguments."""
    model.to(target)


def safetensors_source(config: PolicyConfig) -> str:
    """The folder or Hub id that holds `policy.model` as safetensors; a GGUF file is de-quantised first.

    Raises ModelError for a name that cannot be resolved, for several GGUF files and for one that cannot be read.
    """
    source = resolve_model(config.model)
    files = [] if any(Path(source).glob("*.safetensors")) else sorted(Path(source).glob("*.gguf"))
    if len(files) > 1:
        raise ModelError(f"policy.model {config.model!r}: {len(files)} GGUF files; give a folder that holds only one.")
    return str(_dequantised(files[0], torch_dtype(config))) if files else source


def _dequantised(file: Path, dtype: torch.dtype) -> Path:
    """A folder with the tokenizer and the weights of a GGUF file, named by its sha256 and the type of the weights."""
    import transformers

    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    kind = str(dtype).removeprefix("torch.")
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "querylect"
    target = home / f"{file.stem}-{digest[:16]}-{kind}-transformers-{transformers.__version__}"
    if (target / "config.json").is_file():
        return target
    home.mkdir(parents=True, exist_ok=True)
    log.info("de-quantising %s into %s, once", file.name, target)
    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
        model = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=dtype)
    except Exception as error:  # a damaged file raises whatever its bytes lead to
        raise ModelError(f"{file} cannot be read: {type(error).__name__}: {in_one_line(error)}") from error
    # The weights are plain floats now: without the marks of a quantised model they can be saved.
    model.hf_quantizer, model.is_quantized, model.quantization_method = None, False, None  # type: ignore[assignment]
    for name in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(model.config, name):
            delattr(model.config, name)
    with tempfile.TemporaryDirectory(dir=home, prefix=".writing-") as folder:
        copy = Path(folder) / "copy"
        model.save_pretrained(copy)
        tokenizer.save_pretrained(copy)
        try:
            copy.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was first
                raise
    return target


def keep_freed_memory() -> None:
    """Let glibc reuse large blocks instead of returning each to the kernel, which clears its pages anew every time.

    On a CPU the activations of a rollout or an update are such blocks, and the page faults take time from every step.
    """
    # each new shape of a matrix product keeps a megabyte of compiled code; read when PyTorch first multiplies
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is not None and hasattr(libc, "mallopt"):
        for threshold in (-3, -1):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
            libc.mallopt(threshold, 2**30)


def torch_dtype(config: PolicyConfig) -> torch.dtype:
    """What the policy computes in, and the type of weights that are not trained; `auto` is bfloat16 where the device
    multiplies faster in it, else float32."""
    bfloat16 = has_fast_bfloat16() if config.dtype == "auto" else config.dtype == "bfloat16"
    return torch.bfloat16 if bfloat16 else torch.float32


def has_fast_bfloat16() -> bool:
    """Whether the GPU, or the processor where there is none, multiplies bfloat16 matrices faster than float32 ones.

    GPUs before Ampere only emulate bfloat16. Processors are fast with AMX, or AMD's AVX512-BF16: GFLOP/s of one core
    without AMX, bfloat16 against float32, Intel Emerald Rapids 82 against 156, AMD EPYC (Zen 5) 440 against 108. A
    rule, not a timing, so that every process of a run and its resumption compute in the same type.
    """
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    processor = torch.cpu.get_capabilities()
    on_amd = bool(processor.get("avx512_bf16")) and str(processor.get("cpu_name")).startswith("AMD")
    return on_amd or torch.cpu._is_amx_tile_supported()


def add_lora(model: "PreTrainedModel", config: PolicyConfig) -> "PreTrainedModel | PeftModel":
    """The model with fresh trainable LoRA weights in float32, whatever the type of the model, or unchanged with all
    weights trainable where `lora` is None."""
    if config.lora is None:
        return model
    from peft import LoraConfig, get_peft_model

    lora = config.lora
    targets: str | list[str] = "all-linear"
    layers = None
    if lora.last_layers is not None:
        depth = int(model.config.get_text_config().num_hidden_layers)
        layers = list(range(max(0, depth - lora.last_layers), depth))
        linear = {name.rsplit(".", 1)[-1] for name, part in model.named_modules() if isinstance(part, nn.Linear)}
        targets = sorted(linear - {"lm_head"})  # peft takes layers together with a list only
    adapters = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # annotated as int; any scale works
        target_modules=targets,
        layers_to_transform=layers,
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, adapters)


def cast_adapters(model: nn.Module, config: PolicyConfig) -> None:
    """Give LoRA weights the type of the model: ZeRO-3 gathers weights of one type only. Its optimizer holds float32
    copies; call this after whatever trains without it."""
    if config.lora is None:
        return
    dtype = next(weight.dtype for weight in model.parameters() if not weight.requires_grad)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.to(dtype)
