"""Atomic replacement of an export folder, with checks that refuse to overwrite anything but an earlier export."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import ConfigError, ModelError, QuerylectError, StorageError
from ..storage import folder_reaches_the_disk, locked
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
        content = "an export that cannot be read"
        if run is not None:
            content = f"an export of the run {run.name!r}"
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
    taken = f"another export of {run} is under way, and both would write the same files. Wait until it is done."
    folder = os.open(run, os.O_RDONLY)
    try:
        with locked(folder, run / ".export", taken):
            yield
    finally:
        os.close(folder)


@contextmanager
def staging(folder: Path, failed: str) -> Iterator[Path]:
    """Make an empty folder to write into, and delete it at the end.

    Raises StorageError if the disk fails: its message is `failed` with the cause in the place of {cause}.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
        yield folder
    except Exception as error:
        if _is_of_the_disk(error):
            cause = " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
            raise StorageError(failed.replace("{cause}", cause)) from error
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def placed(target: Path) -> Iterator[Path]:
    """Yield a temporary folder to write into. It replaces `target` on success and is deleted on any error.

    The old `target` is removed only after the new folder is flushed to disk; one that a killed process left aside is
    put back first. Raises StorageError.
    """
    target = target.resolve()
    beside, backup = (target.with_name(f".{target.name}.{suffix}") for suffix in ("exporting", "before"))
    failed = (
        f"the export {target} could not be written ({{cause}}). Nothing half-written was left there, and the run "
        "folder is as it was. Free some space, or choose another --to, and export again."
    )
    with staging(beside, failed) as folder:
        if backup.exists() and not target.exists():
            backup.rename(target)
        yield folder
        folder_reaches_the_disk(folder)
        shutil.rmtree(backup, ignore_errors=True)
        try:
            if target.exists():
                target.rename(backup)
            folder.rename(target)
        finally:
            if backup.exists() and not target.exists():
                backup.rename(target)
        shutil.rmtree(backup, ignore_errors=True)


def _is_of_the_disk(error: Exception) -> bool:
    """Whether the error is a failed write. safetensors wraps OSErrors in its own type, so the text is checked too."""
    if isinstance(error, QuerylectError):
        return False
    return isinstance(error, OSError) or "I/O error" in str(error) or "No space left" in str(error)
