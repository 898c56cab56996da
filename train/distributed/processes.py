"""The processes of a run: rank, collective calls, and errors raised in all of them.

A launcher (torchrun, accelerate, srun) starts the processes and describes them in environment variables. Every exchange
is collective: all processes must reach it. Code that may fail in one process therefore runs inside `on_every_process`
or `on_main_process`, which synchronize afterwards and raise the same error everywhere. Any other error ends its
process, and the launcher ends the rest.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ... import errors
from ...errors import ConfigError, QuerylectError
from ..fsdp import check_fsdp, launch_fsdp, saves_collectively, uses_fsdp
from ..run_folder import staged
from ..zero import check_deepspeed, uses_deepspeed

if TYPE_CHECKING:
    from torch import device as TorchDevice
    from torch import nn

T = TypeVar("T")

LONGEST_WAIT = timedelta(hours=12)
"""Timeout of collective calls: other processes may be opening an index or running the warm start. The launcher, not
this timeout, detects a process that died."""
_COUNTS = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


class Processes:
    """This process among those of the run. With a single process, every method is a plain call."""

    def __init__(self, rank: int = 0, count: int = 1, device: "TorchDevice | None" = None) -> None:
        self.rank, self.count, self._device = rank, count, device

    @property
    def is_main_process(self) -> bool:
        """Whether this is the process with rank 0, which writes files."""
        return self.rank == 0

    @property
    def device(self) -> "TorchDevice":
        import torch

        return self._device or torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def all_gather(self, value: T) -> list[T]:
        """The values of all processes, ordered by rank. Collective."""
        if self.count == 1:
            return [value]
        import torch.distributed

        values = [value] * self.count
        torch.distributed.all_gather_object(values, value)
        return values

    def on_every_process(self, task: Callable[[], T]) -> T:
        """Run `task` in every process; if it fails in one, all of them raise. Collective."""
        if self.count == 1:
            return task()
        result, failure = self._attempt(task)
        self.raise_any(failure)
        return result  # type: ignore[return-value]

    def on_main_process(self, task: Callable[[], T]) -> T:
        """Run `task` in the main process and return its result, or raise its error, in all. Collective."""
        if self.count == 1:
            return task()
        result, failure = self._attempt(task) if self.is_main_process else (None, None)
        self.raise_any(failure)
        return self.all_gather(result)[0]  # type: ignore[return-value]

    def raise_any(self, failure: BaseException | None) -> None:
        """Raise in all processes the error of the lowest rank that has an original one, if any failed. Collective."""
        if self.count == 1:
            if failure is not None:
                raise failure
            return
        is_copy = getattr(failure, "already_reported", False)  # raised earlier, for another process
        report = (is_copy, type(failure).__name__, str(failure))
        reports = self.all_gather(None if failure is None else report)
        failed = [(*error, rank) for rank, error in enumerate(reports) if error is not None]
        if failed:
            _, kind, message, rank = min(failed, key=lambda report: report[0])
            if rank == self.rank and failure is not None:
                raise failure
            raise _rebuild_error(rank, kind, message) from failure

    def _attempt(self, task: Callable[[], T]) -> tuple[T | None, BaseException | None]:
        try:
            return task(), None
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 (raised at the collective call)
            return None, error

    def broadcast_weights(self, model: "nn.Module") -> None:
        """Broadcast the parameters and buffers of the main process. Collective."""
        if self.count > 1:
            import torch.distributed

            with torch.no_grad():
                for weights in [*model.parameters(), *model.buffers()]:
                    torch.distributed.broadcast(weights.data, 0)

    def write(self, task: Callable[[], object]) -> None:
        """`on_every_process` for a task in which every process writes into a folder. Collective.

        Under DeepSpeed and FSDP the task itself has collective calls, so the launcher handles an error in one process.
        """
        if saves_collectively():
            task()
            self.all_gather(None)
        else:
            self.on_every_process(task)

    @contextmanager
    def staged(self, target: Path) -> Iterator[Path]:
        """`run_folder.staged` for writes of all processes; the folder is removed if one of them fails. Collective."""
        with ExitStack() as stack:
            path = self.on_main_process(lambda: stack.enter_context(staged(target)))
            try:
                yield path
            except Exception as error:
                if saves_collectively():  # others wait inside these calls: leave it to the launcher
                    raise
                self.raise_any(error)
            self.raise_any(None)
            self.on_main_process(stack.close)


@contextmanager
def launched() -> Iterator[Processes]:
    """The processes that a launcher started; a single one without a launcher.

    Raises ConfigError if the environment variables give a process count but no rank or address, or ask for what
    FSDP does not do here.
    """
    check_fsdp()
    count = next((int(os.environ[name]) for name in _COUNTS if os.environ.get(name, "").isdecimal()), 1)
    if uses_fsdp():
        launch_fsdp(count)
    if count == 1 and not uses_deepspeed():
        yield Processes()
        return
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if "WORLD_SIZE" in os.environ:
        missing += [name for name in ("RANK", "LOCAL_RANK") if not os.environ.get(name)]
    if missing:
        raise ConfigError(
            f"WORLD_SIZE is {count}, and {', '.join(missing)} not set: which of the processes this is cannot be known. "
            "Start them with torchrun or accelerate launch, or unset WORLD_SIZE for one process."
        )
    import torch
    from accelerate import PartialState

    cpu = not torch.cuda.is_available()
    if uses_deepspeed():
        check_deepspeed()
        state = PartialState(cpu=False, timeout=LONGEST_WAIT, **({"backend": "gloo"} if cpu else {}))
    else:
        state = PartialState(cpu=cpu, timeout=LONGEST_WAIT)
    try:
        yield Processes(state.process_index, state.num_processes, state.device)
    except (QuerylectError, KeyboardInterrupt):
        torch.distributed.destroy_process_group()
        raise
    torch.distributed.destroy_process_group()


def _rebuild_error(rank: int, kind: str, message: str) -> BaseException:
    """The error of another process, of the same class if it is one of this package; reported only by that process."""
    if kind == KeyboardInterrupt.__name__:
        return KeyboardInterrupt()
    error_class = getattr(errors, kind, None)
    if isinstance(error_class, type) and issubclass(error_class, QuerylectError):
        error = error_class(message)
    else:
        error = QuerylectError(f"process {rank} ended with {kind}: {message}")
    error.already_reported = True
    return error
