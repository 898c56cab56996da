"""`querylect sync`: upload runs that were tracked offline with `wandb sync`."""

import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError, TrackingError, UserError, in_one_line

if TYPE_CHECKING:
    from wandb.sdk.lib.wbauth import Auth

log = logging.getLogger(__name__)

SETTINGS = {
    "WANDB_MODE": "online",
    "WANDB_SILENT": "false",
    "WANDB_QUIET": "false",
    "NO_COLOR": "1",
    # W&B's client retries for hours by default.
    "WANDB__GRAPHQL_RETRY_MAX": "4",
    "WANDB__FILE_STREAM_RETRY_MAX": "4",
    "WANDB__FILE_TRANSFER_RETRY_MAX": "4",
}
"""The client's environment variables for an upload."""


UPLOADING_SECONDS = 3600.0
"""How long the upload of one file may take."""

_NO_ANSWER = re.compile(
    r"Failed to execute API request|did not respond|dial tcp|connection (refused|reset)|no such host"
    r"|time(d )?-?out|deadline exceeded|HTTP 5\d\d|An error occurred while checking",
    re.IGNORECASE,
)


def sync(folders: Sequence[Path], include_online: bool = False, echo: Callable[[str], None] = print) -> None:
    """Upload what is not uploaded yet of these run folders (or wandb folders); `echo` gets one line per folder.

    Raises ConfigError for a folder without such runs, UserError without an accepted login, TrackingError if an upload
    fails; files uploaded before are kept as uploaded.
    """
    pending = {folder: [file for file in run_files(folder, include_online) if not uploaded(file)] for folder in folders}
    if any(pending.values()):
        check_login()
    for folder, files in pending.items():
        addresses = [upload(file) for file in files]
        echo(f"{folder}: {f'uploaded to {addresses[-1]}' if addresses else 'everything has been uploaded before'}")


def run_files(folder: Path, include_online: bool) -> list[Path]:
    """The files that W&B's client wrote for a run folder (or wandb folder), one for each start, in chronological order.

    Raises ConfigError if there are none.
    """
    root = folder / "wandb" if (folder / "wandb").is_dir() else folder
    kinds = ("run-*", "offline-run-*") if include_online else ("offline-run-*",)
    files = [file for kind in kinds for file in root.glob(f"{kind}/*.wandb")]
    if not files:
        raise ConfigError(
            f"{folder} holds no offline run of Weights & Biases. Give the folder of a run that was tracked "
            "offline, as is the default; for one that was tracked online and not uploaded whole: --include-online."
        )
    return sorted(files, key=lambda file: file.parent.name.removeprefix("offline-"))


def credentials() -> "Auth | None":
    """The login that W&B's client would use, found without network access or a prompt; None if there is none."""
    import wandb
    from wandb.sdk.lib import wbauth

    try:
        return wbauth.authenticate_session(
            host=wandb.setup().settings.base_url, source="querylect", prompt=False, update_session=False
        )
    except wandb.Error as error:  # such as a malformed key
        log.debug("the login of Weights & Biases cannot be used: %s", error)
        return None


def login_problem(login: "Auth") -> str:
    """Why W&B's server does not accept the login (rejected or no answer); "" if it does."""
    import wandb

    try:
        login.verify()
    except wandb.Error as error:
        return in_one_line(error)
    return ""


def is_rejection(problem: str) -> bool:
    """Whether the server rejected the login, rather than not answering: W&B's client raises the same error for both."""
    return _NO_ANSWER.search(problem) is None


def check_login() -> None:
    """Raise UserError without a login that the server accepts, TrackingError if it does not answer."""
    login = credentials()
    if login is None:
        raise UserError("nobody is logged in to Weights & Biases. Run `wandb login`, or set WANDB_API_KEY, and rerun.")
    problem = login_problem(login)
    if problem and is_rejection(problem):
        raise UserError(
            f"Weights & Biases rejects this login ({problem}): it has expired or was revoked. Run `wandb login "
            "--relogin` and rerun; the run stays where it is."
        )
    if problem:
        raise TrackingError(
            f"Weights & Biases does not answer ({problem}). The run stays where it is; rerun when the server is "
            "reachable."
        )


def uploaded(file: Path) -> bool:
    """Whether a file is marked as uploaded and has not changed since."""
    mark = _mark(file)
    return mark.exists() and mark.stat().st_mtime >= file.stat().st_mtime


def upload(file: Path) -> str:
    """Upload one file and return the address of its run. Raises TrackingError.

    The client marks a file (`.wandb.synced`) even if its upload failed; such a mark is removed.
    """
    size = file.stat().st_size
    _mark(file).unlink(missing_ok=True)
    output, finished = _wandb_sync(file)
    errors = re.findall(r"^(?:wandb: ERROR|Error:) *(.+)", output, re.MULTILINE)
    if not finished:
        errors.append(f"it had not ended after {UPLOADING_SECONDS:g} s")
    elif not _mark(file).exists():
        errors.append(" ".join(output.split()[-40:]) or "it reported nothing")
    elif file.stat().st_size != size:
        errors.append("the file grew meanwhile: the run goes on")
    if errors:
        _mark(file).unlink(missing_ok=True)
        raise TrackingError(
            f"`wandb sync` did not upload all of {file.parent} ({errors[0][:300]}). The run stays where it is. Fix the "
            "cause (`wandb login --relogin` if the login has expired; a run that goes on is uploaded when it has "
            "ended) and rerun."
        )
    addresses = re.findall(r"View run .* at (\S+)", output)
    return addresses[-1] if addresses else "Weights & Biases"


def _wandb_sync(file: Path) -> tuple[str, bool]:
    """What the client prints, and whether it ended in time."""
    command = [sys.executable, "-P", "-m", "wandb", "sync", "--include-online", str(file)]
    with tempfile.TemporaryDirectory() as logs:  # otherwise the client writes them to the working directory
        try:
            process = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                env=os.environ | SETTINGS | {"WANDB_DIR": logs},
                timeout=UPLOADING_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return "", False
    return process.stdout, True


def _mark(file: Path) -> Path:
    return file.with_name(f"{file.name}.synced")
