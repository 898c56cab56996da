"""Everything an answer depends on, as plain data: weights, prompts, settings, index and judgements.

Weight files are hashed by size and content: whole up to 64 MiB, in evenly spaced samples beyond. That is enough:
retraining changes a file everywhere. The version of this package stands for how answers are read.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..configs.evaluation import SystemConfig
from ..configs.llm import LlmConfig
from ..configs.schema import PolicyConfig, RewriterConfig, RolloutConfig
from ..data.history import lines_of
from ..data.types import Qrels, Question
from ..errors import ModelError
from ..provenance import installed_versions
from ..rewriters.few_shot import PROMPTS, prompt_path
from ..rollouts.llms import resolved_dtype
from ..sources import resolve_model
from ..version import __version__

WHOLE = 64 * 2**20
"""Files up to this many bytes are hashed completely."""
SAMPLES, SAMPLE = 64, 2**20

_MODEL_SUFFIXES = {".py", ".safetensors", ".json", ".gguf", ".jinja", ".txt", ".model", ".bin"}


def model_identity(name: str) -> str:
    """A model's identity: a hash of its folder, or only the Hub id where the weights may not be downloaded yet.

    Raises ModelError where the name cannot be resolved.
    """
    resolved = resolve_model(name)
    return folder_identity(Path(resolved)) if Path(resolved).is_dir() else resolved


def folder_identity(folder: Path) -> str:
    """SHA-256 over the names, sizes and contents of a model's files.

    Raises ModelError where a file cannot be read, as in a checkpoint that its training removes.
    """
    try:
        return _folder_sha256(folder)
    except OSError as error:
        raise ModelError(
            f"{folder} cannot be read ({error}). If a training that goes on removed this checkpoint, raise its "
            "train.keep_checkpoints, or choose a later one with --checkpoint."
        ) from error


def _folder_sha256(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if _of_model(path)):
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
    return digest.hexdigest()


def _of_model(path: Path) -> bool:
    return path.suffix in _MODEL_SUFFIXES and path.is_file()


def weights_identity(base_model: str, checkpoint: Path | None) -> dict[str, str | None]:
    """A policy's identity: that of its base model (`model_identity`) and of its checkpoint."""
    return {"policy": base_model, "checkpoint": folder_identity(checkpoint) if checkpoint is not None else None}


def llm_identity(config: LlmConfig) -> dict[str, object]:
    """The identity of a prompted model that is not trained. Raises ModelError as `model_identity`."""
    if config.base_url is not None:
        return {"endpoint": config.base_url, "model": config.model, "extra": config.extra}
    return {"llm": model_identity(config.model), "dtype": resolved_dtype(config.dtype)}


def task_identity(config: LlmConfig, checkpoint: Path | None) -> dict[str, object]:
    """The identity of a prompted model with the prompt of a checkpoint."""
    return {**llm_identity(config), "checkpoint": folder_identity(checkpoint) if checkpoint is not None else None}


def answering_versions() -> dict[str, str]:
    """Versions of this project and of the installed libraries that generate text, which may change answers."""
    return {"querylect": __version__, **installed_versions(("transformers", "vllm"))}


def system_identity(
    system: SystemConfig, policy: PolicyConfig, rollout: RolloutConfig, rewriter: RewriterConfig, seed: int
) -> dict[str, object]:
    """Everything but the weights that a rewriting system's answers depend on."""
    sampled = {"samples": system.samples, "temperature": system.temperature, "seed": seed}
    if system.llm is not None:
        model: dict[str, object] = {"passages": system.passages}
    else:
        model = {
            "dtype": resolved_dtype(policy.dtype),
            "engine": rollout.engine,
            "max_prompt_tokens": rollout.max_prompt_tokens,
        }
    return {
        **model,
        "rewriter": rewriter.model_dump(mode="json"),
        "turns": system.turns,
        "new_tokens": [rollout.max_new_tokens] * system.turns,
        "shown": [
            rollout.documents, rollout.document_tokens, rollout.observation_tokens, rollout.history_tokens,
        ],
        "sampling": sampled if system.sampled else None,
    }  # fmt: skip


def prompts_identity(rewriter: RewriterConfig, code: Path = PROMPTS.parent) -> str:
    """A hash of the folder with the code of all rewriters, which share prompts, and of the prompt file of few-shot
    prompts."""
    files = [*sorted(code.glob("*.py")), *([prompt_path(rewriter.prompt)] if rewriter.name == "few_shot" else [])]
    return digest([file.read_text(encoding="utf-8") for file in files])


def judgements_identity(qrels: Qrels | None) -> str | None:
    """A hash of all relevance judgements; None where they are not available here."""
    return digest({question: dict(sorted(grades.items())) for question, grades in qrels.items()}) if qrels else None


def contexts_identity(questions: Sequence[Question]) -> str | None:
    """A hash of what questions have beside their texts: answer options, what was said before, reference rewrites and
    excluded documents; None where no question has any."""
    contexts = {
        question.id: [
            *question.options,
            lines_of(question.history),
            question.reference_rewrite,
            sorted(question.excluded),
        ]
        for question in questions
        if question.options or question.history or question.reference_rewrite or question.excluded
    }
    return digest(contexts) if contexts else None


def digest(value: Mapping[str, object] | Sequence[object]) -> str:
    """SHA-256 (64 hex digits) of plain data, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
