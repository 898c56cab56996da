"""The weights of a policy for what samples from it: whole, merged with its adapters, by their names in a checkpoint.

Where ZeRO-3 or FSDP2 has split them over the processes, those of one layer at a time are gathered, merged with their
adapters and released, so no process holds more than one layer (or embedding) whole. Gathering is collective.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

_PEFT_PREFIX = "base_model.model."
"""What peft puts before the names of the model it wraps."""
SHARD_BYTES = 2**30


class PolicyWeights:
    """Gives the weights of `policy` as they are at each call, in `dtype` and on `device` (None: as they are)."""

    def __init__(
        self,
        policy: nn.Module,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        adapted_only: bool = False,
    ) -> None:
        """`adapted_only`: layers without an adapter, which never change, are not gathered where weights are split."""
        self.policy, self.dtype, self.device, self.adapted_only = policy, dtype, device, adapted_only

    @property
    def split(self) -> bool:
        """Whether every process has a part of the weights. Taking them is then collective."""
        return any(isinstance(weight, DTensor) or hasattr(weight, "ds_id") for weight in self.policy.parameters())

    def __call__(self) -> Iterator[tuple[str, Tensor]]:
        """(name, weight) one after the other. Where they are split, every process has to take them all, and each is
        whole only until the next one is asked for."""
        return self._merged(self._parts())

    def send(self, take: Callable[[Iterator[tuple[str, Tensor]]], object], main_only: bool = False) -> None:
        """Call `take` with the weights, in every process or in that of rank 0 alone. It need not take them all.

        Collective where the weights are split: every process gathers them all.
        """
        parts = self._parts()
        if not main_only or not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
            take(self._merged(parts))
        for _ in parts:
            pass

    def _parts(self) -> Iterator[tuple[str, nn.Module, set[str]]]:
        """(prefix of the names of its weights, part that is whole until the next one is asked for, names of those of
        its weights that an earlier part had): the policy, or its layers where they have to be gathered."""
        if not self.split:
            yield "", self.policy, set()
            return
        sent: set[int] = set()
        for path, layer in layers(getattr(self.policy, "get_base_model", lambda: self.policy)()):
            ids = {name: id(weight) for name, weight in layer.named_parameters()}
            tied = {name for name, number in ids.items() if number in sent}
            if tied != ids.keys() and (not self.adapted_only or _has_adapter(layer)):
                sent.update(ids.values())
                with gathered(layer):
                    yield path, layer, tied

    def _merged(self, parts: Iterator[tuple[str, nn.Module, set[str]]]) -> Iterator[tuple[str, Tensor]]:
        for path, part, tied in parts:
            if torch.cuda.is_available():  # vLLM may read a weight on another stream than it was gathered on
                torch.cuda.current_stream().synchronize()
            for name, weight in merged_weights(part, self.dtype, self.device):
                if name not in tied:
                    yield f"{path}{name}".replace(".base_layer.", "."), weight


def _has_adapter(layer: nn.Module) -> bool:
    """Whether a part of the layer has a LoRA adapter."""
    return any(hasattr(part, "get_delta_weight") for part in layer.modules())


class MergedCopy:
    """A copy of a LoRA policy with the adapter merged in, refreshed from the trained weights before each rollout.

    Sampling from it costs no adapter arithmetic, and the trained base weights are never rounded by merging and
    unmerging. Without an adapter the copy is the policy itself, unless `separate` asks for another one: where ZeRO-3 or
    FSDP2 splits the trained weights over processes, each process samples from a full copy. There `refresh` is a
    collective call.
    """

    def __init__(self, policy: "PreTrainedModel | PeftModel", separate: bool = False) -> None:
        self.model = cast("PreTrainedModel", policy)
        adapted = [name for name, part in policy.named_modules() if hasattr(part, "get_delta_weight")]
        self._weights, self._targets = PolicyWeights(policy, adapted_only=bool(adapted)), dict[str, nn.Parameter]()
        if not adapted and not separate:
            return
        self.model = copy.deepcopy(self.model)
        if adapted:  # a copy keeps what a fresh model cast to bfloat16 would lose: rotary frequencies in float32
            self.model = self.model.unload()  # type: ignore[operator]
        self.model.requires_grad_(False)
        changing = {f"{name.removeprefix(_PEFT_PREFIX)}.weight" for name in adapted}
        self._targets = {name: w for name, w in self.model.named_parameters() if name in changing or not adapted}

    @torch.no_grad()
    def refresh(self) -> nn.Module:
        """Bring the copy up to date and return it."""
        for name, weight in self._weights() if self._targets else ():
            if name in self._targets:
                self._targets[name].copy_(weight)
        return self.model

    def sleep(self) -> None:
        """Nothing to release: the copy stays in memory."""


@torch.no_grad()
def merged_weights(
    policy: nn.Module, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Every weight under the name it has in a checkpoint, one at a time, with LoRA adapters merged in.

    The trained weights are not touched. Each has to be whole in this process.
    """
    lora: list[Any] = [module for module in policy.modules() if hasattr(module, "get_delta_weight")]
    adapted = {id(module.get_base_layer().weight): module for module in lora}
    base = {id(weight) for module in lora for weight in module.get_base_layer().parameters()}
    adapters = {id(weight) for module in lora for weight in module.parameters()} - base
    for name, parameter in policy.named_parameters():
        if id(parameter) in adapters:
            continue
        weight = parameter.detach()
        module: Any = adapted.get(id(parameter))
        for adapter in module.active_adapters if module is not None else ():
            weight = weight + module.get_delta_weight(adapter).to(weight.dtype)
        yield name.removeprefix(_PEFT_PREFIX).replace(".base_layer.", "."), weight.to(device=device, dtype=dtype)


