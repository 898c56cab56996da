"""Are the environments of a plan right? Their raw questions beside published figures, before anything is rewritten.

The whole split is measured, whatever `limit` says, for that is what is published. The answers stand in the cell of the
raw questions, so that nothing is searched twice. An environment whose figure cannot be taken, because a question got no
score, is neither right nor wrong: its cells fail, and the others go on.
"""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from ...data.references import METRIC, check_baselines
from ...errors import EnvironmentUnavailableError, QuerylectError
from ..baselines import figures
from .places import Place
from .run import Cell, Grid, ask_at, failure_of, raw_cell

_DEEP_ENOUGH = 10


def check_environments(grid: Grid, tell: Callable[[str], None]) -> None:
    """Measure and compare every place, a sentence each to `tell`; fills in `grid.baselines` and failures of cells."""
    plan = grid.plan
    metrics = plan.metrics if METRIC in plan.metrics else [METRIC]
    for place in grid.places:
        whole = replace(place, questions=place.everything)
        cell = raw_cell(grid, whole, metrics, max(plan.depth, _DEEP_ENOUGH))
        try:
            values = _measured(cell, plan.batch)
        except QuerylectError as error:
            for other in (one for one in grid.cells if one.place is place):
                other.failure = failure_of(other, error)
            tell(f"{_label(place)}: not measured; {error}")
            continue
        for verdict in check_baselines(figures(_label(place), *place.published_as, plan.split, values)):
            grid.baselines.append((place, verdict))
            tell(verdict.sentence)


def baselines_json(grid: Grid) -> list[dict[str, Any]]:
    """For results.json."""
    return [
        {"dataset": place.dataset, "environment": place.environment, **asdict(verdict)}
        for place, verdict in grid.baselines
    ]


def _measured(cell: Cell, size: int) -> dict[str, float]:
    """nDCG@10 by question. Raises EnvironmentUnavailableError where one has none."""
    if cell.pending():
        ask_at(cell.place, [cell], None, size)
    if cell.failure is not None:
        raise EnvironmentUnavailableError(cell.failure.message)
    values = {record.question_id: value for record in cell.records() if (value := record.metrics[METRIC]) is not None}
    lost = len(cell.place.questions) - len(values)
    if lost:
        raise EnvironmentUnavailableError(
            f"{lost} of {len(cell.place.questions)} raw questions have no score, so they cannot be compared with what "
            "is published. Give the command again: what was answered is kept."
        )
    return values


def _label(place: Place) -> str:
    return f"{place.environment} on {place.dataset}"
