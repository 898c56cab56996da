"""What the parts of the page of `querylect report` say, from the folders that it is about; no markup but drawings."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...configs.plan_files import dump_plan
from ...data.sampling import sample_of
from ..drift.report import maps
from ..grid.text import explanation, html_tables
from ..grid.transfer import draw_transfer
from ..provenance import versions
from . import reproduce
from .curve_figures import draw_curves
from .curves import TrainingRun, drawn, grouped
from .forest import draw_table
from .lengths import Lengths, Totals, draw_lengths
from .sources import DriftFolder, Evaluation, Material
from .verdicts import headline, main_baseline, verdicts

OF_TRAINING = ("reward", "validation", "think", "rewrite")
"""The curves that this page shows of a run; the page of runs alone has all."""


def evaluation_names(evaluations: Sequence[Evaluation]) -> list[str]:
    """What tells evaluations apart: nothing where there is one, else their name; their folder where it is shared."""
    if len(evaluations) == 1:
        return [""]
    names = [str(one.results["name"]) for one in evaluations]
    return [name if names.count(name) == 1 else str(one.folder) for name, one in zip(names, evaluations, strict=True)]


def evaluation_part(number: int, name: str, evaluation: Evaluation) -> dict[str, Any]:
    """All of an evaluation but its questions."""
    plan, results, tables = evaluation.plan, evaluation.results, evaluation.tables
    found = verdicts(plan, tables)
    single = [table.title for table in tables if not table.average]
    said, mood = headline([one for one in found if one.table in single], plan)
    figures = [
        draw_table(table, plan.metrics[0], main_baseline(plan), f"forest{number}-{place}")
        for place, table in enumerate(tables)
    ]
    matrix, leakage = evaluation.transfer, _leakage(evaluation)
    return {
        "name": name,
        "headline": said,
        "mood": mood,
        "verdicts": found,
        "notes": {table.title: [note for note in table.notes if note.startswith("Only ")] for table in tables},
        "metric": plan.metrics[0],
        "explained": explanation(results["family"]),
        "tables": list(zip(html_tables(tables, plan.metrics), figures, strict=True)),
        "transfer": draw_transfer(matrix, f"transfer{number}") if matrix is not None else None,
        "places": _places(evaluation),
        "failed": results["failed"],
        "unscored": [
            f"{table.title}: {note}"
            for table in tables
            if not table.average
            for note in table.notes
            if "has a score for" in note
        ],
        "split": plan.split,
        "leakage": leakage,
        "remarks": [one for one in results["notes"] if one not in leakage and " failed: " not in one],
        "plan": dump_plan(plan),
        "folder": evaluation.folder,
    }


def _places(evaluation: Evaluation) -> list[dict[str, Any]]:
    """The facts of each environment on each dataset."""
    asked = {(cell["dataset"], cell["environment"]): cell["questions"] for cell in evaluation.cells}
    samples = {(cell["dataset"], cell["environment"]): sample_of(cell.get("sample")) for cell in evaluation.cells}
    rows = []
    for place in evaluation.results["places"]:
        card, identity = place["retriever"], place["identity"]
        rows.append(
            {
                "dataset": place["dataset"],
                "environment": place["environment"],
                "card": f"{card['name']} ({card['kind']})" + (f": {card['trained']}" if card["trained"] else ""),
                "questions": asked.get((place["dataset"], place["environment"])),
                "sample": samples.get((place["dataset"], place["environment"])),
                "documents": place.get("documents"),
                "hashes": {
                    what: str(value)[:12]
                    for what, value in (
                        ("corpus", place.get("corpus")),
                        ("index", identity.get("index")),
                        ("judgements", identity.get("judgements")),
                    )
                    if value
                },
            }
        )
    return rows


def _leakage(evaluation: Evaluation) -> list[str]:
    """What was done that no run is judged by questions that it was trained on, run by run."""
    notes = [note for note in evaluation.results["notes"] if "could not be compared" in note]
    refused = [one for one in evaluation.results["failed"] if "was trained on questions of" in one["message"]]
    lines = [*notes, *(f"{one['system']} was refused on {one['dataset']}: {one['message']}" for one in refused)]
    open_questions = {note.partition(":")[0] for note in notes}
    for name, system in evaluation.plan.systems.items():
        trained = system.run is not None and system.checkpoint != "untrained"
        asked = any(cell["system"] == name for cell in evaluation.cells)
        if trained and asked and name not in open_questions:
            lines.append(f"{name}: none of the questions asked stands in the training split of its run.")
    return list(dict.fromkeys(lines))


def drift_part(number: int, drift: DriftFolder) -> dict[str, Any]:
    """Heat maps and pairs of one folder of drift."""
    return {
        "title": ", ".join(drift.names),
        "maps": maps(drift.names, drift.pairs, drift.content["notes"], f"drift{number}"),
        "success": drift.content["success"],
        "page": drift.folder / "drift.html",
    }


def length_parts(
    found: Mapping[tuple[str, str], Mapping[str, Mapping[int, Lengths]]],
) -> list[dict[str, Any]]:
    """Drawing and table of each environment; `found` by evaluation and environment, then by system and turn."""
    parts = []
    for number, ((name, environment), systems) in enumerate(found.items()):
        rows = [
            (system, turn, f"{one.answers:,}", _mean(one.think_mean), _mean(one.rewrite_mean))
            for system, turns in systems.items()
            for turn, one in turns.items()
        ]
        label = f"{environment} ({name})" if name else environment
        parts.append({"drawing": draw_lengths(label, systems, f"lengths{number}"), "rows": rows})
    return parts


def _mean(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def training_part(runs: Sequence[TrainingRun]) -> dict[str, Any] | None:
    """Curves over training steps; None without a run."""
    groups = grouped(runs)
    labels = [group.label for group in groups]
    chosen = [(figure, curves) for figure, curves in drawn(groups) if figure.id.split("-")[0] in OF_TRAINING]
    return {"groups": groups, "drawings": [draw_curves(*one, labels) for one in chosen]} if runs else None


def cost_row(key: tuple[str, str, str], system: str, found: Totals) -> dict[str, Any]:
    name, dataset, environment = key
    cells = [
        f"{found.answers:,}",
        f"{found.calls:,}",
        "–" if found.tokens_in is None else f"{found.tokens_in:,}",
        "–" if found.tokens_out is None else f"{found.tokens_out:,}",
        f"{found.searches:,}",
        f"{found.seconds:,.1f}",
    ]
    return {"where": " · ".join(filter(None, (name, dataset, environment))), "system": system, "cells": cells}


def commands(material: Material, page: str) -> list[tuple[str, str]]:
    """What each command makes, and the command; `page` is that of the page itself."""
    return [
        *(
            (f"the evaluation {one.results['name']}", reproduce.of_evaluation(one.folder))
            for one in material.evaluations
        ),
        *(
            (f"the drift between {', '.join(one.names)}", reproduce.of_drift(one.folder, one.content))
            for one in material.drifts
        ),
        *((f"the run {run.path.name}", reproduce.of_run(run.path)) for run in material.runs),
        ("this page", page),
    ]


def versions_part(material: Material) -> list[tuple[str, Mapping[str, str]]]:
    """Versions by what was made with them."""
    return [
        *(
            (f"evaluation {one.results['name']}, {one.results['created']}", one.results["versions"])
            for one in material.evaluations
        ),
        *((f"drift, {one.content['created']}", one.content["versions"]) for one in material.drifts),
        ("this page", versions()),
    ]
