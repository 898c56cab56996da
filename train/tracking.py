"""Where curves go besides metrics.jsonl: Weights & Biases, TensorBoard, trackio. None is ever in the way of a run.

Each has a thread of its own that opens it, logs into it and closes it: a server that is slow, gone or refuses costs the
training nothing. What fails is told once, in one sentence; metrics.jsonl has every figure all the same.
"""

import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from ..configs.schema import RunConfig
from ..errors import ConfigError
from .run_folder import write_atomically

log = logging.getLogger(__name__)

NEEDS = {"tensorboard": "tensorboard", "trackio": "trackio"}
"""What `tracking.report_to` may name: the module that must be there, which an extra of the same name installs."""

CLOSING_SECONDS = 60.0
"""How long the end of a run waits for what was not yet written or sent."""

STOPPING_SECONDS = 10.0
"""The same where a signal ended it, and whoever sent it will not wait."""


class Tracker(Protocol):
    """One place for curves; called from one thread."""

    name: str

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Take the figures of a step, under their names in metrics.jsonl."""

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        """Take sampled trees, or leave them."""

    def close(self) -> None:
        """Write and send the rest."""


@dataclass(frozen=True, slots=True)
class Started:
    """What a tracker is told of the run when it is opened."""

    config: RunConfig
    folder: Path
    provenance: Mapping[str, Any]
    """What this start of the run goes by: versions, git state, hashes of the environment."""
    step: int
    """The last step that counts from before; 0 for a new run."""
    id: str
    joined: bool
    """Whether an earlier start of this run was tracked under the same id."""


class Trackers:
    """All places of a run, each in its own thread."""

    def __init__(self, lanes: "Sequence[_Lane]") -> None:
        self._lanes = list(lanes)

    def log(self, figures: Mapping[str, Any], step: int) -> None:
        """Hand a record on; never waits, never raises."""
        told = {name: value for name, value in figures.items() if name != "step"}
        for lane in self._lanes:
            lane.put(lambda tracker: tracker.log(told, step))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        """Hand sampled trees on; never waits, never raises."""
        for lane in self._lanes:
            lane.put(lambda tracker: tracker.table(columns, rows, step))

    def finish(self, seconds: float = CLOSING_SECONDS) -> None:
        """Close all of them side by side; whatever is not done after `seconds` is left behind with a warning."""
        for lane in self._lanes:
            lane.end()
        until = time.monotonic() + seconds
        for lane in self._lanes:
            if not lane.ended(until):
                log.warning(
                    "%s had not taken everything after %g s and is left behind; metrics.jsonl is complete",
                    lane.name, seconds,
                )  # fmt: skip


class _Lane:
    """A thread that opens one tracker and does what it is handed, in order."""

    def __init__(self, name: str, opening: Callable[[], Tracker]) -> None:
        self.name, self._opening = name, opening
        self._work: queue.SimpleQueue[Callable[[Tracker], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"tracking {name}", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[Tracker], None]) -> None:
        self._work.put(job)

    def end(self) -> None:
        self._work.put(None)

    def ended(self, until: float) -> bool:
        self._thread.join(max(0.0, until - time.monotonic()))
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            tracker = self._opening()
            while (job := self._work.get()) is not None:
                job(tracker)
            tracker.close()
        except Exception as error:  # whatever a tracker does, the run goes on
            log.warning(
                "%s failed and gets no more of this run (%s); the run goes on, and metrics.jsonl has every figure",
                self.name, in_one_line(error),
            )  # fmt: skip
            log.debug("where it failed", exc_info=error)


def in_one_line(error: BaseException) -> str:
    """What an error says, on one line and not too long."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def check_report_to(config: RunConfig) -> None:
    """Raise ConfigError where a package that `tracking.report_to` needs is not installed."""
    for name in config.tracking.report_to:
        if find_spec(NEEDS[name]) is None:
            raise ConfigError(
                f"tracking.report_to names {name}, and the package {NEEDS[name]} is not installed. Install it with "
                f"`pip install 'querylect[{name}]'`, or leave {name} out."
            )


def open_trackers(config: RunConfig, folder: Path, provenance: Mapping[str, Any], step: int = 0) -> Trackers:
    """Start, or after a resume join, what the settings ask for, without waiting for any of it."""
    from .wandb_run import WandbRun, wandb_mode

    openings: dict[str, Callable[[Started], Tracker]] = {}
    if wandb_mode(config.tracking) != "disabled":
        openings["Weights & Biases"] = WandbRun
    if config.tracking.report_to:
        from .report_to import TensorBoard, Trackio

        known: dict[str, Callable[[Started], Tracker]] = {"tensorboard": TensorBoard, "trackio": Trackio}
        openings |= {name: known[name] for name in config.tracking.report_to}
    if not openings:
        return Trackers([])
    id, joined = tracking_id(folder)
    started = Started(config, folder, provenance, step, id, joined)
    return Trackers([_Lane(name, partial(opens, started)) for name, opens in openings.items()])


def tracking_id(folder: Path) -> tuple[str, bool]:
    """The id of this run folder, made once so that a resumed run joins its curves, and whether it was there."""
    stored = folder / "tracking_id"
    if stored.exists():
        return stored.read_text(encoding="utf-8").strip(), True
    fresh = secrets.token_hex(4)
    write_atomically(stored, fresh + "\n")
    return fresh, False
