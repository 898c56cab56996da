"""Experiment trackers besides metrics.jsonl: transformers' callbacks for Weights & Biases, TensorBoard and trackio.

They get what the trainer logs: every record of metrics.jsonl under train/ and of validation.jsonl under eval/. A
resumed run is one curve: its id is stored in the run folder.
"""

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations.integration_utils import (
    TensorBoardCallback,
    TrackioCallback,
    WandbCallback,
    rewrite_logs,
)

from ..configs.schema import RunConfig, TrackingConfig
from ..errors import TrackingError, in_one_line
from ..provenance import Start
from .arguments import project_name
from .run_folder import RunFolder


def tracker_callbacks(config: RunConfig, folder: Path, provenance: Start) -> list[TrainerCallback]:
    """The configured trackers of a run. Raises TrackingError where W&B cannot be opened."""
    trackers: list[TrainerCallback] = []
    step = provenance["step"]
    description = {**config.model_dump(mode="json"), "provenance": dict(provenance)}
    if wandb_mode(config.tracking) != "disabled":
        open_wandb(config, folder, description)
        trackers.append(WandbTracker())  # type: ignore[no-untyped-call]
    if "tensorboard" in config.tracking.report_to:
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)  # hides what a resumed run repeats
        writer.add_text("config", f"```json\n{json.dumps(description, indent=2)}\n```", step)
        trackers.append(TensorBoardCallback(writer))
    if "trackio" in config.tracking.report_to:
        trackers.append(TrackioCallback())
    return trackers


class WandbTracker(WandbCallback):
    """Logs at the trainer's step, so that a resumed run continues its curves also when it is uploaded later."""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: object = None,
        logs: Mapping[str, float] | None = None,
        **_: object,
    ) -> None:
        """Log the figures."""
        figures = {**rewrite_logs(logs or {}), "train/global_step": state.global_step}
        self._wandb.log(figures, step=state.global_step)

    def on_train_end(self, *_: object, **__: object) -> None:
        """The run stays open until its last files are written (`finish_wandb`)."""


def open_wandb(config: RunConfig, folder: Path, description: Mapping[str, object]) -> Any:
    """Open the W&B run of a run folder. Raises TrackingError."""
    import wandb

    joined = (folder / "tracking_id").exists()
    try:
        return wandb.init(
            project=project_name(),
            name=config.name,
            id=tracking_id(folder),
            resume="allow" if joined else None,
            dir=str(folder),
            mode="online" if wandb_mode(config.tracking) == "online" else "offline",
            config=dict(description),
            settings=wandb.Settings(silent=True, console="off", finish_timeout=30),
        )
    except wandb.Error as error:
        raise TrackingError(
            f"Weights & Biases cannot be opened ({in_one_line(error)}). Run `wandb login`, or track the run offline "
            "(tracking.wandb=offline) and upload it later with `querylect sync`."
        ) from error


def finish_wandb() -> None:
    """End the W&B run that is open in this process, if there is one."""
    import wandb

    wandb.finish()


def tracking_id(folder: Path) -> str:
    """The id of a run in the trackers, which is created once."""
    stored = folder / "tracking_id"
    if not stored.exists():
        RunFolder(folder).write(stored, secrets.token_hex(4) + "\n")
    return stored.read_text(encoding="utf-8").strip()


def wandb_mode(settings: TrackingConfig) -> Literal["online", "offline", "disabled"]:
    """The W&B mode; `auto` is WANDB_MODE if that is set, else offline."""
    if settings.wandb != "auto":
        return settings.wandb
    mode = os.environ.get("WANDB_MODE", "offline")
    return mode if mode in ("online", "disabled") else "offline"  # type: ignore[return-value]
