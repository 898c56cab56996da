"""Write the results of a grid into its folder; rewritten after every evaluation from the answers in the cells.

tables.md tables.tex tables.html tables.csv    the same tables four times
results.json                        their figures, all comparisons, the cells, failures, and the plan
transfer.svg                        policies × environments, if the plan has differently trained policies
questions/DATASET.ENVIRONMENT.SYSTEM.jsonl    every record that counts (eval/records.py)
trec/DATASET/                       topics, qrels and a run for each system and turn
plan.yaml                           the plan with every setting; cells/ has the answers by fingerprint
"""

import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...configs.evaluation import BEST_FREE, PlanConfig
from ...configs.plan_files import dump_plan
from ...data.types import Qrels, Split
from ...envs.environment import RankedHit
from ...envs.trec import write_trec
from ...errors import BaselineError, DataError, IncompleteError, QuerylectError
from ..baselines import refuse_wrong
from ..pages.figures import Drawing
from ..placement import question_set, refuse_other
from ..provenance import versions
from ..records import EvalRecord, refuse_unwritable, write_records, write_text
from ..table import Arm
from ..training_free import Tuned
from .baselines import baselines_json, check_environments
from .run import Cell, FailedCell, Grid, run_plan
from .table import (
    Answers,
    GridComparison,
    GridTable,
    QuestionSet,
    Row,
    answers_of,
    family,
    split_by_part,
    tabulate_parts,
)
from .text import Page, csv, html, latex, markdown
from .training_free import best_of
from .transfer import Transfer, draw_transfer, transfer

log = logging.getLogger(__name__)

_COLOURS = "--ink: #1b2130; --line: #dfe2ea; --series-1: #2456c7; --series-2: #b34a0f; --sans: system-ui, sans-serif"
"""Colours of a standalone drawing; on a page, the page's style sheet sets them."""


def evaluate_plan(
    plan: PlanConfig,
    output: Path | None = None,
    check: Callable[[str], None] | None = None,
    overwrite: bool = False,
) -> tuple[Path, QuerylectError | None]:
    """Evaluate a plan and write its folder: `output`, or OUTPUT/NAME of the plan.

    If `check` is given, raw questions are first compared with published figures, and `check` is called with each
    outcome. Returns the path of tables.md and the error to raise if cells failed or an environment is wrong, else None.
    Raises ConfigError if the folder holds tables of other questions and `overwrite` is false (answers in cells/ are
    never replaced), StorageError if the folder cannot be written or another evaluation is using it.
    """
    folder = output or Path(plan.output).expanduser() / plan.name
    refuse_unwritable(folder)

    def begin(grid: Grid) -> None:
        refuse_other(folder / "results.json", identity_of(grid), overwrite)
        if check is not None:
            check_environments(grid, tell=check)

    grid = run_plan(plan, folder, begin)
    write_results(grid)
    try:
        refuse_wrong([verdict for _, verdict in grid.baselines])
    except BaselineError as error:
        return folder / "tables.md", error
    unscored = sum(len(cell.pending()) for cell in grid.cells if cell.failure is None)
    if unscored:
        log.warning("%d answers have no score; they count nowhere, and the same command asks them again", unscored)
    if not grid.failures:
        return folder / "tables.md", None
    details = "\n".join(f"  {_failure_label(failure)}: {failure.error}: {failure.message}" for failure in grid.failures)
    return folder / "tables.md", IncompleteError(
        f"{len(grid.failures)} of {len(grid.failures) + sum(cell.failure is None for cell in grid.cells)} cells "
        "failed; the tables are without what they lack. Mend it and give the command again: what was answered is not "
        "asked again."
        f"\n{details}"
    )


def identity_of(grid: Grid) -> dict[str, Any]:
    """The identity of a grid's tables: its split and the questions of every dataset."""
    questions = {testbed.dataset: question_set(testbed.questions) for testbed in grid.testbeds}
    return {"split": grid.plan.split, "questions": {name: questions.get(name) for name in grid.plan.datasets}}


def write_results(grid: Grid) -> None:
    """Write all files except the cells."""
    plan, folder = grid.plan, grid.folder
    write_text(folder / "plan.yaml", dump_plan(plan))
    records = {id(cell): _ordered_records(cell) for cell in grid.cells}
    notes = list(dict.fromkeys(grid.notes))
    notes += [f"Nothing was rewritten. {verdict.sentence}" for verdict in grid.wrong]
    notes += [note for cell in grid.cells if cell.failure is None for note in _missing_notes(cell)]
    notes += [f"{_failure_label(failure)} failed: {failure.error}: {failure.message}" for failure in grid.failures]
    tables = build_tables(plan, grid.cells, records)
    cards = {testbed.environment: testbed.card for testbed in grid.testbeds}
    trained_in = {
        name: environment
        for name, contestant in grid.contestants.items()
        if (environment := contestant.trained_in(plan, cards))
    }
    matrix = transfer(tables[-1], plan.metrics[0], trained_in) if tables else None
    drawing = draw_transfer(matrix) if matrix is not None else None
    _write_questions(grid, records)
    notes += _write_trec(grid, records) if plan.trec else []
    page = Page(plan.name, family(plan), plan.metrics, tables, matrix, notes, _provenance_lines(grid))
    write_text(folder / "tables.md", markdown(page))
    write_text(folder / "tables.tex", latex(page))
    write_text(folder / "tables.html", html(page, drawing))
    write_text(folder / "tables.csv", csv(page))
    if drawing is not None:
        write_text(folder / "transfer.svg", _standalone_svg(drawing))
    else:
        (folder / "transfer.svg").unlink(missing_ok=True)
    content = _results_json(grid, page, matrix)
    write_text(folder / "results.json", json.dumps(content, ensure_ascii=False, indent=1) + "\n")


