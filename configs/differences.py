"""Dotted setting names, and the settings that do not change what a run learns."""

import re
from collections.abc import Collection, Iterator, Mapping

from .training import TrainConfig

FREE_TO_CHANGE = (
    "tracking", "eval", "answers", "client", "env.host", "env.port", "env.workers", "train.save_steps",
    "train.validate_steps", "train.keep_checkpoints", "rollout.micro_batch",
    "rollout.max_prompt_tokens", "rollout.vllm", "rollout.server", "optimize.searches",
    "synthetic", *(f"{model}.{name}"
                   for model in ("rewriter.llm", "optimize.reflection", "optimize.task", "reward.answer.reader")
                   for name in ("concurrency", "deadline", "cache")),
)  # fmt: skip
"""Settings that never change what a run learns."""


def free_to_change(train: TrainConfig) -> tuple[str, ...]:
    """Settings that a resumed run may change; `train.steps` is one of them unless the learning rate decays by it."""
    return (*FREE_TO_CHANGE, "train.steps") if train.lr_schedule == "constant" else FREE_TO_CHANGE


def flat(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Every value under its dotted name: {"train": {"steps": 4}} gives ("train.steps", 4)."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def among(name: str, sections: Collection[str]) -> bool:
    """Whether a dotted name is one of `sections` or below one; the prefix of a mix's member is ignored."""
    name = re.sub(r"^mix\.environments\.[^.]+\.", "", name)
    return any(f"{name}.".startswith(f"{section}.") for section in sections)
