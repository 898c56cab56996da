"""What a grid leaves in its folder, written anew after every evaluation from what the cells have answered.

tables.md tables.tex tables.html tables.csv    the same tables four times
results.json                        their figures, all comparisons, the cells, what failed, and the plan
transfer.svg                        policies × environments, where the plan has policies of different training
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
from .run import Cell, Grid, run_plan
from .table import Answers, Comparison, GridTable, Part, Row, answers_of, family, split_by_part, tabulate_parts
from .text import Page, csv, html, latex, markdown
from .training_free import best_of
from .transfer import Transfer, draw_transfer, transfer

log = logging.getLogger(__name__)

_COLOURS = "--ink: #1b2130; --line: #dfe2ea; --series-1: #2456c7; --series-2: #b34a0f; --sans: system-ui, sans-serif"
"""Of a drawing that stands alone; on a page they are the page's."""


def evaluate_plan(
    plan: PlanConfig,
    output: Path | None = None,
    check: Callable[[str], None] | None = None,
    overwrite: bool = False,
) -> tuple[Path, QuerylectError | None]:
    """Carry out a plan and write its folder, `output` or OUTPUT/NAME of the plan.

    Where `check` is given, raw questions are compared with published figures first, and it is told the outcome.
    Gives the path of tables.md and, where cells failed or an environment is wrong, what to raise. Raises ConfigError
    where the folder holds tables of other questions, unless `overwrite` says to replace them (answers in cells/ stay),
    StorageError where it cannot be written or another evaluation is at work in it.
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
    said = "\n".join(f"  {_where(failure)}: {failure.error}: {failure.message}" for failure in grid.failures)
    return folder / "tables.md", IncompleteError(
        f"{len(grid.failures)} of {len(grid.failures) + sum(cell.failure is None for cell in grid.cells)} cells "
        "failed; the tables are without what they lack. Mend it and give the command again: what was answered is not "
        "asked again."
        f"\n{said}"
    )


def identity_of(grid: Grid) -> dict[str, Any]:
    """What the tables of a grid are known by: the questions of every dataset."""
    questions = {place.dataset: question_set(place.questions) for place in grid.places}
    return {"split": grid.plan.split, "questions": {name: questions.get(name) for name in grid.plan.datasets}}


def write_results(grid: Grid) -> None:
    """Write everything but the cells."""
    plan, folder = grid.plan, grid.folder
    write_text(folder / "plan.yaml", dump_plan(plan))
    records = {id(cell): _named(cell) for cell in grid.cells}
    notes = list(dict.fromkeys(grid.notes))
    notes += [f"Nothing was rewritten. {verdict.sentence}" for verdict in grid.wrong]
    notes += [note for cell in grid.cells if cell.failure is None for note in _missing(cell)]
    notes += [f"{_where(failure)} failed: {failure.error}: {failure.message}" for failure in grid.failures]
    tables = build_tables(plan, grid.cells, records)
    cards = {place.environment: place.card for place in grid.places}
    trained_in = {name: home for name, one in grid.contestants.items() if (home := one.trained_in(plan, cards))}
    matrix = transfer(tables[-1], plan.metrics[0], trained_in) if tables else None
    drawing = draw_transfer(matrix) if matrix is not None else None
    _write_questions(grid, records)
    notes += _write_trec(grid, records) if plan.trec else []
    page = Page(plan.name, family(plan), plan.metrics, tables, matrix, notes, _about(grid))
    write_text(folder / "tables.md", markdown(page))
    write_text(folder / "tables.tex", latex(page))
    write_text(folder / "tables.html", html(page, drawing))
    write_text(folder / "tables.csv", csv(page))
    if drawing is not None:
        write_text(folder / "transfer.svg", _standing_alone(drawing))
    else:
        (folder / "transfer.svg").unlink(missing_ok=True)
    content = _json(grid, page, matrix)
    write_text(folder / "results.json", json.dumps(content, ensure_ascii=False, indent=1) + "\n")


def build_tables(
    plan: PlanConfig, cells: Sequence[Cell], records: Mapping[int, Sequence[EvalRecord]]
) -> list[GridTable]:
    """A table for each dataset (its parts, then their average), and the average of several datasets.

    `records` by id() of their cell.
    """
    tables: list[GridTable] = []
    shares: list[list[tuple[float, Part]]] = []
    for dataset in plan.datasets:
        answers: dict[tuple[Arm, str], Answers] = {}
        for cell in cells:
            if cell.place.dataset == dataset:
                ids = [question.id for question in cell.place.questions]
                for turn, found in answers_of(ids, records[id(cell)], cell.asking.paths).items():
                    answers[Arm(cell.name, turn), cell.place.environment] = found
        if not answers:
            continue
        said = _add_best_free(plan, [cell for cell in cells if cell.place.dataset == dataset], answers)
        whole = Part(dataset, answers)
        parts = split_by_part(whole) if plan.has_parts(dataset) else [whole]
        tables += [tabulate_parts(plan, part.title, [(1.0, part)], said) for part in parts]
        shares.append([(1.0 / len(parts), part) for part in parts])
        if len(parts) > 1:
            tables.append(tabulate_parts(plan, f"{dataset}: average of {len(parts)} parts", shares[-1]))
    if len(shares) > 1:
        every = [(share / len(shares), part) for parts in shares for share, part in parts]
        tables.append(tabulate_parts(plan, f"Average of {len(shares)} datasets", every))
    return tables


def _add_best_free(plan: PlanConfig, cells: Sequence[Cell], answers: dict[tuple[Arm, str], Answers]) -> list[str]:
    """Add the answers of the best training-free baseline of each environment, under BEST_FREE.

    `cells` are those of one dataset. Gives notes on the weights of all of them, and on which is the best.
    """
    notes = []
    for name in plan.environments:
        found: dict[str, Tuned] = {}
        for cell in cells:
            tuned = cell.free.chosen(cell.journal.folder) if cell.free is not None else None
            if tuned is not None and cell.place.environment == name and (Arm(cell.name, 0), name) in answers:
                found[cell.name] = tuned
        if not found:
            continue
        scores = {
            system: [values.get(plan.metrics[0]) for values in answers[Arm(system, 0), name].values.values()]
            for system in found
        }
        best, by_validation = best_of(found, scores)
        answers[Arm(BEST_FREE, 0), name] = answers[Arm(best, 0), name]
        notes += [f"{name}: {system}: {tuned.sentence}" for system, tuned in found.items()]
        chosen = "on validation questions" if by_validation else "on the evaluated questions, which is in its favour"
        notes.append(f"{name}: {best} is the best training-free baseline {chosen}.")
    return notes


def _missing(cell: Cell) -> list[str]:
    reasons = cell.missing()
    if not reasons:
        return []
    said = ", ".join(f"{reason} ({count})" for reason, count in sorted(reasons.items()))
    return [
        f"{_where_of(cell)}: {sum(reasons.values())} answers never came and are counted nowhere: {said}. The same "
        f"command asks for them again; cells/{cell.journal.fingerprint}/missing.jsonl names the questions."
    ]


def _named(cell: Cell) -> list[EvalRecord]:
    """The records of a cell under the system's present name, in the order of the questions."""
    place = {question.id: number for number, question in enumerate(cell.place.questions)}
    try:
        found = cell.records()
    except DataError:  # the cell has failed by it already
        return []
    found.sort(key=lambda record: (place[record.question_id], record.turn, record.sample))
    wanted = set(cell.turns)
    return [replace(record, system=cell.name) for record in found if record.turn in wanted]


