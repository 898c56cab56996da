"""Experiment trackers besides metrics.jsonl: callbacks for Weights & Biases, TensorBoard and trackio.

Each callback runs in a thread of its own, so none can delay a run or end it with an error. A failure is logged once, in
one sentence; metrics.jsonl is complete in any case.
"""

import json
import logging
import os
import queue
import secrets
import shlex
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations.integration_utils import TensorBoardCallback, TrackioCallback, rewrite_logs

from ..configs.schema import RunConfig, TrackingConfig
from ..errors import in_one_line
from ..provenance import Start
from .metrics import COLUMNS, TableRow
from .run_folder import RunFolder
from .sync import credentials

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from wandb import Run

log = logging.getLogger(__name__)

CLOSING_SECONDS = 60.0
"""How long the end of a run waits for pending writes and uploads."""

STOPPING_SECONDS = 10.0
"""The same after a signal, whose sender will not wait long."""

OPENING_SECONDS = 30.0
"""How long W&B's server may take to answer before the run is tracked offline."""

SENDING_SECONDS = 8.0
"""How long W&B's client waits for the remaining upload at the end of a run, and once more when the process ends; below
STOPPING_SECONDS."""

WARM_START = "warm_start/"
"""Prefix of the figures of warm_start.jsonl."""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What trackers show of a run besides its metrics."""

    config: RunConfig
    folder: Path
    provenance: Start
    id: str
    joined: bool
    """Whether an earlier start of this run was tracked under the same id."""

    @classmethod
    def of(cls, config: RunConfig, folder: Path, provenance: Start) -> "TrackedRun":
        """The run of a folder. Its id is created once, so that a resumed run rejoins its curves."""
        stored = folder / "tracking_id"
        joined = stored.exists()
        if not joined:
            RunFolder(folder).write(stored, secrets.token_hex(4) + "\n")
        return cls(config, folder, provenance, stored.read_text(encoding="utf-8").strip(), joined)

    @property
    def description(self) -> dict[str, object]:
        """Settings and provenance as plain data."""
        return {**self.config.model_dump(mode="json"), "provenance": dict(self.provenance)}


class WandbTracker(TrainerCallback):
    """Logs into the W&B run of the run folder, offline if no server takes it, and adds sampled trees as a table.

    Not a WandbCallback of transformers, which logs into whichever run is open in the process and watches the model.
    """

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self._wandb, self._tracked = wandb, run

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Open the run, online if that is asked for and possible."""
        self._settings = {**args.to_dict(), **self._tracked.description}
        folder = RunFolder(self._tracked.folder)
        self._before = len(folder.read(folder.warm_start))  # W&B's own step is never negative
        online = wandb_mode(self._tracked.config.tracking) == "online"
        if online and credentials() is None:
            self._warn("cannot be used online (nobody is logged in: `wandb login`): this run is tracked offline")
            online = False
        try:
            self._open(online, self._tracked.joined)
        except self._wandb.Error as error:
            # W&B's service holds the refused run, and ids must be unique; a teardown would end other open runs too
            if not online or self._wandb.setup().most_recent_active_run is not None:
                raise
            self._warn(f"cannot be used online ({in_one_line(error)}): this run is tracked offline")
            self._wandb.teardown()
            self._open(False, self._tracked.joined)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float | None] | None = None,
        table: Sequence[TableRow] = (),
        **_: object,
    ) -> None:
        """Log the metrics at the trainer's step, so that a resumed run continues its curves; with them the table of
        sampled trees, if there is one. A run that the server refuses continues offline."""
        logs = logs or {}
        try:
            self._log(logs, table, state.global_step)
        except self._wandb.Error as error:
            if not self._online:
                raise
            reason = in_one_line(error)
            self._warn(f"refused this run ({reason}; see `wandb login`): it continues offline", "--include-online")
            with suppress(TimeoutError):
                self._run.finish()
            self._open(online=False, joined=True)
            self._log(logs, table, state.global_step)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Finish the run; if it is online, send the rest."""
        try:
            self._run.finish()
        except TimeoutError:
            self._warn(f"had not taken all of this run after {SENDING_SECONDS:g} s", "--include-online")

    def _log(self, logs: Mapping[str, float | None], table: Sequence[TableRow], step: int) -> None:
        figures = {**rewrite_logs(logs), "train/global_step": step}
        if table:
            figures["rollouts"] = self._wandb.Table(columns=list(COLUMNS), data=[list(row) for row in table])
        self._run.log(figures, step=self._before + step)

    def _warn(self, event: str, *options: str) -> None:
        command = shlex.join(["querylect", "sync", str(self._tracked.folder), *options])
        log.warning("Weights & Biases %s; `%s` uploads it later", event, command)

    def _open(self, online: bool, joined: bool) -> None:
        self._online, self._run = online, open_wandb(self._tracked, online, joined, self._settings)
        self._run.define_metric("train/global_step")
        self._run.define_metric("*", step_metric="train/global_step", step_sync=True)


def open_wandb(run: TrackedRun, online: bool, joined: bool, settings: Mapping[str, object]) -> "Run":
    """Open the W&B run of a run folder; `joined` if the id was used before, `settings` is what it shows as its config.

    Raises wandb.Error.
    """
    import wandb

    return wandb.init(
        project=run.config.tracking.project,
        name=run.config.name,
        group=run.config.tracking.group,
        tags=run.config.tracking.tags or None,
        id=run.id,
        resume="allow" if joined else None,
        reinit="create_new",  # beside a run that the process has open
        dir=str(run.folder),
        mode="online" if online else "offline",
        config=dict(settings),
        settings=wandb.Settings(
            silent=True,
            console="off",
            init_timeout=OPENING_SECONDS,
            finish_timeout=SENDING_SECONDS,
            finish_timeout_raises=True,
        ),
    )


class TrackioTracker(TrackioCallback):
    """Logs into the user's local trackio store, or the Space that TRACKIO_SPACE_ID names.

    What trackio prints goes to stderr: stdout is reserved for the path of the run folder.
    """

    def __init__(self, run: TrackedRun) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tracked = run

    def setup(
        self, args: TrainingArguments, state: TrainerState, model: "PreTrainedModel | None", **kwargs: object
    ) -> None:
        """Open or rejoin the run."""
        args = copy(args)
        args.run_name = f"{self._tracked.config.name}-{self._tracked.id}"
        with redirect_stdout(sys.stderr):
            super().setup(args, state, model, **kwargs)  # type: ignore[no-untyped-call]
        self._trackio.config.update(self._tracked.description, allow_val_change=True)

    def on_train_end(  # type: ignore[override]  # transformers names two of the keyword arguments
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        with redirect_stdout(sys.stderr):
            super().on_train_end(args, state, control, **kwargs)


class _WithoutWriterThreads:
    """A `threading.excepthook` that prints no traceback of TensorBoard's threads: GuardedCallback reports the error,
    which the next write raises again."""

    def __init__(self, report: Callable[[threading.ExceptHookArgs], object]) -> None:
        self._report = report

    def __call__(self, failure: threading.ExceptHookArgs) -> None:
        if not type(failure.thread).__module__.startswith("tensorboard."):
            self._report(failure)


def tensorboard_callback(run: TrackedRun) -> TensorBoardCallback:
    """Event files in `tensorboard/` of the run folder; a resumed run purges steps after its checkpoint."""
    from torch.utils.tensorboard import SummaryWriter

    if not isinstance(threading.excepthook, _WithoutWriterThreads):
        threading.excepthook = _WithoutWriterThreads(threading.excepthook)
    step = run.provenance["step"]
    purge = None if not run.joined else step + 1 if step else 0
    writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=purge)
    writer.add_text("config", f"```json\n{json.dumps(run.description, indent=2)}\n```", step)
    return TensorBoardCallback(writer)


CALLBACKS: Mapping[str, Callable[[TrackedRun], TrainerCallback]] = {
    "wandb": WandbTracker,
    "tensorboard": tensorboard_callback,
    "trackio": TrackioTracker,
}


class GuardedCallback:
    """Passes events on to a callback in a thread; never blocks, never raises. The first error drops the callback."""

    def __init__(self, name: str, create: Callable[[], TrainerCallback]) -> None:
        self.name, self._create = name, create
        self._events: queue.SimpleQueue[tuple[str, TrainingArguments, TrainerState, dict[str, object]]]
        self._events = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"tracking {name}", daemon=True)
        self._thread.start()

    def send(self, event: str, args: TrainingArguments, state: TrainerState, **details: object) -> None:
        """Enqueue an event of TrainerCallback; on_train_end is the last."""
        self._events.put((event, args, copy(state), details))

    def ended(self, deadline: float) -> bool:
        """Wait for the last event until `deadline` of the monotonic clock."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _run(self) -> None:
        event = ""
        try:
            callback = self._create()
            while event != "on_train_end":
                event, args, state, details = self._events.get()
                getattr(callback, event)(args, state, TrainerControl(), **details)
        except Exception as error:  # a failing tracker must not stop the run
            log.warning(
                "%s failed and gets no more of this run (%s); the run goes on, and metrics.jsonl has every figure",
                self.name, in_one_line(error),
            )  # fmt: skip
            log.debug("where it failed", exc_info=error)


