"""All weights of a policy for an engine that holds the whole model: merged, by their names in a checkpoint.

Where ZeRO-3 or FSDP2 has split the weights over the processes, those of one layer at a time are gathered, merged with
their adapters and released, so no process holds more than one layer (or embedding) whole. Gathering is collective: a
process in which the engine fails gathers the remaining layers all the same, and then every process raises its error.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from ...errors import QuerylectError, in_one_line
from ..policy import gathered, is_split, merged_weights

_Layer = tuple[str, nn.Module, set[str]]
"""Prefix of the names of its weights, a layer that is whole until the next one is asked for, names of those of its
weights that an earlier layer had (tied ones)."""


class PolicyWeights:
    """Gives the weights of `policy` as they are at each call, in `dtype` and on `device`."""

    def __init__(self, policy: nn.Module, dtype: torch.dtype, device: torch.device | str | None = None) -> None:
        self.policy, self.dtype, self.device = policy, dtype, device

    @property
    def split(self) -> bool:
        """Whether every process has a part of the weights. Taking them is then collective."""
        return any(is_split(weight) for weight in self.policy.parameters())

    def __call__(self) -> Iterator[tuple[str, Tensor]]:
        """(name, weight) one after the other. Where they are split, every process has to take them all."""
        if not self.split:
            return merged_weights(self.policy, self.dtype, self.device)
        return self._merged(self._gathered_layers())

    def send(self, take: Callable[[Iterator[tuple[str, Tensor]]], object], main_only: bool = False) -> None:
        """Call `take` with the weights, in every process or in that of rank 0 alone. It need not take them all.

        Collective where the weights are split and for `main_only`: where `take` or a merge fails in one process, all
        of them raise its error. An error of the gathering itself is raised at once, since the other processes wait
        inside of it; the launcher ends them with this process.
        """
        if not self.split and not main_only:
            take(self())
            return
        complete = not self.split

        def tracked() -> Iterator[_Layer]:
            nonlocal complete
            yield from self._gathered_layers()
            complete = True

        remaining = tracked() if self.split else None
        failure: Exception | None = None
        try:
            if not main_only or _rank() == 0:
                take(self() if remaining is None else self._merged(remaining))
        except Exception as error:  # noqa: BLE001 (raised by _raise_in_all)
            failure = error
        for _ in remaining or ():
            pass
        if failure is not None and not complete:
            raise failure
        _raise_in_all(failure)

    def _gathered_layers(self) -> Iterator[_Layer]:
        inner = getattr(self.policy, "get_base_model", lambda: self.policy)()
        given: set[int] = set()
        for path, layer in layers(inner):
            ids = {name: id(weight) for name, weight in layer.named_parameters()}
            tied = {name for name, number in ids.items() if number in given}
            if tied != ids.keys():
                with gathered(layer):
                    yield path, layer, tied
                given.update(ids.values())

    def _merged(self, whole: Iterator[_Layer]) -> Iterator[tuple[str, Tensor]]:
        for path, layer, tied in whole:
            if torch.cuda.is_available():  # vLLM may read a weight on another stream than it was gathered on
                torch.cuda.current_stream().synchronize()
            for name, weight in merged_weights(layer, self.dtype, self.device):
                if name not in tied:
                    yield f"{path}{name}".replace(".base_layer.", "."), weight


def _raise_in_all(failure: Exception | None) -> None:
    """Raise in every process the error of the lowest rank that has one. Collective."""
    if _processes() == 1:
        if failure is not None:
            raise failure
        return
    report = failure
    if failure is not None and not isinstance(failure, QuerylectError):
        report = QuerylectError(
            f"process {_rank()} could not send the policy's weights: {type(failure).__name__}: {in_one_line(failure)}"
        )
    reports: list[QuerylectError | None] = [None] * _processes()
    torch.distributed.all_gather_object(reports, report)
    for rank, error in enumerate(reports):
        if error is not None:
            if rank == _rank() and failure is not None:
                raise failure
            error.already_reported = True
            raise error from failure


def layers(model: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """(prefix of the names of its weights, module) of parts that have each weight of `model` once, in its order: the
    layers of its stacks, and the modules beside them."""
    own = nn.Module()
    for name, weight in model.named_parameters(recurse=False):
        own.register_parameter(name, weight)
    yield path, own
    for name, child in model.named_children():
        if isinstance(child, nn.ModuleList):
            yield from ((f"{path}{name}.{number}.", layer) for number, layer in enumerate(child))
        elif any(isinstance(part, nn.ModuleList) for part in child.modules()):
            yield from layers(child, f"{path}{name}.")
        else:
            yield f"{path}{name}.", child


def _processes() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def _rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
