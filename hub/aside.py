"""A folder that appears whole or not at all, and never takes the place of something it does not know."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import ConfigError, ModelError, StorageError
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
        for path in [*aside.rglob("*"), aside]:
            _reach_the_disk(path)
        shutil.rmtree(before, ignore_errors=True)
        if target.exists():
            target.rename(before)
        aside.rename(target)
        shutil.rmtree(before, ignore_errors=True)
    except OSError as error:
        raise _not_taken(target, error) from error
    except Exception as error:
        # safetensors says what the disk said, in an error of its own
        if "I/O error" in str(error) or "No space left" in str(error):
            raise _not_taken(target, error) from error
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if before.exists() and not target.exists():
            before.rename(target)


def _not_taken(target: Path, error: Exception) -> StorageError:
    reason = " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
    return StorageError(
        f"the export {target} could not be written ({reason}). Nothing half-written was left there, and the run folder "
        "is as it was. Free some space, or choose another --to, and export again."
    )


def _reach_the_disk(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
