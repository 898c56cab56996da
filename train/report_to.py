"""TensorBoard and trackio, by their names in TRL's `report_to`.

transformers' own callbacks would log what the trainer logs, under `train/…`, and without validation. Here both get the
records of metrics.jsonl and validation.jsonl under the names that they have there.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

from .tracking import Started


class TensorBoard:
    """Event files in `tensorboard/` of the run folder; a resumed run hides what was logged after its checkpoint."""

    name = "tensorboard"

    def __init__(self, started: Started) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge = None if not started.joined else started.step + 1 if started.step else 0
        self._writer = SummaryWriter(str(started.folder / "tensorboard"), purge_step=purge)
        about = {"config": started.config.model_dump(mode="json"), "provenance": dict(started.provenance)}
        for name, told in about.items():
            self._writer.add_text(name, f"```json\n{json.dumps(told, indent=2)}\n```", started.step)

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Log the figures of a step, readable at once."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        """Leave the trees: rollouts.jsonl has them."""

    def close(self) -> None:
        """Write the rest."""
        self._writer.close()


class Trackio:
    """A run in trackio's store of this user (TRACKIO_DIR), or where TRACKIO_SPACE_ID points, private."""

    name = "trackio"

    def __init__(self, started: Started) -> None:
        import trackio

        config = {**started.config.model_dump(mode="json"), "provenance": dict(started.provenance)}
        with redirect_stdout(sys.stderr):  # standard output is the run folder's path
            self._run = trackio.init(
                project=started.config.tracking.project,
                name=f"{started.config.name}-{started.id}",
                config=config,
                resume="allow",
                private=True,
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Log the figures of a step."""
        self._run.log(dict(figures), step=step)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        """Leave the trees: rollouts.jsonl has them."""

    def close(self) -> None:
        """Write, or send, the rest."""
        with redirect_stdout(sys.stderr):
            self._run.finish()
