"""From records to results: means and missing counts, gains by label, shifts, sweeps, tests, costs.

A value of None is left out of every mean and pair and counted. Tests are one-sided in the direction that is better
(eval/statistics.py), every system against the baseline, by Holm adjusted over all of them together.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...configs.paper import PaperConfig
from ..statistics import Alternative, ExactComparison, compare_exactly, holm
from ..table import ALPHA
from ..tasks.judge_prompts import LABELS
from ..tasks.judges import BY_SOURCE
from ..tasks.shift import Shift, retrieval_shift
from .cases import CaseRow, case_rows
from .records import PaperRecord

COSTS = ("calls", "prompt_tokens", "tokens", "searches", "reader_prompt_tokens", "reader_tokens")
LOWER_IS_BETTER = ("declined",)
DUR = "dur"
"""The decision-useful rate: contexts that entail the right answer or are useful for it (seed 000, section 4.6)."""


@dataclass(frozen=True, slots=True)
class Mean:
    """One figure."""

    value: float | None
    """None where there is nothing to average."""
    n: int
    """Questions that it is the mean of."""


@dataclass(frozen=True, slots=True)
class PaperRow:
    """What one system reached on one task."""

    task: str
    system: str
    questions: int
    answered: int
    reasons: Mapping[str, int]
    """Questions without an answer, by reason."""
    cut: int
    no_choice: int
    """Multiple choice: answers that name no option; they are wrong, and counted here as well."""
    off_format: Mapping[str, int]
    """Cases whose judge failed, by judge; they are in no mean."""
    unjudged: Mapping[str, int]
    """Cases whose judge did not reply, by judge; the same."""
    means: Mapping[str, Mean]
    prompts: tuple[str, ...]
    """Versions of the prompts of the method."""


@dataclass(frozen=True, slots=True)
class PaperComparison:
    """One system against the baseline on one metric of one task."""

    task: str
    system: str
    baseline: str
    metric: str
    test: ExactComparison
    p_holm: float

    @property
    def significant(self) -> bool:
        """Whether the adjusted p is below 0.05."""
        return self.p_holm < ALPHA


@dataclass(frozen=True, slots=True)
class ShiftRow:
    """How far two systems' rankings lie apart on one task."""

    task: str
    system: str
    against: str
    only: str
    """Which questions: `all`, or `right` where the first is right and the other is not."""
    shift: Shift


@dataclass(frozen=True, slots=True)
class PaperResults:
    """Everything that the tables are made of."""

    rows: Sequence[PaperRow]
    comparisons: Sequence[PaperComparison] = ()
    shifts: Sequence[ShiftRow] = ()
    by_place: Mapping[tuple[str, str], PaperRow] = field(default_factory=dict)
    cases: Sequence[CaseRow] = ()

    def mean(self, task: str, system: str, metric: str) -> float | None:
        """A figure in [0, 1], or a number of a cost; None where there is none."""
        row = self.by_place.get((task, system))
        figure = row.means.get(metric) if row is not None else None
        return figure.value if figure is not None else None


def tabulate_paper(paper: PaperConfig, records: Sequence[PaperRecord]) -> PaperResults:
    """Build all figures. Raises ValueError for two records of one system on one question of a task."""
    cells: dict[tuple[str, str], dict[str, PaperRecord]] = {}
    for record in records:
        by_question = cells.setdefault((record.task, record.system), {})
        if record.question_id in by_question:
            raise ValueError(f"{record.task}, {record.system}: the question {record.question_id!r} has two records")
        by_question[record.question_id] = record
    rows = [
        _row(task, system, paper.tasks[task].kind == "choice", by_question, cells.get((task, paper.alone)))
        for (task, system), by_question in cells.items()
    ]
    return PaperResults(
        rows,
        _comparisons(paper, cells),
        _shifts(paper, cells),
        {(row.task, row.system): row for row in rows},
        case_rows(paper, cells),
    )


def values_of(record: PaperRecord) -> dict[str, float | None]:
    """All figures of one record by metric."""
    values = dict(record.scores)
    for judge, verdict in record.judged.items():
        if judge == "utility":
            values[DUR] = verdict["value"]
            values |= {
                label: None if verdict["value"] is None else float(verdict["label"] == label)
                for label in LABELS.values()
            }
        else:
            values[judge] = verdict["value"]
            values |= {f"{judge}:{source}": value for source, value in verdict["said"].get(BY_SOURCE, {}).items()}
    return values


