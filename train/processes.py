"""Several processes that train one run: who is first, what they tell each other, and how all of them stop together.

A launcher (torchrun, accelerate, srun) starts the processes and says so in the environment. Every exchange is a meeting
that all processes reach; so what may fail in one of them runs inside `together` or `first`, which meet afterwards and
raise the same error in all. An error anywhere else ends its process, and the launcher ends the others.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from .. import errors
from ..errors import ConfigError, QuerylectError
from .leaving import LeaveNow
from .run_folder import staged
from .zero import check_deepspeed, deepspeed_asked

T = TypeVar("T")

LONGEST_WAIT = timedelta(hours=12)
"""How long a process may wait at a meeting: others may be opening an index or warming the policy up. A process that
died is noticed by the launcher, not by this."""
_COUNTS = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


class Processes:
    """This process among those of the run. Alone, every method is the plain call."""

    def __init__(self, rank: int = 0, count: int = 1, device: Any = None) -> None:
        self.rank, self.count, self._device = rank, count, device
        self.interruptible = False
        """Whether Ctrl-C may be raised here: inside of what `together` and `first` run, never at a meeting."""

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    @property
    def device(self) -> Any:
        """Where this process computes."""
        import torch

        return self._device or torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def all(self, value: T) -> list[T]:
        """The values of all processes, in their order. A meeting."""
        if self.count == 1:
            return [value]
        import torch.distributed

        values: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(values, value)
        return values

    def together(self, what: Callable[[], T], interruptible: bool = True) -> T:
        """Run `what` in every process; where it fails in one, all of them raise. A meeting.

        What meets others itself is not `interruptible`: they would wait for a process that a signal took out of it.
        """
        if self.count == 1:
            return what()
        result, failure = self._attempt(what, interruptible)
        self.raise_any(failure)
        return result  # type: ignore[return-value]

    def first(self, what: Callable[[], T]) -> T:
        """Run `what` in the first process and return its result in every process, or raise its error. A meeting."""
        if self.count == 1:
            return what()
        result, failure = self._attempt(what) if self.is_first else (None, None)
        self.raise_any(failure)
        return self.all(result)[0]  # type: ignore[return-value]

    def raise_any(self, failure: BaseException | None) -> None:
        """Raise the error of the first process that has one of its own, in all of them. A meeting."""
        if self.count == 1:
            if failure is not None:
                raise failure
            return
        copied = getattr(failure, "told_elsewhere", False)  # at an earlier meeting, from another process
        told = self.all(None if failure is None else (copied, type(failure).__name__, str(failure)))
        failed = [(*error, rank) for rank, error in enumerate(told) if error is not None]
        if failed:
            _, kind, message, rank = min(failed, key=lambda each: each[0])
            if rank == self.rank and failure is not None:
                raise failure
            raise _rebuilt(rank, kind, message) from failure

    def _attempt(self, what: Callable[[], T], interruptible: bool = True) -> tuple[T | None, BaseException | None]:
        try:
            self.interruptible = interruptible
            result = what()
            self.interruptible = False
        except (Exception, KeyboardInterrupt, LeaveNow) as error:  # noqa: BLE001 (raised at the meeting)
            self.interruptible = False
            return None, error
        return result, None

    def share_weights(self, model: Any) -> None:
        """Give every process the parameters and buffers that the first one holds. A meeting."""
        if self.count > 1:
            import torch.distributed

            with torch.no_grad():
                for weights in [*model.parameters(), *model.buffers()]:
                    torch.distributed.broadcast(weights.data, 0)

    def write(self, what: Callable[[], object]) -> None:
        """`together` for what every process writes into a folder. A meeting.

        Under DeepSpeed the others wait inside of it and not at a meeting: an error is left to the launcher.
        """
        if deepspeed_asked():
            what()
            self.all(None)
        else:
            self.together(what, interruptible=False)

    @contextmanager
    def staged(self, target: Path) -> Iterator[Path]:
        """`run_folder.staged`, into which all processes write: whole, or absent where one of them fails. A meeting."""
        with ExitStack() as folder:
            place = self.first(lambda: folder.enter_context(staged(target)))
            try:
                yield place
            except Exception as error:
                if deepspeed_asked():  # the others wait inside DeepSpeed and not at a meeting: leave it to the launcher
                    raise
                self.raise_any(error)
            self.raise_any(None)
            self.first(folder.close)


@contextmanager
def launched() -> Iterator[Processes]:
    """The processes that a launcher started together with this one; this one alone without a launcher.

    Raises ConfigError where the environment names several processes but not which of them this is.
    """
    count = next((int(os.environ[name]) for name in _COUNTS if os.environ.get(name, "").isdecimal()), 1)
    if count == 1 and not deepspeed_asked():
        if os.environ.get("ACCELERATE_USE_CPU") == "True" and os.environ.get("MASTER_PORT"):
            raise ConfigError(
                "accelerate was asked for several processes on CPUs and started one: it does so through mpirun alone. "
                "Use: torchrun --nproc-per-node N -m querylect train …"
            )
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
    if deepspeed_asked():
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


def _rebuilt(rank: int, kind: str, message: str) -> BaseException:
    """The error of another process, of the same class where it is one of ours; it is told there and not here."""
    for leaving in (KeyboardInterrupt, LeaveNow):
        if kind == leaving.__name__:
            return leaving()
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, QuerylectError):
        error = known(message)
    else:
        error = QuerylectError(f"process {rank} ended with {kind}: {message}")
    error.told_elsewhere = True
    return error