def _write_questions(grid: Grid, records: Mapping[int, Sequence[EvalRecord]]) -> None:
    folder = grid.folder / "questions"
    shutil.rmtree(folder, ignore_errors=True)
    for cell in grid.cells:
        if records[id(cell)]:
            write_records(folder / f"{_stem(cell)}.jsonl", records[id(cell)])


def _write_trec(grid: Grid, records: Mapping[int, Sequence[EvalRecord]]) -> list[str]:
    """TREC files by dataset; gives notes on what the format cannot carry."""
    notes = []
    shutil.rmtree(grid.folder / "trec", ignore_errors=True)
    for dataset in grid.plan.datasets:
        cells = [cell for cell in grid.cells if cell.place.dataset == dataset]
        runs: dict[str, dict[str, list[RankedHit]]] = {}
        for cell in cells:
            for record in records[id(cell)]:
                if record.ranking and None not in record.metrics.values():
                    sample = f"-sample{record.sample}" if cell.asking.samples is not None else ""
                    turn = f"-turn{record.turn}" if record.turn else ""
                    run = runs.setdefault(f"{cell.place.environment}.{cell.name}{turn}{sample}", {})
                    run[record.question_id] = list(map(RankedHit, record.ranking, record.scores))
        if not runs:
            continue
        known = next((cell.place.split for cell in cells if cell.place.split is not None), None)
        questions = cells[0].place.questions
        qrels: Qrels = {question.id: known.qrels.get(question.id, {}) if known else {} for question in questions}
        about = {
            "dataset": dataset,
            "split": grid.plan.split,
            "questions": len(questions),
            "judgements": "qrels.txt" if known else "not on this machine: qrels.txt is empty",
            "missing": "a question without a line in a run found nothing, kept no format, or was unscorable",
            "licence": grid.licences.get(dataset, ""),
        }
        try:
            write_trec(grid.folder / "trec" / dataset, Split(questions, qrels), runs, about)
        except DataError as error:
            notes.append(f"There are no TREC files of {dataset}: {error}")
    return notes


