"""A sweep of one setting (seed 001, appendix B): the values that were reached, and their curve."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from ...configs.paper import PaperConfig, PaperSystem, Sweep
from .results import Mean, PaperResults


def swept(system: str, setting: str, value: int | float) -> str:
    """The name of a system with another value of one setting."""
    return f"{system}[{setting.rpartition('.')[2]}={value:g}]"


def sweep_systems(paper: PaperConfig) -> dict[str, PaperSystem]:
    """The systems that the sweeps of a paper add, one for each value."""
    systems: dict[str, PaperSystem] = {}
    for sweep in paper.sweeps:
        system = paper.systems[sweep.system]
        for value in sweep.values:
            name = swept(sweep.system, sweep.setting, value)
            tasks = sorted({*((systems[name].tasks or []) if name in systems else []), sweep.task})
            settings = _replaced(system.settings, sweep.setting.split("."), value)
            systems[name] = system.model_copy(update={"settings": settings, "tasks": tasks, "label": ""})
    return systems


def _replaced(settings: Mapping[str, Any], path: Sequence[str], value: int | float) -> dict[str, Any]:
    """Settings with another value at a dotted place."""
    first, *deeper = path
    inner = settings.get(first)
    return {
        **settings,
        first: _replaced(inner if isinstance(inner, Mapping) else {}, deeper, value) if deeper else value,
    }


def sweep_points(sweep: Sweep, results: PaperResults) -> list[tuple[float, Mean]]:
    """(value of the setting, figure), in the order of the sweep."""
    names = [(value, swept(sweep.system, sweep.setting, value)) for value in sweep.values]
    return [(value, results.figure(sweep.task, name, sweep.metric)) for value, name in names]


def draw_sweep(sweep: Sweep, results: PaperResults) -> str | None:
    """The curve as an SVG document, with a level line for each system beside it; None where there is no figure."""
    points = [(value, mean.value) for value, mean in sweep_points(sweep, results) if mean.value is not None]
    if not points:
        return None
    levels = [(name, results.figure(sweep.task, name, sweep.metric).value) for name in sweep.beside]
    return _svg(sweep, points, [(name, level) for name, level in levels if level is not None])


def _svg(sweep: Sweep, points: Sequence[tuple[float, float]], levels: Sequence[tuple[str, float]]) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "querylect"}):
        figure = Figure(figsize=(5.2, 2.9), layout="constrained")
        axes = figure.add_subplot()
        axes.plot([x for x, _ in points], [y for _, y in points], "o-", color="#1f5fa8", label=sweep.system)
        for (name, level), dash in zip(levels, ("--", ":", "-.") * len(levels), strict=False):
            axes.axhline(level, linestyle=dash, color="#777777", label=name)
        axes.set_xlabel(sweep.setting)
        axes.set_ylabel(f"{sweep.metric}, {sweep.task}")
        axes.legend(frameon=False, fontsize=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    return drawn.getvalue()
