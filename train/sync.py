"""`querylect sync`: upload runs that were tracked offline with `wandb sync`."""

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from ..command_options import Verbose
from ..errors import ConfigError, TrackingError
from ..logs import set_up_logging

app = typer.Typer()


@app.command()
def sync(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders.")],
    verbose: Verbose = False,
) -> None:
    """Upload to Weights & Biases what runs that were tracked offline have left; print where each is seen."""
    set_up_logging(verbose)
    for folder in runs:
        files = sorted(folder.glob("wandb/offline-run-*/*.wandb"))  # their names begin with the time of the start
        if not files:
            raise ConfigError(f"{folder} holds no offline run of Weights & Biases. Give the folder of a run.")
        addresses = [upload(file) for file in files if not _uploaded(file)]
        result = f"uploaded to {addresses[-1]}" if addresses else "everything has been uploaded before"
        typer.echo(f"{folder}: {result}")


def _uploaded(file: Path) -> bool:
    """Whether a file has not changed since it was uploaded: a run can be uploaded while it is trained."""
    mark = file.with_name(f"{file.name}.synced")
    return mark.exists() and mark.stat().st_mtime >= file.stat().st_mtime


def upload(file: Path) -> str:
    """Upload one file and return the address of its run. Raises TrackingError."""
    mark = file.with_name(f"{file.name}.synced")
    mark.unlink(missing_ok=True)  # W&B's client leaves it even if the upload failed
    online = {"WANDB_MODE": "online", "WANDB_SILENT": "false", "NO_COLOR": "1"}
    with TemporaryDirectory() as logs:  # otherwise the client writes them to the working directory
        client = subprocess.run(
            [sys.executable, "-P", "-m", "wandb", "sync", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            env=os.environ
            | online
            | {"WANDB_DIR": logs}
            | {f"WANDB__{part}_RETRY_MAX": "4" for part in ("GRAPHQL", "FILE_STREAM", "FILE_TRANSFER")},
        )
    failed = re.findall(r"^(?:wandb: ERROR|Error:) *(.+)", client.stdout, re.MULTILINE)
    if failed or not mark.exists():
        mark.unlink(missing_ok=True)
        raise TrackingError(
            f"`wandb sync` did not upload all of {file.parent} ({failed[0] if failed else client.stdout[-300:]}). The "
            "run stays where it is; fix the cause (`wandb login --relogin` where the login has expired) and rerun."
        )
    return str([*re.findall(r"View run .* at (\S+)", client.stdout), "Weights & Biases"][0])
