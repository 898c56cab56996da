"""All weights of a policy for an engine that holds the whole model: merged, by their names in a checkpoint.

Where ZeRO-3 has split the weights over the processes, those of one layer at a time are gathered, merged with their
adapters and released, so no process holds more than one layer (or embedding) whole.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ...errors import ConfigError
from ..policy import gathered, merged_weights


class PolicyWeights:
    """Gives the weights of `policy` as they are at each call, in `dtype` and on `device`."""

    def __init__(self, policy: nn.Module, dtype: torch.dtype, device: torch.device | str | None = None) -> None:
        self.policy, self.dtype, self.device = policy, dtype, device

    @property
    def split(self) -> bool:
        """Whether every process has a part of the weights. Iterating is then collective: each has to take them all."""
        return any(hasattr(weight, "ds_id") for weight in self.policy.parameters())

    def __call__(self) -> Iterator[tuple[str, Tensor]]:
        """(name, weight) one after the other. Raises ConfigError for parts of weights that cannot be gathered."""
        for name, parameter in self.policy.named_parameters():
            if isinstance(parameter, DTensor):
                raise ConfigError(
                    f"weight {name} is a DTensor: FSDP has split it over the processes, and it is not gathered for "
                    "vLLM. Launch without FSDP (DDP), or under DeepSpeed ZeRO.",
                    code="split-weights",
                )
        if not self.split:
            yield from merged_weights(self.policy, self.dtype, self.device)
            return
        given: set[int] = set()
        inner = getattr(self.policy, "get_base_model", lambda: self.policy)()
        for path, layer in layers(inner):
            ids = {name: id(weight) for name, weight in layer.named_parameters()}
            if given.issuperset(ids.values()):
                continue  # tied to weights that were given
            with gathered(layer):
                if torch.cuda.is_available():  # vLLM may read a weight on another stream than it was gathered on
                    torch.cuda.current_stream().synchronize()
                for name, weight in merged_weights(layer, self.dtype, self.device):
                    if ids.get(name) not in given:
                        yield f"{path}{name}".replace(".base_layer.", "."), weight
            given.update(ids.values())


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
