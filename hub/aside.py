"""A folder that appears whole or not at all, and never takes the place of something it does not know."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..data.files import folder_reaches_the_disk, hold
from ..errors import ConfigError, ModelError, QuerylectError, StorageError
from .exported import FILE, read_exported


def refuse_strangers(target: Path, run_name: str, run_id: str) -> None:
    """ConfigError where something stands at `target` that is no earlier export of this run."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if (target / FILE).is_file():
        try:
            run = read_exported(target).run
        except ModelError:
            run = None
        if run is not None and run.id == run_id:
            return
        whose = f"an export of the run {run.name!r}" if run is not None else "an export that cannot be read"
    else:
        whose = "something that is no export"
    raise ConfigError(
        f"{target} holds {whose}, and not one of this run ({run_name!r}). Choose another --to, or replace it with "
        "--overwrite."
    )


def refuse_the_run(target: Path, run: Path) -> None:
    """ConfigError where the export would take the place of the run that it comes from, or of a checkpoint of it."""
    there, run = target.resolve(), run.resolve()
    if there == run or there in run.parents:
        raise ConfigError(f"{target} is the run {run} itself, or holds it. Choose a --to that is a folder of its own.")
    if run in there.parents and there.relative_to(run).parts[0] in ("best", "final", "checkpoints"):
        raise ConfigError(f"{target} is a place of the run's own checkpoints. Choose another --to.")


@contextmanager
def only_export(run: Path) -> Iterator[None]:
    """Hold a run's exports for this process, by a lock on its folder, which leaves no file and ends with the process.

    Raises StorageError where another export of the run is under way.
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
    """A folder to write into, which takes the place of `target` at the end, or vanishes on any error.

    What stood there goes only when the new folder is whole on the disk. Raises StorageError.
    """
    target = target.resolve()
    aside, before = (target.with_name(f".{target.name}.{what}") for what in ("exporting", "before"))
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        yield aside
        folder_reaches_the_disk(aside)
        shutil.rmtree(before, ignore_errors=True)
        if target.exists():
            target.rename(before)
        aside.rename(target)
        shutil.rmtree(before, ignore_errors=True)
    except Exception as error:
        if said_by_the_disk(error):
            raise _not_taken(target, error) from error
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if before.exists() and not target.exists():
            before.rename(target)


def said_by_the_disk(error: Exception) -> bool:
    """Whether writing failed: safetensors says what the disk said in an error of its own."""
    if isinstance(error, QuerylectError):
        return False
    return isinstance(error, OSError) or "I/O error" in str(error) or "No space left" in str(error)


def reason_of(error: Exception) -> str:
    """What the disk said, in one line."""
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:200]


def _not_taken(target: Path, error: Exception) -> StorageError:
    return StorageError(
        f"the export {target} could not be written ({reason_of(error)}). Nothing half-written was left there, and "
        "the run folder is as it was. Free some space, or choose another --to, and export again."
    )