def _about(grid: Grid) -> list[str]:
    plan = grid.plan
    lines = [f"Split {plan.split}, seed {plan.seed}, rankings {plan.depth} deep, greedy where no samples are named."]
    lines += sorted({f"{place.dataset}: {place.sample} questions." for place in grid.places if place.sample})
    lines += [f"{dataset}: {licence}" for dataset, licence in grid.licences.items() if licence]
    lines += [verdict.sentence for _, verdict in grid.baselines if verdict.status != "wrong"]
    said = ", ".join(f"{name} {version}" for name, version in versions().items())
    return [*lines, f"To make it again: querylect eval plan.yaml. {said}."]


def _json(grid: Grid, page: Page, matrix: Transfer | None) -> dict[str, Any]:
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
                "dataset": cell.place.dataset,
                "environment": cell.place.environment,
                "questions": len(cell.place.questions),
                "sample": asdict(cell.place.sample) if cell.place.sample is not None else None,
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
                "dataset": place.dataset,
                "environment": place.environment,
                "retriever": asdict(place.card),
                "documents": place.documents,
                "corpus": place.corpus_hash,
                "identity": place.identity,
            }
            for place in grid.places
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


def _comparison_json(row: Comparison) -> dict[str, Any]:
    return {
        **row.arm._asdict(),
        "against": row.baseline._asdict(),
        "environment": row.environment,
        **asdict(row.test),
        "p_holm": row.p_holm,
        "significant": row.significant,
    }


def _standing_alone(drawing: Drawing) -> str:
    start, rest = drawing.svg.split(">", 1)
    return f"{start}><style>:root {{ {_COLOURS}; }}</style>{rest}\n"


def _stem(cell: Cell) -> str:
    return f"{cell.place.dataset}.{cell.place.environment}.{cell.name}"


def _where(failure: Any) -> str:
    return f"{failure.system} on {failure.dataset} in {failure.environment}"


def _where_of(cell: Cell) -> str:
    return f"{cell.name} on {cell.place.dataset} in {cell.place.environment}"
