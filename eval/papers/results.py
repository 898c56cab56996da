"""From records to results: means and missing counts, gains by label, shifts, sweeps, tests, costs.

A value of None is left out of every mean and pair and counted. Tests are one-sided in the direction that is better
(eval/statistics.py), every system against the baseline, by Holm adjusted over all of them together.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ...configs.paper import POOLED, PaperConfig
from ...methods.misknow import DRAFT_KEPT
from ..statistics import Alternative, ExactComparison, compare_exactly, holm
from ..table import Adjusted
from ..tasks.judge_prompts import LABELS, MIMIC_LABELS
from ..tasks.judges import BY_SOURCE, JudgeScore
from ..tasks.records import by_row
from ..tasks.shift import Shift, retrieval_shift
from .records import PaperRecord

COSTS = ("calls", "prompt_tokens", "tokens", "searches", "reader_prompt_tokens", "reader_tokens")
CUT_AT_LIMIT = "cut_at_limit"
"""The share of questions for which the method or the reader wrote a text that was cut at its token limit."""
LOWER_IS_BETTER = ("declined",)
ALL = "all"
"""`accuracy:all`: a metric over all questions, where one without a value counts 0."""
SHIFT_K = 5
"""Top documents of two rankings that a retrieval shift compares (the CHR paper, section 4.4)."""
DUR = "dur"
"""The decision-useful rate: contexts that entail the right answer or are useful for it (the HCQR paper, 4.6)."""


@dataclass(frozen=True, slots=True)
class Mean:
    """One figure."""

    value: float | None
    """None where there is nothing to average."""
    n: int
    """Values that it is the mean of."""


NOTHING = Mean(None, 0)
"""The mean of nothing."""


def mean_of(values: Iterable[float | None]) -> Mean:
    """The mean of the values that are not missing."""
    present = [value for value in values if value is not None]
    return Mean(fmean(present) if present else None, len(present))


Cells = Mapping[tuple[str, str], Mapping[str, PaperRecord]]
"""Records by task and system, then by question."""


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
    draft_kept: int
    """Questions that a method answered with its draft, because it could not read what its judge wrote."""
    truncated: int
    """Texts of searches that were longer than a query of the retriever may be, and were read only in part."""
    means: Mapping[str, Mean]


@dataclass(frozen=True, slots=True)
class PaperComparison(Adjusted):
    """One system against the baseline on one metric of one task."""

    task: str
    system: str
    baseline: str
    metric: str
    test: ExactComparison
    p_holm: float


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

    def figure(self, task: str, system: str, metric: str) -> Mean:
        """One figure, a share or a cost; a mean of nothing where there is none."""
        rows = (row for row in self.rows if (row.task, row.system) == (task, system))
        return next((row.means[metric] for row in rows if metric in row.means), NOTHING)

    def pooled(self, system: str, metric: str) -> Mean:
        """One figure over the questions of all tasks together."""
        figures = [row.means[metric] for row in self.rows if row.system == system and metric in row.means]
        n = sum(figure.n for figure in figures)
        return Mean(sum((figure.value or 0.0) * figure.n for figure in figures) / n, n) if n else NOTHING


def tabulate_paper(paper: PaperConfig, records: Sequence[PaperRecord]) -> PaperResults:
    """Build all figures. Raises ValueError for two records of one system on one question of a task."""
    cells = by_row(records, lambda record: (record.task, record.system))
    rows = [
        _row(task, system, paper.tasks[task].kind == "choice", by_question, cells.get((task, paper.alone), {}))
        for (task, system), by_question in cells.items()
    ]
    return PaperResults(rows, _comparisons(paper, cells), _shifts(paper, cells))


def values_of(record: PaperRecord) -> dict[str, float | None]:
    """All figures of one record by metric."""
    values = dict(record.scores)
    for judge, verdict in record.judged.items():
        value = verdict.value
        if judge == "utility":
            labels = {label: None if value is None else float(verdict.label == label) for label in LABELS.values()}
            values |= {DUR: value, **labels}
        else:
            values[judge] = value
            values |= {f"{judge}:{source}": share for source, share in verdict.said.get(BY_SOURCE, {}).items()}
    return values


def _row(
    task: str, system: str, choice: bool, by_question: Mapping[str, PaperRecord], alone: Mapping[str, PaperRecord]
) -> PaperRow:
    records = list(by_question.values())
    answered = [record for record in records if record.answer is not None]
    values = [values_of(record) for record in records]
    metrics = dict.fromkeys(name for figures in values for name in figures)
    means = {name: mean_of(figures.get(name) for figures in values) for name in metrics}
    scored = dict.fromkeys(name for record in records for name in record.scores)
    means |= {f"{name}:{ALL}": mean_of(record.scores.get(name) or 0.0 for record in records) for name in scored}
    means |= {name: mean_of(record.spent[name] for record in records if not record.reason) for name in COSTS}
    means[CUT_AT_LIMIT] = mean_of(record.cut_at_limit for record in records)
    verdicts: dict[str, list[JudgeScore]] = {}
    for record in records:
        for judge, verdict in record.judged.items():
            verdicts.setdefault(judge, []).append(verdict)
    if "utility" in verdicts:
        means |= _by_label(by_question, alone)
    if "mimic" in verdicts:
        means |= {
            f"accuracy:{label}": mean_of(_labelled(by_question, "mimic", label).values())
            for label in MIMIC_LABELS.values()
        }
    return PaperRow(
        task=task,
        system=system,
        questions=len(records),
        answered=len(answered),
        reasons=dict(Counter(record.reason for record in records if record.reason)),
        cut=sum(record.cut for record in answered),
        no_choice=sum(not record.chosen for record in answered) if choice else 0,
        off_format={judge: sum(bool(verdict.failure) for verdict in group) for judge, group in verdicts.items()},
        unjudged={judge: sum(verdict.missing for verdict in group) for judge, group in verdicts.items()},
        draft_kept=sum(DRAFT_KEPT in record.notes for record in records),
        truncated=sum(record.spent.get("truncated") or 0 for record in records),
        means=means,
    )


def _by_label(by_question: Mapping[str, PaperRecord], alone: Mapping[str, PaperRecord]) -> dict[str, Mean]:
    """Accuracy within each label of the utility judge, and the gain over no retrieval on the same questions."""
    means: dict[str, Mean] = {}
    for label in LABELS.values():
        labelled = _labelled(by_question, "utility", label)
        pairs = [(x, alone[question].scores["accuracy"]) for question, x in labelled.items() if question in alone]
        means[f"accuracy:{label}"] = mean_of(labelled.values())
        means[f"gain:{label}"] = mean_of(x - y for x, y in pairs if x is not None and y is not None)
    return means


def _labelled(by_question: Mapping[str, PaperRecord], judge: str, label: str) -> dict[str, float | None]:
    """Accuracy of each question whose verdict has a label."""
    return {
        question: record.scores["accuracy"]
        for question, record in by_question.items()
        if judge in record.judged and record.judged[judge].label == label
    }


def _comparisons(paper: PaperConfig, cells: Cells) -> list[PaperComparison]:
    tests: list[tuple[tuple[str, str, str, str], ExactComparison]] = []
    for (task, system), by_question in cells.items():
        baseline = (paper.systems[system].baseline if system in paper.systems else "") or paper.baseline
        base = cells.get((task, baseline))
        if base is None or system == baseline or "[" in system:
            continue
        ours = [values_of(record) for record in by_question.values()]
        theirs = [values_of(base[question]) if question in base else {} for question in by_question]
        for metric in dict.fromkeys(name for values in ours for name in values if name not in LABELS.values()):
            a, b = ([values.get(metric) for values in side] for side in (ours, theirs))
            better: Alternative = "less" if metric in LOWER_IS_BETTER else "greater"
            if test := compare_exactly(a, b, better):
                tests.append(((task, system, baseline, metric), test))
    adjusted = holm([test.p for _, test in tests])
    return [PaperComparison(*names, test, p) for (names, test), p in zip(tests, adjusted, strict=True)]


def _rankings(records: Mapping[str, PaperRecord]) -> dict[str, Sequence[str] | None]:
    """Document ids by question; None for a missing ranking."""
    return {
        key: record.documents if record.searched and not record.failure else None for key, record in records.items()
    }


def _shifts(paper: PaperConfig, cells: Cells) -> list[ShiftRow]:
    """For each pair of systems every task, and the questions of all tasks together where there are several."""
    rows: list[ShiftRow] = []
    for first, second in paper.shifts:
        shared = [task for task in paper.tasks if (task, first) in cells and (task, second) in cells]
        groups = {task: [task] for task in shared} | ({POOLED: shared} if len(shared) > 1 else {})
        for name, tasks in groups.items():
            a, b = (
                {f"{task}/{question}": record for task in tasks for question, record in cells[task, system].items()}
                for system in (first, second)
            )
            right = [
                key
                for key, record in a.items()
                if record.scores.get("accuracy") == 1 and key in b and b[key].scores.get("accuracy") == 0
            ]
            for label, only in (("all", None), ("right", right)):
                shift = retrieval_shift(_rankings(a), _rankings(b), SHIFT_K, only)
                rows.append(ShiftRow(name, first, second, label, shift))
    return rows