def _row(
    task: str,
    system: str,
    choice: bool,
    by_question: Mapping[str, PaperRecord],
    alone: Mapping[str, PaperRecord] | None,
) -> PaperRow:
    records = list(by_question.values())
    answered = [record for record in records if record.answer is not None]
    values = [values_of(record) for record in records]
    means = {
        name: _mean([figures.get(name) for figures in values])
        for name in dict.fromkeys(name for figures in values for name in figures)
    }
    means |= {name: _mean([record.spent[name] for record in records if not record.reason]) for name in COSTS}
    means |= _by_label(by_question, alone or {})
    judges = dict.fromkeys(name for record in records for name in record.judged)
    return PaperRow(
        task=task,
        system=system,
        questions=len(records),
        answered=len(answered),
        reasons=dict(Counter(record.reason for record in records if record.reason)),
        cut=sum(record.cut for record in answered),
        no_choice=sum(not record.chosen for record in answered) if choice else 0,
        off_format=_count_verdicts(records, judges, lambda verdict: bool(verdict["failure"])),
        unjudged=_count_verdicts(records, judges, lambda verdict: bool(verdict["missing"])),
        means=means,
        prompts=tuple(dict.fromkeys(version for record in records for version in record.prompts)),
    )


def _count_verdicts(
    records: Sequence[PaperRecord], judges: Mapping[str, None], condition: Callable[[Mapping[str, Any]], bool]
) -> dict[str, int]:
    return {name: sum(condition(record.judged[name]) for record in records if name in record.judged) for name in judges}


def _by_label(by_question: Mapping[str, PaperRecord], alone: Mapping[str, PaperRecord]) -> dict[str, Mean]:
    """Accuracy within each label of the utility judge, and the gain over no retrieval on the same questions."""
    means: dict[str, Mean] = {}
    if not any("utility" in record.judged for record in by_question.values()):
        return means
    for label in LABELS.values():
        labelled = [
            record
            for record in by_question.values()
            if (verdict := record.judged.get("utility")) and verdict["label"] == label
        ]
        means[f"accuracy:{label}"] = _mean([record.scores["accuracy"] for record in labelled])
        pairs = [
            (record.scores["accuracy"], alone[record.question_id].scores["accuracy"])
            for record in labelled
            if record.question_id in alone
        ]
        means[f"gain:{label}"] = _mean([x - y for x, y in pairs if x is not None and y is not None])
    return means


def _comparisons(
    paper: PaperConfig, cells: Mapping[tuple[str, str], Mapping[str, PaperRecord]]
) -> list[PaperComparison]:
    tests: list[tuple[str, str, str, ExactComparison]] = []
    for (task, system), by_question in cells.items():
        base = cells.get((task, paper.baseline))
        if base is None or system == paper.baseline or "[" in system:
            continue
        ours = {question_id: values_of(record) for question_id, record in by_question.items()}
        baseline = {question_id: values_of(record) for question_id, record in base.items()}
        for metric in dict.fromkeys(name for values in ours.values() for name in values):
            if metric in LABELS.values():
                continue
            a = [values.get(metric) for values in ours.values()]
            b = [baseline[question_id].get(metric) if question_id in baseline else None for question_id in ours]
            if any(x is not None and y is not None for x, y in zip(a, b, strict=True)):
                better: Alternative = "less" if metric in LOWER_IS_BETTER else "greater"
                tests.append((task, system, metric, compare_exactly(a, b, better)))
    adjusted = holm([test.p for *_, test in tests])
    return [
        PaperComparison(task, system, paper.baseline, metric, test, p)
        for (task, system, metric, test), p in zip(tests, adjusted, strict=True)
    ]


def _shifts(paper: PaperConfig, cells: Mapping[tuple[str, str], Mapping[str, PaperRecord]]) -> list[ShiftRow]:
    rows = []
    for task in paper.tasks:
        for first, second in paper.shifts:
            a, b = cells.get((task, first)), cells.get((task, second))
            if a is None or b is None:
                continue
            rankings = [{key: _ranking(record) for key, record in side.items()} for side in (a, b)]
            right = [
                key
                for key, record in a.items()
                if record.scores.get("accuracy") == 1 and key in b and b[key].scores.get("accuracy") == 0
            ]
            k = paper.shift_k
            rows.append(ShiftRow(task, first, second, "all", retrieval_shift(rankings[0], rankings[1], k)))
            rows.append(ShiftRow(task, first, second, "right", retrieval_shift(rankings[0], rankings[1], k, right)))
    return rows


def _ranking(record: PaperRecord) -> Sequence[str] | None:
    return record.documents if record.searched and not record.failure else None


def _mean(values: Sequence[float | int | None]) -> Mean:
    present = [value for value in values if value is not None]
    return Mean(math.fsum(present) / len(present) if present else None, len(present))
