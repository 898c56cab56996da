"""Collective operations of a run: share the environment, gather all trees, stop together."""

import os
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial, partialmethod
from types import FrameType

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ...configs.schema import ClientConfig, EnvironmentConfig, RunConfig
from ...envs.client.child_process import local_service
from ...envs.client.client import SyncEnvironmentClient
from ...envs.client.connect import AnyClient, known_services, open_environment, open_environments
from ...rollouts.tree import Hit, Node, Tree
from .processes import Processes
from .stopping import StopOnSignal


def shared_environment(config: RunConfig, processes: Processes) -> AbstractContextManager[AnyClient]:
    """A client of the configured environment, or of all environments of a mix, in every process.

    `client.urls: local` starts one service per environment and machine.
    """
    if processes.count == 1:
        return open_environments(config)
    return open_environments(config, partial(_shared_client, processes))


@contextmanager
def _shared_client(
    processes: Processes, env: EnvironmentConfig, settings: ClientConfig
) -> Iterator[SyncEnvironmentClient]:
    if known_services(env, settings) is not None:
        with open_environment(env, settings) as client:
            yield client
        return
    machine = os.environ.get("GROUP_RANK") or socket.gethostname()
    is_starter = processes.all_gather(machine).index(machine) == processes.rank
    with ExitStack() as stack:
        service = processes.on_every_process(lambda: stack.enter_context(local_service(env)) if is_starter else None)
        services = {host: address for host, address in processes.all_gather((machine, service)) if address}
        with SyncEnvironmentClient(settings, urls=[services[machine]]) as client:
            yield client


def all_trees(processes: Processes, local_trees: list[Tree]) -> list[Tree]:
    """The trees of all processes, by rank; local trees are the same objects. Collective.

    Trees of other processes have a digest instead of prompt ids, and no document texts.
    """
    if processes.count == 1:
        return local_trees
    grown = processes.all_gather([replace(tree, roots=[_light(root) for root in tree.roots]) for tree in local_trees])
    return [tree for rank, trees in enumerate(grown) for tree in (local_trees if rank == processes.rank else trees)]


def _light(node: Node) -> Node:
    """A copy of the node without prompt ids and document texts, which other processes do not need."""
    ranking = [Hit(replace(hit.document, text=""), hit.score) for hit in node.ranking]
    children = [_light(child) for child in node.children]
    return replace(node, prompt_ids=[], prompt_digest=node.state, ranking=ranking, children=children)


class CollectiveStop(StopOnSignal):
    """A signal to one process stops all of them; a step is aborted only while no other process waits for this one."""

    def __init__(self, processes: Processes) -> None:
        super().__init__()
        self.processes = processes

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:  # launchers forward a signal that the terminal has sent already
            return
        self.received = number
        if self.processes.interruptible and not self._changing:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            self._finish_or_leave(number)

    def _out_of_time(self, number: int, frame: FrameType | None) -> None:
        if self.processes.interruptible:
            super()._out_of_time(number, frame)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """A signal received since the last collective call is handled at the next one."""
        self._changing, self._in_step = False, True

    def meet(self, control: TrainerControl) -> None:
        """Make all processes stop or save if one of them has to. Collective, after every step.

        Raises KeyboardInterrupt in all processes after Ctrl-C in one.
        """
        reports = self.processes.all_gather((self.received, control.should_training_stop, control.should_save))
        signals = [number for number, _, _ in reports if number is not None]
        if signals:  # otherwise one may have arrived here during this call: it is reported at the next one
            self.received = signals[0]
        if signal.SIGINT in signals[:1]:
            raise KeyboardInterrupt
        control.should_training_stop = bool(signals) or any(stop for _, stop, _ in reports)
        control.should_save = bool(signals) or any(save for _, _, save in reports)


class AllGatherCallback(TrainerCallback):
    """Forwards every event to `callbacks`, and after each step's record synchronizes stopping and saving.

    An error of a callback is deferred to that collective call and then raised in all processes.
    """

    def __init__(
        self, processes: Processes, stopper: CollectiveStop, callbacks: Sequence[TrainerCallback] = ()
    ) -> None:
        self.processes, self.stopper, self.callbacks = processes, stopper, [stopper, *callbacks]
        self._failure: BaseException | None = None

    def _pass_on(
        self, event: str, args: TrainingArguments, state: TrainerState, control: TrainerControl, **details: object
    ) -> None:
        try:
            for callback in self.callbacks:
                getattr(callback, event)(args, state, control, **details)
        except Exception as error:  # noqa: BLE001 (raised at the collective call)
            self._failure = self._failure or error
        logs = details.get("logs")
        if event == "on_log" and isinstance(logs, Mapping) and "loss" in logs:
            failure, self._failure = self._failure, None
            self.processes.raise_any(failure)
            self.stopper.meet(control)


for _event in [name for name in vars(TrainerCallback) if name.startswith("on_")]:
    setattr(AllGatherCallback, _event, partialmethod(AllGatherCallback._pass_on, _event))


def stopper_of(processes: Processes) -> StopOnSignal:
    """The signal handler of this process."""
    return StopOnSignal() if processes.count == 1 else CollectiveStop(processes)


def collective_callbacks(
    processes: Processes, stopper: StopOnSignal, callbacks: Sequence[TrainerCallback]
) -> list[TrainerCallback]:
    """The callbacks that stop and log a run; only the main process has other ones than the stopper."""
    if not isinstance(stopper, CollectiveStop):
        return [stopper, *callbacks]
    return [AllGatherCallback(processes, stopper, callbacks)]
