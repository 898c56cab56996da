"""Check a plan's environments before any rewriting: compare the scores of raw questions with published figures.

The full split is measured, whatever `limit` says, because published figures are for the full split. The answers are
stored in the cell of the raw questions, so nothing is searched twice. If a question has no score, its environment
cannot be measured: its cells fail, and the other environments continue.
"""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from ...data.references import METRIC, check_baselines
from ...errors import EnvironmentUnavailableError, QuerylectError
from ..baselines import figures
from .places import Testbed
from .run import Cell, Grid, ask_at, failure_of, raw_cell

_MIN_DEPTH = 10


def check_environments(grid: Grid, tell: Callable[[str], None]) -> None:
    """Measure and compare every testbed; fill in `grid.baselines` and the failures of cells.

    `tell` is called with one sentence per testbed.
    """
    plan = grid.plan
    metrics = plan.metrics if METRIC in plan.metrics else [METRIC]
    for testbed in grid.testbeds:
        full_split = replace(testbed, questions=testbed.everything)
        raw = raw_cell(grid, full_split, metrics, max(plan.depth, _MIN_DEPTH))
        try:
            values = _ndcg_by_question(raw, plan.batch)
        except QuerylectError as error:
            for cell in grid.cells:
                if cell.testbed is testbed:
                    cell.failure = failure_of(cell, error)
            tell(f"{_label(testbed)}: not measured; {error}")
            continue
        for verdict in check_baselines(figures(_label(testbed), *testbed.published_as, plan.split, values)):
            grid.baselines.append((testbed, verdict))
            tell(verdict.sentence)


def baselines_json(grid: Grid) -> list[dict[str, Any]]:
    """The comparisons with published figures, for results.json."""
    return [
        {"dataset": testbed.dataset, "environment": testbed.environment, **asdict(verdict)}
        for testbed, verdict in grid.baselines
    ]


def _ndcg_by_question(cell: Cell, batch_size: int) -> dict[str, float]:
    """nDCG@10 by question. Raises EnvironmentUnavailableError if a question has no score."""
    if cell.pending():
        ask_at(cell.testbed, [cell], None, batch_size)
    if cell.failure is not None:
        raise EnvironmentUnavailableError(cell.failure.message)
    values = {record.question_id: value for record in cell.records() if (value := record.metrics[METRIC]) is not None}
    unscored = len(cell.testbed.questions) - len(values)
    if unscored:
        raise EnvironmentUnavailableError(
            f"{unscored} of {len(cell.testbed.questions)} raw questions have no score, so they cannot be compared with "
            "what is published. Give the command again: what was answered is kept."
        )
    return values


def _label(testbed: Testbed) -> str:
    return f"{testbed.environment} on {testbed.dataset}"