def build_tables(
    plan: PlanConfig, cells: Sequence[Cell], records: Mapping[int, Sequence[EvalRecord]]
) -> list[GridTable]:
    """One table per dataset (one per part and their average if it has parts), then the average over datasets.

    `records` are keyed by id() of their cell.
    """
    tables: list[GridTable] = []
    shares: list[list[tuple[float, QuestionSet]]] = []
    for dataset in plan.datasets:
        answers: dict[tuple[Arm, str], Answers] = {}
        for cell in cells:
            if cell.testbed.dataset == dataset:
                ids = [question.id for question in cell.testbed.questions]
                for turn, turn_answers in answers_of(ids, records[id(cell)], cell.asking.paths).items():
                    answers[Arm(cell.name, turn), cell.testbed.environment] = turn_answers
        if not answers:
            continue
        notes = _add_best_free(plan, [cell for cell in cells if cell.testbed.dataset == dataset], answers)
        full = QuestionSet(dataset, answers)
        parts = split_by_part(full) if plan.has_parts(dataset) else [full]
        tables += [tabulate_parts(plan, part.title, [(1.0, part)], notes) for part in parts]
        shares.append([(1.0 / len(parts), part) for part in parts])
        if len(parts) > 1:
            tables.append(tabulate_parts(plan, f"{dataset}: average of {len(parts)} parts", shares[-1]))
    if len(shares) > 1:
        weighted_parts = [(share / len(shares), part) for parts in shares for share, part in parts]
        tables.append(tabulate_parts(plan, f"Average of {len(shares)} datasets", weighted_parts))
    return tables


def _add_best_free(plan: PlanConfig, cells: Sequence[Cell], answers: dict[tuple[Arm, str], Answers]) -> list[str]:
    """Add the answers of the best training-free baseline of each environment, under BEST_FREE.

    `cells` are those of one dataset. Returns notes on the weights of every baseline and on which one is best.
    """
    notes = []
    for name in plan.environments:
        candidates: dict[str, Tuned] = {}
        for cell in cells:
            tuned = cell.free.chosen(cell.journal.folder) if cell.free is not None else None
            if tuned is not None and cell.testbed.environment == name and (Arm(cell.name, 0), name) in answers:
                candidates[cell.name] = tuned
        if not candidates:
            continue
        scores = {
            system: [values.get(plan.metrics[0]) for values in answers[Arm(system, 0), name].values.values()]
            for system in candidates
        }
        best, by_validation = best_of(candidates, scores)
        answers[Arm(BEST_FREE, 0), name] = answers[Arm(best, 0), name]
        notes += [f"{name}: {system}: {tuned.sentence}" for system, tuned in candidates.items()]
        chosen = "on validation questions" if by_validation else "on the evaluated questions, which is in its favour"
        notes.append(f"{name}: {best} is the best training-free baseline {chosen}.")
    return notes


def _missing_notes(cell: Cell) -> list[str]:
    reasons = cell.missing()
    if not reasons:
        return []
    summary = ", ".join(f"{reason} ({count})" for reason, count in sorted(reasons.items()))
    return [
        f"{_cell_label(cell)}: {sum(reasons.values())} answers never came and are counted nowhere: {summary}. The same "
        f"command asks for them again; cells/{cell.journal.fingerprint}/missing.jsonl names the questions."
    ]


def _ordered_records(cell: Cell) -> list[EvalRecord]:
    """The records of a cell under the system's current name, in the order of the questions."""
    order = {question.id: number for number, question in enumerate(cell.testbed.questions)}
    try:
        records = cell.records()
    except DataError:  # the cell was already marked as failed for it
        return []
    records.sort(key=lambda record: (order[record.question_id], record.turn, record.sample))
    turns = set(cell.turns)
    return [replace(record, system=cell.name) for record in records if record.turn in turns]


def _write_questions(grid: Grid, records: Mapping[int, Sequence[EvalRecord]]) -> None:
    folder = grid.folder / "questions"
    shutil.rmtree(folder, ignore_errors=True)
    for cell in grid.cells:
        if records[id(cell)]:
            write_records(folder / f"{_stem(cell)}.jsonl", records[id(cell)])


