"""The memory of a run on GPUs that need not be there: what each part takes, by the ways of sharing it among them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..configs.schema import RunConfig
from ..errors import ConfigError
from ..train.arguments import check_combinations
from ..train.memory.estimate import GIB, H100_GIB, HEADROOM, MemoryEstimate, in_gib, planner_of
from ..train.memory.host import host_memory
from ..train.memory.model_shape import shape_of
from .memory import advice, layouts

USABLE = H100_GIB / 80
"""GiB that can be allocated of each GB in the name of a card."""


@dataclass(frozen=True, slots=True)
class LayoutEstimates:
    """Estimates of one run, one for each layout."""

    title: str
    estimates: Sequence[MemoryEstimate]
    advice: Sequence[str]
    """For each estimate the nearest settings that fit; "" where it fits as it is."""
    host: Sequence[Mapping[str, int]]
    """For each estimate the host memory of a node, by phase."""
    refusal: str = ""
    """Why a run on so many processes would not start, whatever its memory; "" where it would."""

    @property
    def fits(self) -> bool:
        """Whether the run fits in one of the layouts."""
        return any(entry.fits() for entry in self.estimates)

    def as_data(self) -> dict[str, object]:
        """The estimates for programs; sizes in bytes."""
        return {
            "fits": self.fits,
            "refusal": self.refusal,
            "layouts": [
                {
                    "layout": entry.layout.description,
                    "fits": entry.fits(),
                    "peak": entry.peak,
                    "vllm_lacks": entry.vllm_lacks,
                    "always": dict(entry.resident),
                    "phases": {name: dict(parts) for name, parts in entry.phases.items()},
                    "host": dict(host),
                    "advice": remedy,
                }
                for entry, remedy, host in zip(self.estimates, self.advice, self.host, strict=True)
            ],
        }

    def as_text(self) -> str:
        """The estimates as a table: a column for each layout, in GiB of one GPU."""
        names = [_column(entry) for entry in self.estimates]
        rows: list[tuple[str, list[str]]] = [("GiB of one GPU", names)]
        for part in _names([entry.resident for entry in self.estimates]):
            rows.append((part, [_gib(entry.resident.get(part, 0)) for entry in self.estimates]))
        for phase in _names([entry.phases for entry in self.estimates]):
            for part in _names([entry.phases.get(phase, {}) for entry in self.estimates]):
                sizes = [entry.phases.get(phase, {}).get(part, 0) for entry in self.estimates]
                rows.append((f"{phase}: {part}", [_gib(size) for size in sizes]))
        for phase in _names([entry.phases for entry in self.estimates]):
            peaks = [entry.of_phase(phase) if phase in entry.phases else 0 for entry in self.estimates]
            rows.append((f"peak in the {phase}", [_gib(peak) for peak in peaks]))
        if any(entry.vllm_lacks for entry in self.estimates):
            rows.append(("vLLM lacks of its share", [_gib(entry.vllm_lacks) for entry in self.estimates]))
        rows.append(("host memory of a node", [_gib(max(host.values())) for host in self.host]))
        rows.append(("", ["fits" if entry.fits() else "does not fit" for entry in self.estimates]))
        width = max(len(name) for name, _ in rows)
        columns = [max(len(cells[column]) for _, cells in rows) for column in range(len(names))]
        lines = [self.title, ""]
        for name, cells in rows:
            aligned = "  ".join(cell.rjust(size) for cell, size in zip(cells, columns, strict=True))
            lines.append(f"{name:<{width}}  {aligned}".rstrip())
        for name, remedy in zip(names, self.advice, strict=True):
            if remedy:
                lines.append(f"{name} → {remedy}")
        if self.refusal:
            lines.append(f"It would not start: {self.refusal}")
        return "\n".join(lines)


def estimate_layouts(config: RunConfig, gpus: int, gpu_memory: float) -> LayoutEstimates:
    """The memory of `config` on `gpus` GPUs of `gpu_memory` GB each, as in the name of the card.

    Raises ConfigError where the size of the policy is unknown.
    """
    shape = shape_of(config.policy.model)
    if shape is None:
        raise ConfigError(
            f"nothing says how large policy.model {config.policy.model!r} is. Give a folder with config.json, or a "
            "name with its size, such as Qwen3-8B."
        )
    size = gpu_memory * USABLE
    possible = [layout for layout in layouts(config.policy, gpus, size, fast=True) if layout.processes == gpus]
    planner = planner_of(config, shape)
    estimates = [planner.estimate(layout) for layout in possible]
    remedies = ["" if entry.fits() else advice(planner, entry.layout) for entry in estimates]
    first = estimates[0]
    number = f"{gpus} GPU{'s' if gpus > 1 else ''}"
    title = (
        f"{config.name} on {number} of {gpu_memory:g} GB, of which {HEADROOM * size:.1f} GiB may be taken; "
        f"{first.tree_tokens:,} tokens at a time ({shape.source})"
    )
    host = [host_memory(planner, layout) for layout in possible]
    return LayoutEstimates(title, estimates, remedies, host, _refusal(config, gpus))


def _refusal(config: RunConfig, processes: int) -> str:
    try:
        check_combinations(config, processes, sharded=True)
    except ConfigError as error:
        return str(error)
    return ""


def _column(estimate: MemoryEstimate) -> str:
    return estimate.layout.sharding or ("DDP" if estimate.layout.processes > 1 else "one process")


def _names(parts: Sequence[Mapping[str, object]]) -> list[str]:
    """The keys of all mappings, in the order in which they come."""
    return list(dict.fromkeys(name for mapping in parts for name in mapping))


def _gib(size: float) -> str:
    return "–" if size < GIB / 100 else in_gib(size)
