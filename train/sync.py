"""`querylect sync`: upload runs that were tracked offline with `wandb sync`."""

import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError, TrackingError, UserError

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


def sync(folders: Sequence[Path], include_online: bool = False, echo: Callable[[str], None] = print) -> None:
    """Upload what is not uploaded yet of these run folders (or wandb folders); `echo` gets one line per folder.

    Raises ConfigError for a folder without such runs, UserError without a login, TrackingError if an upload fails.
    """
    roots = {folder: folder / "wandb" if (folder / "wandb").is_dir() else folder for folder in folders}
    for folder, root in roots.items():
        if not any(root.glob("*run-*/*.wandb" if include_online else "offline-run-*/*.wandb")):
            raise ConfigError(
                f"{folder} holds no offline run of Weights & Biases. Give the folder of a run that was tracked "
                "offline, as is the default; for one that was tracked online and not uploaded whole: --include-online."
            )
    if credentials() is None:
        raise UserError("nobody is logged in to Weights & Biases. Run `wandb login`, or set WANDB_API_KEY, and rerun.")
    for folder, root in roots.items():
        address = upload(root, include_online)
        echo(f"{folder}: {f'uploaded to {address}' if address else 'everything has been uploaded before'}")


def credentials() -> Any:
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


def upload(root: Path, include_online: bool) -> str:
    """Upload the runs of a wandb folder that are not marked as uploaded; the address of the last, "" if there are none.

    Raises TrackingError. The client marks a run (`.wandb.synced`) also if its upload failed, and skips it from then on.
    """
    marks = {file: file.with_name(f"{file.name}.synced") for file in root.glob("*run-*/*.wandb")}
    for file, mark in marks.items():
        if mark.exists() and mark.stat().st_mtime < file.stat().st_mtime:  # the run went on
            mark.unlink()
    new = [mark for mark in marks.values() if not mark.exists()]
    command = [sys.executable, "-m", "wandb", "sync", *(["--include-online"] if include_online else []), str(root)]
    with tempfile.TemporaryDirectory() as logs:  # otherwise the client writes them to the working directory
        environment = os.environ | SETTINGS | {"WANDB_DIR": logs}
        process = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment)
    output = process.stdout + process.stderr
    errors = re.findall(r"^(?:wandb: ERROR|Error:) *(.+)", output, re.MULTILINE)
    if process.returncode or errors:
        for mark in new:
            mark.unlink(missing_ok=True)
        raise TrackingError(
            f"`wandb sync` did not upload all of {root} ({(errors or [output.strip()])[0][:300]}). The run stays where "
            "it is. Fix the cause (`wandb login --relogin` if the login has expired) and rerun."
        )
    addresses = re.findall(r"View run .* at (\S+)", output)
    return addresses[-1] if addresses else ""
