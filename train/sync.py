"""`querylect sync`: uploads what a run left for Weights & Biases, by W&B's own client.

Every start of a run is a file of its own under one id, uploaded in the order of time. W&B's client marks a file as
synced even where the server took none of it and ends with exit code 0; here that is a failure, and the mark is taken
away again. Nothing else in the run folder is touched.
"""

import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError, TrackingError, UserError
from .tracking import in_one_line
from .wandb_run import credentials, is_refusal, login_problem

log = logging.getLogger(__name__)

RETRIES = {"WANDB__GRAPHQL_RETRY_MAX": "4", "WANDB__FILE_STREAM_RETRY_MAX": "4", "WANDB__FILE_TRANSFER_RETRY_MAX": "4"}
"""How often W&B's client tries again; its own numbers let it try for hours."""

UPLOADING_SECONDS = 3600.0
"""How long the upload of one file may take."""

LOOKING_SECONDS = 15.0
"""How long the server may take to say that it is there."""


@dataclass(frozen=True, slots=True)
class Segment:
    """What one start of a run left."""

    path: Path

    @property
    def mark(self) -> Path:
        """The file by which W&B's client knows what it has uploaded."""
        return self.path.with_name(f"{self.path.name}.synced")

    @property
    def synced(self) -> bool:
        """Whether it was uploaded, and has not grown since."""
        return self.mark.exists() and self.mark.stat().st_mtime >= self.path.stat().st_mtime


def sync(folders: Sequence[Path], include_online: bool = False, told: Callable[[str], None] = print) -> None:
    """Upload what these run folders hold and W&B has not got; one line about each is `told`.

    Raises ConfigError for a folder without such files, UserError without a login that is taken, TrackingError where the
    server cannot be reached or does not take everything. What was uploaded before an error stays uploaded.
    """
    waiting = {folder: segments(folder, include_online) for folder in folders}
    waiting = {folder: [one for one in found if not one.synced] for folder, found in waiting.items()}
    if any(waiting.values()):
        check_server()
    for folder, found in waiting.items():
        if not found:
            told(f"{folder}: nothing to upload, Weights & Biases has all of it")
            continue
        url = ""
        for one in found:
            url = upload(one) or url
        told(f"{folder}: uploaded{f' to {url}' if url else ''}")


def segments(folder: Path, include_online: bool = False) -> list[Segment]:
    """The files of a run folder, or of a wandb folder, in the order of time.

    Raises ConfigError where there are none.
    """
    place = folder / "wandb" if (folder / "wandb").is_dir() else folder
    kinds = ("offline-run-*", "run-*") if include_online else ("offline-run-*",)
    runs = [run for kind in kinds for run in place.glob(kind) if run.is_dir()]
    files = sorted((file for run in runs for file in run.glob("run-*.wandb")), key=lambda file: _time(file.parent))
    if not files:
        online = any(place.glob("run-*/run-*.wandb"))
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
    """Raise UserError without a login that the server takes, TrackingError where it does not answer."""
    import httpx
    import wandb

    url = wandb.setup().settings.base_url
    if credentials() is None:
        raise UserError(
            f"nobody is logged in to Weights & Biases at {url}. Log in with `wandb login`, or set WANDB_API_KEY, and "
            "give the same command again."
        )
    try:
        answered = httpx.post(f"{url}/graphql", json={"query": "query { viewer { id } }"}, timeout=LOOKING_SECONDS)
    except httpx.HTTPError as error:
        raise TrackingError(
            f"Weights & Biases cannot be reached at {url} ({in_one_line(error)}). The run stays where it is; give the "
            "same command again where there is a network."
        ) from error
    if answered.status_code >= 500:
        raise TrackingError(
            f"Weights & Biases at {url} answers HTTP {answered.status_code}. The run stays where it is; try again "
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
    told = {"WANDB_SILENT": "false", "WANDB_QUIET": "false", "NO_COLOR": "1", "WANDB_MODE": "online"}
    with tempfile.TemporaryDirectory() as logs:  # or it would write them where the user is
        surroundings = os.environ | RETRIES | told | {"WANDB_DIR": logs}
        log.info("uploading %s, %.1f MB", segment.path, size / 1e6)
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                env=surroundings,
                timeout=UPLOADING_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            if not had_mark:
                segment.mark.unlink(missing_ok=True)
            raise TrackingError(
                f"Weights & Biases had not taken {segment.path.parent} after {UPLOADING_SECONDS:g} s. It stays where "
                "it is; give the same command again."
            ) from error
    lines = (done.stdout + done.stderr).splitlines()
    errors = [line.partition("ERROR")[2].strip() for line in lines if "ERROR" in line]
    if done.returncode or errors or not segment.mark.exists():
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
    found = re.search(r"View run .* at (\S+)", "\n".join(lines))
    return found[1] if found else ""
