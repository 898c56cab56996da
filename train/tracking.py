"""Experiment trackers besides metrics.jsonl: Weights & Biases, TensorBoard, trackio. None of them can block a run.

Each tracker has a thread that opens it, logs into it and closes it, so a slow, unreachable or refusing server does not
delay training. A failure is logged once, in one sentence; metrics.jsonl is complete in any case.
"""

import json
import logging
import os
import queue
import re
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

from ..configs.schema import RunConfig, TrackingConfig
from ..errors import ConfigError, TrackingError, UserError
from .run_folder import write_atomically

log = logging.getLogger(__name__)

NEEDS = {"tensorboard": "tensorboard", "trackio": "trackio"}
"""Valid names in `tracking.report_to` and the module that each needs; an extra of the same name installs it."""

CLOSING_SECONDS = 60.0
"""How long the end of a run waits for pending writes and uploads."""

STOPPING_SECONDS = 10.0
"""The same after a signal, whose sender will not wait long."""

Mode = Literal["online", "offline", "disabled"]

OPENING_SECONDS = 30.0
"""How long a server may take to answer before the run is tracked offline."""

SENDING_SECONDS = 8.0
"""How long the end of a run waits for the remaining upload. W&B's client waits as long again when the process ends, so
this is below the time that a signal leaves (STOPPING_SECONDS)."""

RETRIES = {"WANDB__GRAPHQL_RETRY_MAX": "4", "WANDB__FILE_STREAM_RETRY_MAX": "4", "WANDB__FILE_TRANSFER_RETRY_MAX": "4"}
"""Retries of W&B's client; its defaults retry for hours."""

UPLOADING_SECONDS = 3600.0
"""How long the upload of one file may take."""

LOOKING_SECONDS = 15.0
"""Timeout of the request that checks whether the server is reachable."""


class Tracker(Protocol):
    """An experiment tracker; called from one thread."""

    name: str

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Log the metrics of a step, under their names in metrics.jsonl."""

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        """Log a table of sampled trees, or ignore it."""

    def close(self) -> None:
        """Flush and close."""


@dataclass(frozen=True, slots=True)
class Started:
    """What a tracker gets to know about the run when it is opened."""

    config: RunConfig
    folder: Path
    provenance: Mapping[str, Any]
    """Provenance of this start: versions, git state, hashes of the environment."""
    step: int
    """The step that the run resumes from; 0 for a new run."""
    id: str
    joined: bool
    """Whether an earlier start of this run was tracked under the same id."""


class Trackers:
    """All trackers of a run, each in its own thread."""

    def __init__(self, lanes: "Sequence[_Lane]") -> None:
        self._lanes = list(lanes)

    def log(self, figures: Mapping[str, Any], step: int) -> None:
        """Enqueue a record; never blocks, never raises."""
        values = {name: value for name, value in figures.items() if name != "step"}
        for lane in self._lanes:
            lane.put(lambda tracker: tracker.log(values, step))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        """Enqueue a table of sampled trees; never blocks, never raises."""
        for lane in self._lanes:
            lane.put(lambda tracker: tracker.table(columns, rows, step))

    def finish(self, seconds: float = CLOSING_SECONDS) -> None:
        """Close all trackers in parallel; those not done after `seconds` are abandoned with a warning."""
        for lane in self._lanes:
            lane.end()
        deadline = time.monotonic() + seconds
        for lane in self._lanes:
            if not lane.ended(deadline):
                log.warning(
                    "%s had not taken everything after %g s and is left behind; metrics.jsonl is complete",
                    lane.name, seconds,
                )  # fmt: skip


class _Lane:
    """A thread that opens one tracker and executes its queue of jobs in order."""

    def __init__(self, name: str, opening: Callable[[], Tracker]) -> None:
        self.name, self._opening = name, opening
        self._work: queue.SimpleQueue[Callable[[Tracker], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"tracking {name}", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[Tracker], None]) -> None:
        self._work.put(job)

    def end(self) -> None:
        self._work.put(None)

    def ended(self, deadline: float) -> bool:
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            tracker = self._opening()
            while (job := self._work.get()) is not None:
                job(tracker)
            tracker.close()
        except Exception as error:  # a failing tracker must not stop the run
            log.warning(
                "%s failed and gets no more of this run (%s); the run goes on, and metrics.jsonl has every figure",
                self.name, in_one_line(error),
            )  # fmt: skip
            log.debug("where it failed", exc_info=error)


def in_one_line(error: BaseException) -> str:
    """The message of an error, on one line of at most 300 characters."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def check_report_to(config: RunConfig) -> None:
    """Raise ConfigError if a package that `tracking.report_to` needs is not installed."""
    for name in config.tracking.report_to:
        if find_spec(NEEDS[name]) is None:
            raise ConfigError(
                f"tracking.report_to names {name}, and the package {NEEDS[name]} is not installed. Install it with "
                f"`pip install 'querylect[{name}]'`, or leave {name} out."
            )


