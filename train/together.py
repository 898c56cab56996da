"""What the processes of a run do together: one environment, one forest of trees, one end."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partialmethod
from types import FrameType
from typing import Any

from transformers import TrainerCallback

from ..configs.mix import environments
from ..configs.schema import RunConfig, TrainConfig
from ..envs.client import SyncEnvironmentClient
from ..envs.connect import AnyClient, known_urls, open_environment, open_environments
from ..envs.local import local_service
from ..envs.mixture import MixedClient
from ..rollouts.memory import give_back_freed_memory
from ..rollouts.tree import Hit, Node, Tree
from .processes import Processes
from .stopping import StopOnSignal


@contextmanager
def shared_environment(config: RunConfig, processes: Processes) -> Iterator[AnyClient]:
    """A client of the configured environment, or of all that are mixed, in every process.

    `local` runs one service of each environment on each machine.
    """
    if processes.count == 1:
        with open_environments(config) as client:
            yield client
        return
    with ExitStack() as stack:
        clients = {name: stack.enter_context(_shared(one, processes)) for name, one in environments(config).items()}
        yield MixedClient(clients) if config.mix is not None else clients[""]


@contextmanager
def _shared(config: RunConfig, processes: Processes) -> Iterator[SyncEnvironmentClient]:
    if known_urls(config) is not None:
        with open_environment(config) as client:
            yield client
        return
    machine = os.environ.get("GROUP_RANK") or socket.gethostname()
    starts = processes.all(machine).index(machine) == processes.rank
    with ExitStack() as service:
        url = processes.together(lambda: service.enter_context(local_service(config.env)) if starts else None)
        urls = {where: found for where, found in processes.all((machine, url)) if found}
        with SyncEnvironmentClient(config.client, urls=[urls[machine]]) as client:
            yield client


def all_trees(processes: Processes, own: list[Tree]) -> list[Tree]:
    """The trees of all processes in their order; those of this one are the very objects. A meeting.

    Those of the others come with a digest of their prompts and without the texts of documents.
    """
    if processes.count == 1:
        return own
    grown = processes.all([Tree(tree.question, [_light(root) for root in tree.roots]) for tree in own])
    return [tree for rank, trees in enumerate(grown) for tree in (own if rank == processes.rank else trees)]


def _light(node: Node) -> Node:
    """The node without what is long and what only its own process needs."""
    ranking = [Hit(replace(hit.document, text=""), hit.score) for hit in node.ranking]
    children = [_light(child) for child in node.children]
    return replace(node, prompt_ids=[], prompt_digest=node.state, ranking=ranking, children=children)


class StopTogether(StopOnSignal):
    """A signal to one process ends all of them; a step is given up only while nobody waits for this process."""

    def __init__(self, settings: TrainConfig, processes: Processes) -> None:
        super().__init__(settings)
        self.processes = processes

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:  # launchers repeat what the terminal has sent
            return
        self.received = number
        if self.processes.interruptible and not self._changing:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            self._finish_or_leave(self.grace[number])

    def _out_of_time(self, number: int, frame: FrameType | None) -> None:
        if self.processes.interruptible:
            super()._out_of_time(number, frame)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note the time. What has been received since the last meeting waits for the next."""
        self._changing = False
        self._began = time.perf_counter()

    def meet(self, control: Any) -> None:
        """Let all processes stop, and save, where one of them has to. A meeting, after every step.

        Raises KeyboardInterrupt in all of them after Ctrl-C in one.
        """
        told = self.processes.all((self.received, control.should_training_stop, control.should_save))
        signals = [number for number, _, _ in told if number is not None]
        self.received = signals[0] if signals else None
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        control.should_training_stop = bool(signals) or any(stop for _, stop, _ in told)
        control.should_save = bool(signals) or any(save for _, _, save in told)


class Together(TrainerCallback):
    """Passes every event on to `callbacks`, and after each step's record makes of what they want one decision of all.

    Where one of them fails, the error waits for the meeting and is raised in all processes.
    """

    def __init__(self, processes: Processes, stopper: StopTogether, watcher: TrainerCallback) -> None:
        self.processes, self.stopper, self.callbacks = processes, stopper, [stopper, watcher]
        self._failure: BaseException | None = None

    def _pass_on(self, event: str, args: Any, state: Any, control: Any, **details: Any) -> Any:
        try:
            for callback in self.callbacks:
                control = getattr(callback, event)(args, state, control, **details) or control
        except Exception as error:  # noqa: BLE001 (raised at the meeting)
            self._failure = self._failure or error
        if event == "on_log" and "loss" in (details.get("logs") or {}):
            failure, self._failure = self._failure, None
            self.processes.raise_any(failure)
            self.stopper.meet(control)
        return control


for _event in [name for name in vars(TrainerCallback) if name.startswith("on_")]:
    setattr(Together, _event, partialmethod(Together._pass_on, _event))


class Unwatched(TrainerCallback):
    """A process that nobody watches: between steps it gives freed memory back, as the watcher does."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the step without the gaps that the one before left in memory."""
        give_back_freed_memory()


def stopper_of(config: RunConfig, processes: Processes) -> StopOnSignal:
    """What listens to signals in this process."""
    return StopOnSignal(config.train) if processes.count == 1 else StopTogether(config.train, processes)


def watched_together(
    processes: Processes, stopper: StopOnSignal, watcher: TrainerCallback | None
) -> list[TrainerCallback]:
    """The callbacks that end and watch a run; the first process alone has a `watcher`."""
    if not isinstance(stopper, StopTogether):
        return [stopper, watcher or Unwatched()]
    return [Together(processes, stopper, watcher or Unwatched())]
