"""Sweeps of one setting: the values that were reached, and their curves.

They are those of the CHR paper, appendix B, and of the Misknow-RAG paper, figure 3.
"""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from ...configs.paper import PaperConfig, PaperSystem, Sweep
from ...methods.reading import shares
from .results import Mean, PaperResults


def swept(system: str, settings: Sequence[str], value: int | float) -> str:
    """The name of a system with another value of some settings."""
    return f"{system}[{_name(settings)}={value:g}]"


def sweep_systems(paper: PaperConfig) -> dict[str, PaperSystem]:
    """The systems that the sweeps of a paper add, one for each system and value."""
    systems: dict[str, PaperSystem] = {}
    for sweep in paper.sweeps:
        for varied in sweep.systems:
            system, settings = paper.systems[varied], sweep.settings_of(varied)
            for value in sweep.values:
                name = swept(varied, settings, value)
                tasks = sorted({*((systems[name].tasks or []) if name in systems else []), sweep.task})
                values: dict[str, Any] = dict(system.settings)
                for setting, share in zip(settings, _shares(value, len(settings)), strict=True):
                    values = _replaced(values, setting.split("."), share)
                systems[name] = system.model_copy(update={"settings": values, "tasks": tasks})
    return systems


def _name(settings: Sequence[str]) -> str:
    return "+".join(setting.rpartition(".")[2] for setting in settings)


def _shares(value: int | float, count: int) -> Sequence[int | float]:
    if count == 1:
        return [value]
    return shares(value, count) if isinstance(value, int) else [value / count] * count


def _replaced(settings: Mapping[str, Any], path: Sequence[str], value: int | float) -> dict[str, Any]:
    """Settings with another value at a dotted place."""
    first, *deeper = path
    inner = settings.get(first)
    return {
        **settings,
        first: _replaced(inner if isinstance(inner, Mapping) else {}, deeper, value) if deeper else value,
    }


def sweep_points(sweep: Sweep, system: str, results: PaperResults) -> list[tuple[float, Mean]]:
    """(value of the setting, figure) of a system, in the order of the sweep."""
    names = [(value, swept(system, sweep.settings_of(system), value)) for value in sweep.values]
    return [(value, results.figure(sweep.task, name, sweep.metric)) for value, name in names]


def setting_label(sweep: Sweep) -> str:
    """The settings that a sweep varies, each once."""
    return " or ".join(dict.fromkeys(_name(sweep.settings_of(system)) for system in sweep.systems))


def draw_sweep(sweep: Sweep, results: PaperResults) -> str | None:
    """The curves as an SVG document, with a level line for each system beside them; None where there is no figure."""
    curves = {
        system: [(value, mean.value) for value, mean in sweep_points(sweep, system, results) if mean.value is not None]
        for system in sweep.systems
    }
    if not any(curves.values()):
        return None
    levels = [(name, results.figure(sweep.task, name, sweep.metric).value) for name in sweep.beside]
    return _svg(sweep, curves, [(name, level) for name, level in levels if level is not None])


def _svg(sweep: Sweep, curves: Mapping[str, Sequence[tuple[float, float]]], levels: Sequence[tuple[str, float]]) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "querylect"}):
        figure = Figure(figsize=(5.2, 2.9), layout="constrained")
        axes = figure.add_subplot()
        for system, points in curves.items():
            axes.plot([x for x, _ in points], [y for _, y in points], "o-", label=system)
        for (name, level), dash in zip(levels, ("--", ":", "-.") * len(levels), strict=False):
            axes.axhline(level, linestyle=dash, color="#777777", label=name)
        axes.set_xlabel(setting_label(sweep))
        axes.set_ylabel(f"{sweep.metric}, {sweep.task}")
        axes.legend(frameon=False, fontsize=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    return drawn.getvalue()
