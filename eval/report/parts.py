"""Template values for the sections of the page of `querylect report`; no markup except drawings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...configs.spec_files import dump_spec
from ...provenance import versions
from ..drift.report import maps
from ..results import EnvironmentEntry
from ..spec_tables import wide_table_of
from ..table import decimal
from ..text import Page, downloads, explanation, html_tables
from ..transfer import draw_transfer
from . import reproduce
from .curve_figures import draw_curves
from .curves import TrainingRun, drawn, grouped
from .forest import draw_table
from .lengths import Lengths, Totals, draw_lengths
from .sources import DriftFolder, EvaluationFolder, Material
from .verdicts import headline, main_baseline, verdicts

OF_TRAINING = ("validation", "reward", "copy", "rewrite", "think")
"""The training curves that this page shows; the page of `write_curves` has all of them."""


def evaluation_names(evaluations: Sequence[EvaluationFolder]) -> list[str]:
    """A label per evaluation: "" if there is only one, else its name, or its folder if the name is not unique."""
    if len(evaluations) == 1:
        return [""]
    names = [evaluation.results.name for evaluation in evaluations]
    return [
        name if names.count(name) == 1 else str(evaluation.folder)
        for name, evaluation in zip(names, evaluations, strict=True)
    ]


def evaluation_part(number: int, name: str, evaluation: EvaluationFolder) -> dict[str, object]:
    """Template values of an evaluation, except its questions."""
    spec, results, tables = evaluation.spec, evaluation.results, evaluation.tables
    outcomes = verdicts(spec, tables)
    single = [table.title for table in tables if not table.average]
    headline_text, mood = headline(
        [verdict for verdict in outcomes if verdict.table in single],
        spec,
        [table for table in tables if not table.average],
    )
    figures = [
        draw_table(table, spec.metrics[0], main_baseline(spec), f"forest{number}-{index}")
        for index, table in enumerate(tables)
    ]
    samples = {cell.dataset: cell.sample for cell in results.cells if cell.sample is not None}
    page = Page(
        results.name, results.family, spec.metrics, tables, wide_table_of(spec, tables, samples), results.transfer,
        results.notes, [f"To make it again: {reproduce.of_evaluation(evaluation.folder)}"],
    )  # fmt: skip
    matrix, leakage = results.transfer, _leakage(evaluation)
    return {
        "name": name,
        "headline": headline_text,
        "mood": mood,
        "verdicts": outcomes,
        "notes": {table.title: [note for note in table.notes if note.startswith("Only ")] for table in tables},
        "explained": explanation(results.family),
        "wide": page.wide,
        "downloads": downloads(page),
        "tables": list(zip(html_tables(tables, spec.metrics), figures, strict=True)),
        "transfer": draw_transfer(matrix, f"transfer{number}") if matrix is not None else None,
        "places": _environment_facts(evaluation),
        "unscored": [
            f"{table.title}: {note}"
            for table in tables
            if not table.average
            for note in table.notes
            if "has a score for" in note
        ],
        "leakage": leakage,
        "remarks": [note for note in results.notes if note not in leakage and " failed: " not in note],
        "plan": dump_spec(spec),
        "spec": spec,
        "results": results,
        "folder": evaluation.folder,
    }


@dataclass(frozen=True, slots=True)
class EnvironmentFacts:
    """One environment on one dataset."""

    entry: EnvironmentEntry
    questions: str
    """How many there are, or how they were sampled."""
    hashes: Mapping[str, str]


def _environment_facts(evaluation: EvaluationFolder) -> list[EnvironmentFacts]:
    cells = {(cell.dataset, cell.environment): cell for cell in evaluation.results.cells}
    facts = []
    for entry in evaluation.results.places:
        cell = cells.get((entry.dataset, entry.environment))
        values = {"corpus": entry.corpus, **{kind: entry.identity.get(kind) for kind in ("index", "judgements")}}
        facts.append(
            EnvironmentFacts(
                entry,
                "–" if cell is None else str(cell.sample or f"{cell.questions:,}"),
                {kind: str(value)[:12] for kind, value in values.items() if value},
            )
        )
    return facts


def _leakage(evaluation: EvaluationFolder) -> list[str]:
    """The outcome of the check for training questions in the evaluated split, by run."""
    notes = [note for note in evaluation.results.notes if "could not be compared" in note]
    refused = [failure for failure in evaluation.results.failed if "was trained on questions of" in failure.message]
    lines = [*notes, *(f"{failure.system} was refused on {failure.dataset}: {failure.message}" for failure in refused)]
    uncompared = {note.partition(":")[0] for note in notes}
    for name, system in evaluation.spec.systems.items():
        trained = system.run is not None and system.checkpoint != "untrained"
        evaluated = any(cell.system == name for cell in evaluation.results.cells)
        if trained and evaluated and name not in uncompared:
            lines.append(f"{name}: none of the questions asked stands in the training split of its run.")
    return list(dict.fromkeys(lines))


def drift_part(number: int, drift: DriftFolder) -> dict[str, object]:
    """Heat maps and pairs of one drift folder."""
    return {
        "title": ", ".join(drift.names),
        "maps": maps(drift.names, drift.content.pairs, drift.content.notes, f"drift{number}"),
        "success": drift.content.success,
        "page": drift.folder / "drift.html",
    }


def length_parts(
    by_environment: Mapping[tuple[str, str], Mapping[str, Mapping[int, Lengths]]],
) -> list[dict[str, object]]:
    """A drawing and a table for each environment.

    `by_environment` maps (evaluation, environment) to lengths by system and turn.
    """
    parts = []
    for number, ((name, environment), systems) in enumerate(by_environment.items()):
        rows = [
            (system, turn, f"{lengths.answers:,}", decimal(lengths.think_mean, 1), decimal(lengths.rewrite_mean, 1))
            for system, turns in systems.items()
            for turn, lengths in turns.items()
        ]
        label = f"{environment} ({name})" if name else environment
        parts.append({"drawing": draw_lengths(label, systems, f"lengths{number}"), "rows": rows})
    return parts


def training_part(runs: Sequence[TrainingRun]) -> dict[str, object] | None:
    """Training curves; None without a run."""
    groups = grouped(runs)
    labels = [group.label for group in groups]
    chosen = [(figure, curves) for figure, curves in drawn(groups) if figure.id.split("-")[0] in OF_TRAINING]
    return (
        {"groups": groups, "drawings": [draw_curves(figure, curves, labels) for figure, curves in chosen]}
        if runs
        else None
    )


def cost_row(key: tuple[str, str, str], system: str, totals: Totals) -> dict[str, object]:
    """One row of the table of costs. `key` is (evaluation, dataset, environment)."""
    name, dataset, environment = key
    cells = [
        f"{totals.answers:,}",
        "–" if totals.calls is None else f"{totals.calls:,}",
        "–" if totals.tokens_in is None else f"{totals.tokens_in:,}",
        "–" if totals.tokens_out is None else f"{totals.tokens_out:,}",
        f"{totals.searches:,}",
        f"{totals.seconds:,.1f}",
    ]
    return {"where": " · ".join(filter(None, (name, dataset, environment))), "system": system, "cells": cells}


def commands(material: Material, page: str) -> list[tuple[str, str]]:
    """(What it makes, command) of every folder and of the page; `page` is the command that makes the page."""
    return [
        *(
            (f"the evaluation {evaluation.results.name}", reproduce.of_evaluation(evaluation.folder))
            for evaluation in material.evaluations
        ),
        *(
            (f"the drift between {', '.join(drift.names)}", reproduce.of_drift(drift.folder, drift.content))
            for drift in material.drifts
        ),
        *((f"the run {run.path.name}", reproduce.of_run(run.path)) for run in material.runs),
        ("this page", page),
    ]


def versions_part(material: Material) -> list[tuple[str, Mapping[str, str]]]:
    """Package versions of every evaluation and drift, and of this page."""
    return [
        *(
            (f"evaluation {results.name}, {results.created}", results.versions)
            for results in (evaluation.results for evaluation in material.evaluations)
        ),
        *((f"drift, {drift.content.created}", drift.content.versions) for drift in material.drifts),
        ("this page", versions()),
    ]
