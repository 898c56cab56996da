"""Experiment trackers besides metrics.jsonl: transformers' callbacks for Weights & Biases, TensorBoard and trackio.

They get what the trainer logs: every record of metrics.jsonl under train/ and of validation.jsonl under eval/. A
resumed run is one curve: its id is stored in the run folder.
"""

import os
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations.integration_utils import (
    TensorBoardCallback,
    TrackioCallback,
    WandbCallback,
    rewrite_logs,
)

from ..errors import ConfigError
from ..provenance import Start
from ..storage import write_text
from .run_folder import RunFolder

if TYPE_CHECKING:
    from .trainer import TreeTrainer


def tracker_callbacks(trainer: "TreeTrainer", provenance: Start, cleanup: ExitStack) -> list[TrainerCallback]:
    """The configured trackers of a run, which `cleanup` ends. Raises ConfigError where W&B cannot be opened."""
    trackers: list[TrainerCallback] = []
    config, folder = trainer.run, trainer.folder
    settings = config.tracking
    mode = os.environ.get("WANDB_MODE", "offline") if settings.wandb == "auto" else settings.wandb
    if mode != "disabled":
        import wandb

        joined = (folder.path / "tracking_id").exists()
        try:
            run = wandb.init(
                project=trainer.args.project,
                name=config.name,
                id=tracking_id(folder),
                resume="allow" if joined else None,
                dir=str(folder.path),
                mode="online" if mode == "online" else "offline",
                config={**config.model_dump(mode="json"), "provenance": provenance},
                settings=wandb.Settings(silent=True, console="off", finish_timeout=30),
            )
        except wandb.Error as error:
            raise ConfigError(f"{error} W&B can also track the run offline: tracking.wandb=offline.") from error
        cleanup.callback(run.finish)
        trackers.append(WandbTracker())  # type: ignore[no-untyped-call]
    if "tensorboard" in settings.report_to:
        from torch.utils.tensorboard import SummaryWriter

        # what a resumed run repeats after the step of its checkpoint is hidden
        writer = SummaryWriter(str(folder.path / "tensorboard"), purge_step=provenance["step"] + 1)
        trackers.append(TensorBoardCallback(writer))
    if "trackio" in settings.report_to:
        trainer.args.run_name = f"{config.name}-{tracking_id(folder)}"
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


def tracking_id(folder: RunFolder) -> str:
    """The id of a run in the trackers, which is created once."""
    stored = folder.path / "tracking_id"
    if not stored.exists():
        write_text(stored, secrets.token_hex(4) + "\n")
    return stored.read_text(encoding="utf-8").strip()
