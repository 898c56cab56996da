"""What an answer depends on, as plain data: the weights, the prompts, the settings, the index and the judgements.

Files of weights are told apart by size and content, up to 64 MiB of it whole and in even samples beyond: a policy that
was trained again differs everywhere. Prompts are compared as they are rendered, so that an edited prompt file, or
another version of a rewriter, is another system.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..configs.evaluation import SystemConfig
from ..configs.llm import LlmConfig
from ..configs.schema import RunConfig
from ..data.types import Document, Qrels, Question
from ..rewriters.base import Rewriter, Staged
from ..sources import resolve_model

WHOLE = 64 * 2**20
"""Bytes of a file that are read whole."""
SAMPLES, SAMPLE = 64, 2**20

_READ_BY_MODELS = {".py", ".safetensors", ".json", ".gguf", ".jinja", ".txt", ".model", ".bin"}

_SAID = (
    "<think>t</think><rewrite>one</rewrite><rewrite>two</rewrite>",
    "<think>t</think><rewrite>one</rewrite>",
    "t</think><rewrite>one</rewrite>",
    "plain",
)
"""Answers whose plans tell one way of reading them from another."""


def model_identity(name: str) -> str:
    """What a model is recognised by: a hash of its folder, or its Hub id alone, whose weights may not be here yet.

    Raises ModelError where the name leads nowhere.
    """
    place = resolve_model(name)
    return folder_identity(Path(place)) if Path(place).is_dir() else place


def folder_identity(folder: Path) -> str:
    """SHA-256 over the names, sizes and contents of the files that make up a model."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.suffix in _READ_BY_MODELS and path.is_file()):
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


def weights_identity(model: str, checkpoint: Path | None) -> dict[str, str | None]:
    """What a policy is recognised by. Raises ModelError as `model_identity`."""
    return {
        "policy": model_identity(model),
        "checkpoint": folder_identity(checkpoint) if checkpoint is not None else None,
    }


def llm_identity(config: LlmConfig) -> dict[str, Any]:
    """What a model that is asked as it stands is recognised by. Raises ModelError as `model_identity`."""
    if config.base_url is not None:
        return {"endpoint": config.base_url, "model": config.model, "extra": config.extra}
    return {"llm": model_identity(config.model), "dtype": config.dtype}


def system_identity(
    system: SystemConfig, config: RunConfig, weights: Mapping[str, Any], rewriter: Rewriter, seed: int
) -> dict[str, Any]:
    """All of a rewriting system that its answers depend on. `rewriter` is the one for the environment at hand."""
    rollout = config.rollout
    sampled = {"samples": system.samples, "temperature": system.temperature, "top_p": system.top_p, "seed": seed}
    policy = {
        "dtype": config.policy.dtype,
        "engine": rollout.engine,
        "max_prompt_tokens": rollout.max_prompt_tokens,
    }
    return {
        **weights,
        **(policy if system.llm is None else {"passages": system.passages}),
        "prompts": digest(_prompts(rewriter, system.turns)),
        "rewriter": config.rewriter.model_dump(mode="json", exclude=config.rewriter.unread),
        "turns": system.turns,
        "new_tokens": [rollout.new_tokens(turn) for turn in range(1, system.turns + 1)],
        "shown": [rollout.documents, rollout.document_tokens, rollout.observation_tokens],
        "sampling": sampled if system.sampled else None,
        **({"kept": rollout.keep_rewrites_weight} if system.turns > 1 and rollout.keep_rewrites_weight else {}),
    }


def judgements_identity(qrels: Qrels | None) -> str | None:
    """A hash of all judgements; None where they are not known here."""
    return digest({question: dict(sorted(grades.items())) for question, grades in qrels.items()}) if qrels else None


def options_identity(questions: Sequence[Question]) -> str | None:
    """A hash of all answer options, which stand in the prompts; None where no question has any."""
    options = {question.id: list(question.options) for question in questions if question.options}
    return digest(options) if options else None


def _prompts(rewriter: Rewriter, turns: int) -> list[Any]:
    """Everything that the rewriter puts around a question and documents, and what it searches for answers."""
    question, found = Question("?", "{question}", ("{one}", "{other}")), [Document("?", "{title}", "{text}")] * 2
    if isinstance(rewriter, Staged):
        rewriter.learn_example(question)
    later = [[rewriter.follow_up(question, shown, turn) for shown in (found, [])] for turn in range(2, turns + 1)]
    read = [rewriter.parse(question, said, 1) for said in _SAID]
    plans = [one.plan.model_dump(mode="json") if one.plan is not None else None for one in read]
    return [rewriter.name, rewriter.opening, rewriter.first(question), later, plans]


def digest(value: Mapping[str, Any] | list[Any]) -> str:
    """sha256 (64 hex digits) of plain data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