def _write_trec(grid: Grid, records: Mapping[int, Sequence[EvalRecord]]) -> list[str]:
    """Write TREC files by dataset; returns notes on datasets that the format cannot represent."""
    notes = []
    shutil.rmtree(grid.folder / "trec", ignore_errors=True)
    for dataset in grid.plan.datasets:
        cells = [cell for cell in grid.cells if cell.testbed.dataset == dataset]
        runs: dict[str, dict[str, list[RankedHit]]] = {}
        for cell in cells:
            for record in records[id(cell)]:
                if record.ranking and None not in record.metrics.values():
                    sample = f"-sample{record.sample}" if cell.asking.samples is not None else ""
                    turn = f"-turn{record.turn}" if record.turn else ""
                    run = runs.setdefault(f"{cell.testbed.environment}.{cell.name}{turn}{sample}", {})
                    run[record.question_id] = list(map(RankedHit, record.ranking, record.scores))
        if not runs:
            continue
        split = next((cell.testbed.split for cell in cells if cell.testbed.split is not None), None)
        questions = cells[0].testbed.questions
        qrels: Qrels = {question.id: split.qrels.get(question.id, {}) if split else {} for question in questions}
        metadata = {
            "dataset": dataset,
            "split": grid.plan.split,
            "questions": len(questions),
            "judgements": "qrels.txt" if split else "not on this machine: qrels.txt is empty",
            "missing": "a question without a line in a run found nothing, kept no format, or was unscorable",
            "licence": grid.licences.get(dataset, ""),
        }
        try:
            write_trec(grid.folder / "trec" / dataset, Split(questions, qrels), runs, metadata)
        except DataError as error:
            notes.append(f"There are no TREC files of {dataset}: {error}")
    return notes


def _provenance_lines(grid: Grid) -> list[str]:
    plan = grid.plan
    lines = [f"Split {plan.split}, seed {plan.seed}, rankings {plan.depth} deep, greedy where no samples are named."]
    lines += sorted({f"{testbed.dataset}: {testbed.sample} questions." for testbed in grid.testbeds if testbed.sample})
    lines += [f"{dataset}: {licence}" for dataset, licence in grid.licences.items() if licence]
    lines += [verdict.sentence for _, verdict in grid.baselines if verdict.status != "wrong"]
    version_list = ", ".join(f"{name} {version}" for name, version in versions().items())
    return [*lines, f"To make it again: querylect eval plan.yaml. {version_list}."]


def _results_json(grid: Grid, page: Page, matrix: Transfer | None) -> dict[str, Any]:
    return {
        "created": datetime.now(UTC).isoformat(sep=" ", timespec="seconds"),
        "name": grid.plan.name,
        "identity": identity_of(grid),
        "family": page.family,
        "tables": [_table_json(table) for table in page.tables],
        "transfer": asdict(matrix) if matrix is not None else None,
        "cells": [
            {
                "system": cell.name,
                "dataset": cell.testbed.dataset,
                "environment": cell.testbed.environment,
                "questions": len(cell.testbed.questions),
                "sample": asdict(cell.testbed.sample) if cell.testbed.sample is not None else None,
                "turns": cell.turns,
                "samples": cell.asking.samples,
                "fingerprint": cell.journal.fingerprint,
                "missing": cell.missing() if cell.failure is None else {},
                "records": f"questions/{_stem(cell)}.jsonl",
            }
            for cell in grid.cells
        ],
        "failed": [asdict(failure) for failure in grid.failures],
        "baselines": baselines_json(grid),
        "notes": list(page.notes),
        "places": [
            {
                "dataset": testbed.dataset,
                "environment": testbed.environment,
                "retriever": asdict(testbed.card),
                "documents": testbed.documents,
                "corpus": testbed.corpus_hash,
                "identity": testbed.identity,
            }
            for testbed in grid.testbeds
        ],
        "plan": grid.plan.model_dump(mode="json"),
        "versions": versions(),
    }


def _table_json(table: GridTable) -> dict[str, Any]:
    return {
        "title": table.title,
        "average": table.average,
        "questions": table.questions,
        "environments": table.environments,
        "rows": [_row_json(row) for row in table.rows],
        "comparisons": [_comparison_json(row) for row in table.comparisons],
        "notes": table.notes,
    }


def _row_json(row: Row) -> dict[str, Any]:
    scores = {name: asdict(score) if score is not None else None for name, score in row.scores.items()}
    costs = asdict(row.costs) if row.costs is not None else None
    return {**row.arm._asdict(), "label": row.label, "scores": scores, "costs": costs}


def _comparison_json(row: GridComparison) -> dict[str, Any]:
    return {
        **row.arm._asdict(),
        "against": row.baseline._asdict(),
        "environment": row.environment,
        **asdict(row.test),
        "p_holm": row.p_holm,
        "significant": row.significant,
    }


def _standalone_svg(drawing: Drawing) -> str:
    opening, body = drawing.svg.split(">", 1)
    return f"{opening}><style>:root {{ {_COLOURS}; }}</style>{body}\n"


def _stem(cell: Cell) -> str:
    return f"{cell.testbed.dataset}.{cell.testbed.environment}.{cell.name}"


def _failure_label(failure: FailedCell) -> str:
    return f"{failure.system} on {failure.dataset} in {failure.environment}"


def _cell_label(cell: Cell) -> str:
    return f"{cell.name} on {cell.testbed.dataset} in {cell.testbed.environment}"