def gathered(module: nn.Module) -> AbstractContextManager[object]:
    """The module's weights, gathered from all processes while the block runs where ZeRO-3 or FSDP2 has split them.
    Collective there."""
    split = [weight for weight in module.parameters() if hasattr(weight, "ds_id")]
    if not split:
        return _whole_parameters(module)
    import deepspeed

    return deepspeed.zero.GatheredParameters(split)  # type: ignore[no-any-return]


@contextmanager
def _whole_parameters(module: nn.Module) -> Iterator[None]:
    """Within this context whole weights, without gradients, take the place of those that FSDP2 has split."""
    split = [
        (part, name, weight)
        for part in module.modules()
        for name, weight in part.named_parameters(recurse=False)
        if isinstance(weight, DTensor)
    ]
    try:
        for part, name, weight in split:
            setattr(part, name, nn.Parameter(whole(weight), requires_grad=False))
        yield
    finally:
        for part, name, weight in split:
            setattr(part, name, weight)


@torch.no_grad()
def whole(weight: Tensor) -> Tensor:
    """The tensor itself, or all of one that FSDP2 has split, without gradient. Collective there."""
    return weight.full_tensor() if isinstance(weight, DTensor) else weight


def layers(model: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """(prefix of the names of its weights, module) of parts that have each weight of `model` once, in its order: the
    layers of its stacks, and the modules beside them."""
    shell = nn.Module()
    for name, weight in model.named_parameters(recurse=False):
        shell.register_parameter(name, weight)
    yield path, shell
    for name, child in model.named_children():
        if isinstance(child, nn.ModuleList):
            yield from ((f"{path}{name}.{number}.", layer) for number, layer in enumerate(child))
        elif any(isinstance(part, nn.ModuleList) for part in child.modules()):
            yield from layers(child, f"{path}{name}.")
        else:
            yield f"{path}{name}.", child


@contextmanager
def weights_in_files(
    weights: Iterator[tuple[str, Tensor]], within: Path, shard_bytes: int = SHARD_BYTES
) -> Iterator[Path]:
    """A new folder in `within` that has the weights as safetensors files. It is removed when the block ends.

    A file is closed when it has `shard_bytes` or more, so that only one file's weights are in memory at a time.
    """
    within.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="querylect-weights-", dir=within) as folder:
        shard: dict[str, Tensor] = {}
        number = 0
        for name, weight in weights:
            shard[name] = weight.to("cpu", copy=True).contiguous()
            if sum(saved.nbytes for saved in shard.values()) >= shard_bytes:
                save_file(shard, f"{folder}/weights-{number:05}.safetensors")
                shard, number = {}, number + 1
        if shard:
            save_file(shard, f"{folder}/weights-{number:05}.safetensors")
        yield Path(folder)