class Trackers:
    """The trackers of a run: `begin` starts them, `close` ends them."""

    def __init__(self, callbacks: Mapping[str, Callable[[], TrainerCallback]]) -> None:
        self._callbacks = callbacks
        self._guarded: list[GuardedCallback] = []

    def begin(self, args: TrainingArguments, state: TrainerState) -> None:
        """Open every tracker, without waiting for it. The model is not handed over: it is changing meanwhile."""
        self._args, self._state = args, copy(state)
        self._guarded = [GuardedCallback(name, create) for name, create in self._callbacks.items()]
        self._send("on_train_begin")

    def log(self, figures: Mapping[str, float | None], table: Sequence[TableRow] = (), prefix: str = "") -> None:
        """Log a record of metrics.jsonl (or, with the prefix eval_, validation.jsonl), and rows of sampled trees.

        Trackers show the names of metrics.jsonl under train/ and those of validation.jsonl under eval/.
        """
        step = figures["step"]
        assert step is not None, "every record has its step"
        self._state.global_step = int(step)
        self._send("on_log", logs={prefix + name: figures[name] for name in figures if name != "step"}, table=table)

    def log_warm_start(self, records: Sequence[Mapping[str, float | None]]) -> None:
        """Log warm_start.jsonl of a run that has just begun, at steps that end at 0, before the first of training."""
        for step, record in enumerate(records, start=1 - len(records)):
            self.log({**record, "step": step}, prefix=WARM_START)

    def close(self, seconds: float = CLOSING_SECONDS) -> None:
        """Close all trackers in parallel; those not done after `seconds` are abandoned with a warning."""
        if self._guarded:
            self._send("on_train_end")
        deadline = time.monotonic() + seconds
        for guarded in self._guarded:
            if not guarded.ended(deadline):
                log.warning(
                    "%s had not taken everything after %g s and is left behind; metrics.jsonl is complete",
                    guarded.name, seconds,
                )  # fmt: skip

    def _send(self, event: str, **details: object) -> None:
        for guarded in self._guarded:
            guarded.send(event, self._args, self._state, **details)


def open_trackers(config: RunConfig, folder: Path, provenance: Start) -> Trackers:
    """The configured trackers of a run, which a resumed run rejoins."""
    names = [*(["wandb"] if wandb_mode(config.tracking) != "disabled" else []), *config.tracking.report_to]
    if not names:
        return Trackers({})
    run = TrackedRun.of(config, folder, provenance)
    return Trackers({name: partial(CALLBACKS[name], run) for name in names})


def wandb_mode(settings: TrackingConfig) -> Literal["online", "offline", "disabled"]:
    """The W&B mode; `auto` is WANDB_MODE if that is set, else offline."""
    if settings.wandb != "auto":
        return settings.wandb
    mode = os.environ.get("WANDB_MODE", "offline")
    return mode if mode in ("online", "disabled") else "offline"  # type: ignore[return-value]
