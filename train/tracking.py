"""Weights & Biases: online where the user is logged in, offline otherwise, never in the way of a run."""

import logging
import os
from pathlib import Path
from typing import Any, Literal

from ..configs.schema import RunConfig

log = logging.getLogger(__name__)


def open_tracker(config: RunConfig, folder: Path, environment: dict[str, Any]) -> Any:
    """Start (or, on resume, join) the W&B run of this folder; None where it is disabled, here or by WANDB_MODE."""
    mode: Any = config.tracking.wandb
    if mode == "disabled" or (mode == "auto" and os.environ.get("WANDB_MODE") == "disabled"):
        return None
    import wandb

    def start(mode: Literal["online", "offline"]) -> Any:
        return wandb.init(
            project=config.tracking.project,
            name=config.name,
            id=run_id(folder),
            resume="allow",
            dir=str(folder),
            mode=mode,
            config={**config.model_dump(mode="json"), "environment": environment},
            settings=wandb.Settings(silent=True, console="off"),
        )

    if mode == "auto":
        mode = "online" if logged_in() else "offline"
    try:
        return start(mode)
    except wandb.Error as error:
        if mode == "offline":
            raise
        log.warning("Weights & Biases cannot be used online (%s); this run is tracked offline", error)
        return start("offline")


def logged_in() -> bool:
    """Whether an API key is set or stored, without asking the network or the user."""
    if os.environ.get("WANDB_MODE"):
        return os.environ["WANDB_MODE"] == "online"
    if os.environ.get("WANDB_API_KEY"):
        return True
    netrc = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    try:
        return "api.wandb.ai" in netrc.read_text(encoding="utf-8")
    except OSError:
        return False


def run_id(folder: Path) -> str:
    """The W&B id of this run folder: made once, so that a resumed run joins its curves."""
    stored = folder / "wandb_id"
    if stored.exists():
        return stored.read_text(encoding="utf-8").strip()
    import secrets

    fresh = secrets.token_hex(4)
    stored.write_text(fresh + "\n", encoding="utf-8")
    return fresh
