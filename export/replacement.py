"""Atomic replacement of an export folder, with checks that refuse to overwrite anything but an earlier export."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from ..errors import ConfigError, ModelError
from ..storage import atomic_folder, only_writer, writing
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


def only_export(run: Path) -> AbstractContextManager[None]:
    """Lock the run folder for one export. Raises StorageError if another export of the run is in progress."""
    taken = f"another export of {run} is under way, and both would write the same files. Wait until it is done."
    return only_writer(run, ".export.lock", "Make it writable, or copy it elsewhere.", taken)


@contextmanager
def placed(target: Path) -> Iterator[Path]:
    """A temporary folder that replaces `target` on success and is deleted on any error. Raises StorageError."""
    with (
        writing(target, "Free some space, or choose another --to, and export again."),
        atomic_folder(target.resolve()) as folder,
    ):
        yield folder