def open_trackers(config: RunConfig, folder: Path, provenance: Mapping[str, Any], step: int = 0) -> Trackers:
    """Start the configured trackers, or rejoin them after a resume, without waiting for them."""
    factories: dict[str, Callable[[Started], Tracker]] = {}
    if wandb_mode(config.tracking) != "disabled":
        factories["Weights & Biases"] = WandbRun
    available: dict[str, Callable[[Started], Tracker]] = {"tensorboard": TensorBoard, "trackio": Trackio}
    factories |= {name: available[name] for name in config.tracking.report_to}
    if not factories:
        return Trackers([])
    id, joined = tracking_id(folder)
    started = Started(config, folder, provenance, step, id, joined)
    return Trackers([_Lane(name, partial(factory, started)) for name, factory in factories.items()])


def tracking_id(folder: Path) -> tuple[str, bool]:
    """The id of this run folder, created once so that a resumed run rejoins its curves, and whether it existed."""
    stored = folder / "tracking_id"
    if stored.exists():
        return stored.read_text(encoding="utf-8").strip(), True
    new = secrets.token_hex(4)
    write_atomically(stored, new + "\n")
    return new, False


class TensorBoard:
    """Event files in `tensorboard/` of the run folder; a resumed run purges steps after its checkpoint."""

    name = "tensorboard"

    def __init__(self, started: Started) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge = None if not started.joined else started.step + 1 if started.step else 0
        self._writer = SummaryWriter(str(started.folder / "tensorboard"), purge_step=purge)
        texts = {"config": started.config.model_dump(mode="json"), "provenance": dict(started.provenance)}
        for name, content in texts.items():
            self._writer.add_text(name, f"```json\n{json.dumps(content, indent=2)}\n```", started.step)

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Log the metrics of a step and flush."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        """Does nothing: rollouts.jsonl has the trees."""

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


class Trackio:
    """A run in the user's local trackio store (TRACKIO_DIR), or in the private Space that TRACKIO_SPACE_ID names."""

    name = "trackio"

    def __init__(self, started: Started) -> None:
        import trackio

        config = {**started.config.model_dump(mode="json"), "provenance": dict(started.provenance)}
        with redirect_stdout(sys.stderr):  # stdout is reserved for the path of the run folder
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
        """Log the metrics of a step."""
        self._run.log(dict(figures), step=step)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        """Does nothing: rollouts.jsonl has the trees."""

    def close(self) -> None:
        """Flush and close."""
        with redirect_stdout(sys.stderr):
            self._run.finish()


_NO_ANSWER = re.compile(
    r"Failed to execute API request|did not respond|dial tcp|connection (refused|reset)|no such host"
    r"|time(d )?-?out|deadline exceeded|HTTP 5\d\d|An error occurred while checking",
    re.IGNORECASE,
)


def wandb_mode(settings: TrackingConfig) -> Mode:
    """The W&B mode; `auto` is WANDB_MODE if that is set, else offline."""
    if settings.wandb != "auto":
        return settings.wandb
    mode = os.environ.get("WANDB_MODE", "offline")
    return mode if mode in ("online", "disabled") else "offline"  # type: ignore[return-value]


