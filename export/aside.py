"""Atomic replacement of an export folder, with checks that refuse to overwrite anything but an earlier export."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import ConfigError, ModelError, QuerylectError, StorageError
from ..storage import folder_reaches_the_disk, hold
from .exported import FILE, read_exported


def refuse_strangers(target: Path, run_name: str, run_id: str) -> None:
    """Raise ConfigError if `target` exists, is not empty and is not an earlier export of this run."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if (target / FILE).is_file():
        try:
            run = read_exported(target).run
        except ModelError:
            run = None
        if run is not None and run.id == run_id:
            return
        content = f"an export of the run {run.name!r}" if run is not None else "an export that cannot be read"
    else:
        content = "something that is no export"
    raise ConfigError(
        f"{target} holds {content}, and not one of this run ({run_name!r}). Choose another --to, or replace it with "
        "--overwrite."
    )


def refuse_the_run(target: Path, run: Path) -> None:
    """Raise ConfigError if `target` would overwrite the exported run or one of its checkpoints."""
    resolved, run = target.resolve(), run.resolve()
    if resolved == run or resolved in run.parents:
        raise ConfigError(f"{target} is the run {run} itself, or holds it. Choose a --to that is a folder of its own.")
    if run in resolved.parents and resolved.relative_to(run).parts[0] in ("best", "final", "checkpoints"):
        raise ConfigError(f"{target} is a place of the run's own checkpoints. Choose another --to.")


@contextmanager
def only_export(run: Path) -> Iterator[None]:
    """Lock the run folder for one export. The lock leaves no file and is released when the process ends.

    Raises StorageError if another export of the run is in progress.
    """
    folder = os.open(run, os.O_RDONLY)
    try:
        hold(
            folder,
            run,
            f"another export of {run} is under way, and both would write the same files. Wait until it is done.",
        )
        yield
    finally:
        os.close(folder)


@contextmanager
def placed(target: Path) -> Iterator[Path]:
    """Yield a temporary folder to write into. It replaces `target` on success and is deleted on any error.

    The old `target` is removed only after the new folder is flushed to disk. Raises StorageError.
    """
    target = target.resolve()
    staging, backup = (target.with_name(f".{target.name}.{suffix}") for suffix in ("exporting", "before"))
    shutil.rmtree(staging, ignore_errors=True)
    try:
        staging.mkdir(parents=True)
        yield staging
        folder_reaches_the_disk(staging)
        shutil.rmtree(backup, ignore_errors=True)
        if target.exists():
            target.rename(backup)
        staging.rename(target)
        shutil.rmtree(backup, ignore_errors=True)
    except Exception as error:
        if said_by_the_disk(error):
            raise _storage_error(target, error) from error
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if backup.exists() and not target.exists():
            backup.rename(target)


def said_by_the_disk(error: Exception) -> bool:
    """Whether the error is a failed write. safetensors wraps OSErrors in its own type, so the text is checked too."""
    if isinstance(error, QuerylectError):
        return False
    return isinstance(error, OSError) or "I/O error" in str(error) or "No space left" in str(error)


def reason_of(error: Exception) -> str:
    """The OS error message, in one line."""
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:200]


def _storage_error(target: Path, error: Exception) -> StorageError:
    return StorageError(
        f"the export {target} could not be written ({reason_of(error)}). Nothing half-written was left there, and "
        "the run folder is as it was. Free some space, or choose another --to, and export again."
    )
