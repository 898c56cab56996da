"""What an answer depends on besides settings: weights, prompts and versions.

Weight files are hashed by size and content: whole up to 64 MiB, in evenly spaced samples beyond. That is enough:
retraining changes a file everywhere.
"""

import hashlib
from functools import cache
from pathlib import Path

from ..configs.llm import LlmConfig
from ..errors import ModelError
from ..provenance import installed_versions
from ..rollouts.llms import resolved_dtype
from ..sources import resolve_model
from ..storage import data_sha256
from ..version import __version__

WHOLE = 64 * 2**20
"""Files up to this many bytes are hashed completely."""
SAMPLES, SAMPLE = 64, 2**20

_MODEL_SUFFIXES = {".py", ".safetensors", ".json", ".gguf", ".jinja", ".txt", ".model", ".bin"}
_CODE = Path(__file__).parent.parent


def model_identity(name: str) -> str:
    """A model's identity: a hash of its folder, or only the Hub id where the weights may not be downloaded yet.

    Raises ModelError where the name cannot be resolved.
    """
    resolved = resolve_model(name)
    return folder_identity(Path(resolved)) if Path(resolved).is_dir() else resolved


def folder_identity(folder: Path) -> str:
    """sha256 over the names, sizes and contents of a model's files.

    Raises ModelError where a file cannot be read, as in a checkpoint that its training removes.
    """
    digest = hashlib.sha256()
    try:
        for path in sorted(path for path in folder.iterdir() if path.suffix in _MODEL_SUFFIXES and path.is_file()):
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            with path.open("rb") as file:
                if size <= WHOLE:
                    while part := file.read(SAMPLE):
                        digest.update(part)
                    continue
                for number in range(SAMPLES):
                    file.seek(number * (size - SAMPLE) // (SAMPLES - 1))
                    digest.update(file.read(SAMPLE))
    except OSError as error:
        raise ModelError(
            f"{folder} cannot be read ({error}). If a training that goes on removed this checkpoint, raise its "
            "train.keep_checkpoints, or choose a later one with --checkpoint."
        ) from error
    return digest.hexdigest()


def llm_identity(config: LlmConfig) -> dict[str, object]:
    """The identity of a prompted model that is not trained. Raises ModelError as `model_identity`."""
    if config.base_url is not None:
        return {"endpoint": config.base_url, "model": config.model, "extra": config.extra}
    return {"llm": model_identity(config.model), "dtype": resolved_dtype(config.dtype)}


@cache
def templates_identity() -> str:
    """A hash of the code and the prompt templates of all rewriters and training-free baselines."""
    files = [path for name in ("rewriters", "methods") for path in (_CODE / name).rglob("*")]
    hashed = sorted(path for path in files if path.suffix in (".py", ".yaml", ".j2", ".txt", ".md"))
    return data_sha256([path.read_text(encoding="utf-8") for path in hashed])


def answering_versions() -> dict[str, str]:
    """Versions of this project and of the installed libraries that generate text, which may change answers."""
    return {"querylect": __version__, **installed_versions(("transformers", "vllm"))}
