"""A GGUF file is de-quantised once: transformers needs half a minute to read one, and a second to read its copy.

Copies lie under `$XDG_CACHE_HOME/querylect` (~/.cache/querylect), named by the sha256 of the file, the type of the
weights and the version of transformers; they can be removed at any time.
"""

import logging
import os
import tempfile
from hashlib import file_digest
from pathlib import Path

import torch

from ..errors import ModelError, in_one_line

log = logging.getLogger(__name__)


def dequantised(file: Path, dtype: torch.dtype) -> Path:
    """A folder of safetensors and tokenizer with the weights of a GGUF file. Raises ModelError for an unusable one."""
    import transformers

    with file.open("rb") as opened:
        digest = file_digest(opened, "sha256").hexdigest()
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