class WandbRun:
    """The W&B run of a run folder. Every method may raise; a run that the server refuses continues offline."""

    name = "Weights & Biases"

    def __init__(self, started: Started) -> None:
        self.started = started
        self.online = wandb_mode(started.config.tracking) == "online"
        if self.online and not logged_in():
            log.warning(
                "tracking.wandb is online and nobody is logged in to Weights & Biases (`wandb login`); this run is "
                "tracked offline, and %s uploads it later", self._sync,
            )  # fmt: skip
            self.online = False
        self._run = self._open_online() if self.online else self._open("offline", started.joined)

    @property
    def _sync(self) -> str:
        return f"`querylect sync {self.started.folder}`"

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Log the metrics of a step."""
        self._safely(lambda run: run.log(dict(figures), step=step))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        """Log sampled trees as the table `rollouts`."""
        import wandb

        table = wandb.Table(columns=list(columns), data=[list(row) for row in rows])
        self._safely(lambda run: run.log({"rollouts": table}, step=step))

    def close(self) -> None:
        """Finish the run; if it is online, send the rest."""
        problem = login_problem() if self.online else ""
        try:
            self._run.finish()
        except TimeoutError:
            problem = problem or f"it had not taken everything after {SENDING_SECONDS:g} s"
        if problem:
            log.warning(
                "Weights & Biases has not got all of this run (%s); it lies in %s, and where you are logged in "
                "`querylect sync %s --include-online` uploads it",
                problem, self.started.folder / "wandb", self.started.folder,
            )  # fmt: skip

    def _safely(self, job: Callable[[Any], object]) -> None:
        import wandb

        try:
            job(self._run)
        except wandb.Error as error:
            if not self.online:
                raise
            log.warning(
                "Weights & Biases refused this run (%s); it goes on offline, and after `wandb login` "
                "`querylect sync %s --include-online` uploads it", in_one_line(error), self.started.folder,
            )  # fmt: skip
            with suppress(TimeoutError):
                self._run.finish()
            self._run = self._offline_instead(joined=True)
            job(self._run)

    def _open_online(self) -> Any:
        import wandb

        try:
            return self._open("online", self.started.joined)
        except wandb.Error as error:
            log.warning(
                "Weights & Biases cannot be used online (%s); this run is tracked offline, and %s uploads it later",
                in_one_line(error), self._sync,
            )  # fmt: skip
            return self._offline_instead(self.started.joined)

    def _offline_instead(self, joined: bool) -> Any:
        import wandb

        self.online = False
        wandb.teardown()  # otherwise its service still holds the refused run, and ids must be unique
        return self._open("offline", joined)

    def _open(self, mode: Literal["online", "offline"], joined: bool) -> Any:
        import wandb

        started = self.started
        return wandb.init(
            project=started.config.tracking.project,
            name=started.config.name,
            id=started.id,
            resume="allow" if joined else None,
            reinit="create_new",
            dir=str(started.folder),
            mode=mode,
            config={**started.config.model_dump(mode="json"), "provenance": dict(started.provenance)},
            settings=wandb.Settings(
                silent=True,
                console="off",
                init_timeout=OPENING_SECONDS,
                finish_timeout=SENDING_SECONDS,
                finish_timeout_raises=True,
            ),
        )


def logged_in() -> bool:
    """Whether W&B's client finds an API key, without network access or a prompt."""
    return credentials() is not None


def credentials() -> Any:
    """The credentials that W&B's client would use; None if there are none, or none usable."""
    import wandb
    from wandb.sdk.lib import wbauth

    try:
        return wbauth.authenticate_session(
            host=wandb.setup().settings.base_url, source="querylect", prompt=False, update_session=False
        )
    except wandb.Error as error:
        log.debug("the login of Weights & Biases is of no use: %s", error)
        return None


def is_refusal(problem: str) -> bool:
    """Whether `problem` is the server's rejection of a login, not a missing answer: W&B's client raises the same error,
    with the same first words, for both."""
    return _NO_ANSWER.search(problem) is None


def login_problem() -> str:
    """Why the server does not accept the login (rejected or no answer); "" if it does, or if there is no login."""
    import wandb

    login = credentials()
    try:
        if login is not None:
            login.verify()
    except wandb.Error as error:
        return in_one_line(error)
    return ""


@dataclass(frozen=True, slots=True)
class Segment:
    """The W&B file of one start of a run."""

    path: Path

    @property
    def mark(self) -> Path:
        """The file with which W&B's client marks an upload."""
        return self.path.with_name(f"{self.path.name}.synced")

    @property
    def synced(self) -> bool:
        """Whether it was uploaded and has not changed since."""
        return self.mark.exists() and self.mark.stat().st_mtime >= self.path.stat().st_mtime


def sync(folders: Sequence[Path], include_online: bool = False, told: Callable[[str], None] = print) -> None:
    """Upload the W&B files of these run folders that are not uploaded yet; `told` gets one line per folder.

    Raises ConfigError for a folder without such files, UserError without an accepted login, TrackingError if the server
    is unreachable or does not accept everything. Uploads completed before an error are kept.
    """
    pending = {folder: segments(folder, include_online) for folder in folders}
    pending = {folder: [segment for segment in files if not segment.synced] for folder, files in pending.items()}
    if any(pending.values()):
        check_server()
    for folder, files in pending.items():
        if not files:
            told(f"{folder}: nothing to upload, Weights & Biases has all of it")
            continue
        url = ""
        for segment in files:
            url = upload(segment) or url
        told(f"{folder}: uploaded{f' to {url}' if url else ''}")


