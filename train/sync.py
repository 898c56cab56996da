"""`querylect sync`: upload runs that were tracked offline with `wandb sync`."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import ConfigError, TrackingError


def sync(folders: Sequence[Path], echo: Callable[[str], None] = print) -> None:
    """Upload what is not uploaded yet of these run folders; `echo` gets one line per folder.

    Raises ConfigError for a folder without offline runs, TrackingError where an upload fails.
    """
    for folder in folders:
        files = sorted(folder.glob("wandb/offline-run-*/*.wandb"))  # their names begin with the time of the start
        if not files:
            raise ConfigError(f"{folder} holds no offline run of Weights & Biases. Give the folder of a run.")
        addresses = [upload(file) for file in files if not _uploaded(file)]
        echo(f"{folder}: {f'uploaded to {addresses[-1]}' if addresses else 'everything has been uploaded before'}")


def upload(file: Path) -> str:
    """Upload one file and return the address of its run. Raises TrackingError.

    W&B's client marks a file (`.wandb.synced`) even if its upload failed; such a mark is removed.
    """
    _mark(file).unlink(missing_ok=True)
    with TemporaryDirectory() as logs:  # otherwise the client writes them to the working directory
        client = subprocess.run(
            [sys.executable, "-P", "-m", "wandb", "sync", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            env=os.environ
            | {"WANDB_MODE": "online", "WANDB_SILENT": "false", "NO_COLOR": "1", "WANDB_DIR": logs}
            | {f"WANDB__{part}_RETRY_MAX": "4" for part in ("GRAPHQL", "FILE_STREAM", "FILE_TRANSFER")},
        )
    failed = re.findall(r"^(?:wandb: ERROR|Error:) *(.+)", client.stdout, re.MULTILINE)
    if failed or not _mark(file).exists():
        _mark(file).unlink(missing_ok=True)
        reason = failed[0] if failed else " ".join(client.stdout.split()[-40:])
        raise TrackingError(
            f"`wandb sync` did not upload all of {file.parent} ({reason[:300]}). The run stays where it is; fix the "
            "cause (`wandb login --relogin` where the login is missing or has expired) and rerun."
        )
    addresses = re.findall(r"View run .* at (\S+)", client.stdout)
    return addresses[-1] if addresses else "Weights & Biases"


def _uploaded(file: Path) -> bool:
    """Whether a file is marked as uploaded and has not changed since."""
    mark = _mark(file)
    return mark.exists() and mark.stat().st_mtime >= file.stat().st_mtime


def _mark(file: Path) -> Path:
    return file.with_name(f"{file.name}.synced")
