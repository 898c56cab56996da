"""The processes of a run: which of them this is, their collective calls, and the services that they share.

A launcher (torchrun, accelerate, srun) starts the processes and describes them in environment variables. Every exchange
is collective: all processes must reach it. An error in one process ends that process, and the launcher ends the others.
"""

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..configs.schema import ClientConfig, EnvironmentConfig, ServedConfig
from ..envs.client.child_process import local_service
from ..envs.client.client import EnvironmentClient
from ..envs.client.connect import AnyClient, known_services, open_environment, open_environments
from ..errors import ConfigError, QuerylectError, in_one_line
from ..storage import atomic_folder
from .sharding import launch_fsdp, prepare_deepspeed, uses_deepspeed, uses_fsdp

if TYPE_CHECKING:
    from torch import device as TorchDevice
    from torch import nn

T = TypeVar("T")

START_TIMEOUT = timedelta(hours=3)
"""Of collective calls before the first step: another process may be opening an index or running the warm start."""
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

    def on_main_process(self, task: Callable[[], T]) -> T:
        """Run `task` in the main process and return its result in all. Collective."""
        return self.all_gather(task() if self.is_main_process else None)[0]  # type: ignore[return-value]

    def broadcast_weights(self, model: "nn.Module") -> None:
        """Broadcast the parameters and buffers of the main process. Collective."""
        if self.count > 1:
            import torch.distributed

            with torch.no_grad():
                for weights in [*model.parameters(), *model.buffers()]:
                    torch.distributed.broadcast(weights.data, 0)

    def set_timeout(self, timeout: timedelta) -> None:
        """How long later collective calls wait for a process before they raise."""
        if self.count > 1:
            from torch.distributed.distributed_c10d import _set_pg_timeout

            _set_pg_timeout(timeout)

    @contextmanager
    def atomic_folder(self, target: Path) -> Iterator[Path]:
        """`storage.atomic_folder` for writes of all processes. Collective."""
        with ExitStack() as stack:
            yield self.on_main_process(lambda: stack.enter_context(atomic_folder(target)))
            self.all_gather(None)  # all have written
            self.on_main_process(stack.close)


@contextmanager
def launched() -> Iterator[Processes]:
    """The processes that a launcher started; a single one without a launcher.

    Raises ConfigError if FSDP is asked for as it is not done here, or nothing says which of them this is;
    QuerylectError in the block where another process has ended, or does not come before the time-out.
    """
    count = next((int(os.environ[name]) for name in _COUNTS if os.environ.get(name, "").isdecimal()), 1)
    if uses_fsdp():
        launch_fsdp(count)
    if count == 1 and not uses_deepspeed():
        yield Processes()
        return
    import torch
    from accelerate import PartialState

    cpu = not torch.cuda.is_available()
    needed = ("MASTER_ADDR", "MASTER_PORT", *(("RANK", "LOCAL_RANK") if "WORLD_SIZE" in os.environ else ()))
    if missing := [name for name in needed if not os.environ.get(name)]:
        raise ConfigError(
            f"WORLD_SIZE is {count}, and {', '.join(missing)} not set. Start the processes with torchrun or accelerate "
            "launch, or unset WORLD_SIZE for one process."
        )
    if uses_deepspeed():
        prepare_deepspeed()
        state = PartialState(cpu=False, timeout=START_TIMEOUT, **({"backend": "gloo"} if cpu else {}))
    else:
        state = PartialState(cpu=cpu, timeout=START_TIMEOUT)
    try:
        yield Processes(state.process_index, state.num_processes, state.device)
    except RuntimeError as error:  # also of a gradient that is reduced
        if not isinstance(error, torch.distributed.DistError) and "/gloo/" not in str(error):
            raise
        raise QuerylectError(
            f"another process of the run has ended, or did not come in time ({in_one_line(error)}). What it has "
            "written says why."
        ) from error
    torch.distributed.destroy_process_group()  # not after an error: others may wait in a collective call


def shared_environment(members: Mapping[str, ServedConfig], processes: Processes) -> AbstractContextManager[AnyClient]:
    """`open_environments` in every process; `client.urls: local` starts one service per environment and machine."""
    return open_environments(members, partial(_shared_client, processes))


@contextmanager
def _shared_client(processes: Processes, env: EnvironmentConfig, settings: ClientConfig) -> Iterator[EnvironmentClient]:
    if processes.count == 1 or known_services(env, settings) is not None:
        with open_environment(env, settings) as client:
            yield client
        return
    machine = os.environ.get("GROUP_RANK") or socket.gethostname()
    with ExitStack() as stack:
        is_starter = processes.all_gather(machine).index(machine) == processes.rank
        service = stack.enter_context(local_service(env)) if is_starter else None
        services = {host: address for host, address in processes.all_gather((machine, service)) if address}
        yield stack.enter_context(EnvironmentClient(settings, urls=[services[machine]]))