def segments(folder: Path, include_online: bool = False) -> list[Segment]:
    """The W&B files of a run folder, or of a wandb folder, in chronological order.

    Raises ConfigError if there are none.
    """
    root = folder / "wandb" if (folder / "wandb").is_dir() else folder
    kinds = ("offline-run-*", "run-*") if include_online else ("offline-run-*",)
    runs = [run for kind in kinds for run in root.glob(kind) if run.is_dir()]
    files = sorted((file for run in runs for file in run.glob("run-*.wandb")), key=lambda file: _time(file.parent))
    if not files:
        online = any(root.glob("run-*/run-*.wandb"))
        raise ConfigError(
            f"{folder} holds no offline run of Weights & Biases"
            + (
                "; it was tracked online. Where the server did not take all of it: --include-online."
                if online
                else ". Give the folder of a run that was tracked offline, as runs are where neither "
                "tracking.wandb nor WANDB_MODE says otherwise."
            )
        )
    return [Segment(file) for file in files]


def _time(run: Path) -> str:
    return run.name.removeprefix("offline-").removeprefix("run-")


def check_server() -> None:
    """Raise UserError without a login that the server accepts, TrackingError if it does not answer."""
    import httpx
    import wandb

    url = wandb.setup().settings.base_url
    if credentials() is None:
        raise UserError(
            f"nobody is logged in to Weights & Biases at {url}. Log in with `wandb login`, or set WANDB_API_KEY, and "
            "give the same command again."
        )
    try:
        response = httpx.post(f"{url}/graphql", json={"query": "query { viewer { id } }"}, timeout=LOOKING_SECONDS)
    except httpx.HTTPError as error:
        raise TrackingError(
            f"Weights & Biases cannot be reached at {url} ({in_one_line(error)}). The run stays where it is; give the "
            "same command again where there is a network."
        ) from error
    if response.status_code >= 500:
        raise TrackingError(
            f"Weights & Biases at {url} answers HTTP {response.status_code}. The run stays where it is; try again "
            "later."
        )
    problem = login_problem()
    if problem and not is_refusal(problem):
        raise TrackingError(
            f"Weights & Biases at {url} does not say whether it takes this login ({problem}). The run stays where it "
            "is; give the same command again later."
        )
    if problem:
        raise UserError(
            f"Weights & Biases does not take this login ({problem}): it has expired, or was revoked. Log in with "
            "`wandb login --relogin` and give the same command again; the run stays where it is."
        )


def upload(segment: Segment) -> str:
    """Upload one file and return the address of its run. Raises TrackingError."""
    size = segment.path.stat().st_size
    had_mark = segment.mark.exists()
    command = [sys.executable, "-m", "wandb", "sync", "--include-synced", "--include-online", str(segment.path)]
    client_settings = {"WANDB_SILENT": "false", "WANDB_QUIET": "false", "NO_COLOR": "1", "WANDB_MODE": "online"}
    with tempfile.TemporaryDirectory() as logs:  # otherwise wandb writes them to the working directory
        environment = os.environ | RETRIES | client_settings | {"WANDB_DIR": logs}
        log.info("uploading %s, %.1f MB", segment.path, size / 1e6)
        try:
            process = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                env=environment,
                timeout=UPLOADING_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            if not had_mark:
                segment.mark.unlink(missing_ok=True)
            raise TrackingError(
                f"Weights & Biases had not taken {segment.path.parent} after {UPLOADING_SECONDS:g} s. It stays where "
                "it is; give the same command again."
            ) from error
    lines = (process.stdout + process.stderr).splitlines()
    errors = [line.partition("ERROR")[2].strip() for line in lines if "ERROR" in line]
    if process.returncode or errors or not segment.mark.exists():
        if not had_mark:
            segment.mark.unlink(missing_ok=True)
        reason = " ".join(errors[0].split())[:300] if errors else in_one_line(RuntimeError(lines[-1] if lines else ""))
        raise TrackingError(
            f"Weights & Biases did not take all of {segment.path.parent} ({reason}). It stays where it is; give the "
            "same command again."
        )
    if segment.path.stat().st_size != size:
        segment.mark.unlink(missing_ok=True)
        raise TrackingError(
            f"{segment.path.parent} grew while it was uploaded: the run goes on. Give the same command again when it "
            "has ended."
        )
    match = re.search(r"View run .* at (\S+)", "\n".join(lines))
    return match[1] if match else ""
