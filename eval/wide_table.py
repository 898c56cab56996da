"""One table of an evaluation: systems × datasets, by environment, with the mean over datasets, on the first metric.

The cells are those of the tables by dataset (eval/tabulate.py); nothing is computed or tested here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..data.sampling import QuestionSample
from .table import ALPHA, Legend, Table, decimal, listed, whole_datasets

MEAN = "mean"


@dataclass(frozen=True, slots=True)
class WideCell:
    """One figure."""

    value: str
    marks: str = ""
    best: bool = False


@dataclass(frozen=True, slots=True)
class WideTable:
    """The table as text."""

    head: list[str]
    """Names of the columns after the first: datasets, environments, or both, joined by ` · `."""
    rows: list[tuple[str, list[WideCell]]]
    caption: str
    """One sentence."""


def wide_table(
    tables: Sequence[Table],
    metric: str,
    split: str,
    legend: Legend,
    samples: Mapping[str, QuestionSample] | None = None,
) -> WideTable:
    """The wide table of `tables`: one per dataset, and their average if there are several; parts are left out.

    `samples`, by dataset, are those whose questions are a random sample; the caption says so. Raises ValueError for no
    table.
    """
    columns = whole_datasets(tables)
    if not columns:
        raise ValueError("there is no table of a dataset; expected at least one")
    last = columns[-1]
    environments = last.environments
    pairs = [(name, table) for name in environments for table in columns if name in table.environments]
    head = [table.dataset or MEAN for _, table in pairs]
    if len(environments) > 1:
        head = [
            f"{dataset} · {name}" if len(columns) > 1 else name for dataset, (name, _) in zip(head, pairs, strict=True)
        ]
    rows = []
    for row in last.rows:
        cells = []
        for name, table in pairs:
            score = table.score(row.arm, name)
            value = decimal(table.mean(row.arm, name, metric))
            cells.append(WideCell(value, score.marks, score.best) if score is not None else WideCell(value))
        rows.append((row.label, cells))
    marks = {mark for _, cells in rows for cell in cells for mark in cell.marks}
    datasets = [table for table in columns if table.dataset or not table.average]
    used = [entry for entry in legend if marks & {*entry[:2]}]
    return WideTable(head, rows, _caption(metric, split, datasets, environments, used, samples or {}))


def _caption(
    metric: str,
    split: str,
    datasets: Sequence[Table],
    environments: Sequence[str],
    legend: Legend,
    samples: Mapping[str, QuestionSample],
) -> str:
    names = listed([table.dataset for table in datasets if table.dataset] or ["the dataset"], "and")
    drawn = [(table, samples[table.dataset]) for table in datasets if table.dataset in samples]
    if len(datasets) > 1:
        sizes = "; ".join(f"{table.dataset}: {sample}" for table, sample in drawn)
        scope = f"{len(datasets)} datasets" + (f" ({sizes})" if sizes else "")
    else:
        size = f"{datasets[0].questions:,} questions" + "".join(f": {sample}" for _, sample in drawn)
        scope = f"{names} ({size})"
    searched = f" with {environments[0]}" if len(environments) == 1 and len(datasets) > 1 else ""
    text = f"{metric_label(metric)} on the {split} split of {scope}{searched}; bold: the best of a column"
    if legend:
        better = listed([mark for mark, _, _ in legend], "and")
        worse = listed([mark for _, mark, _ in legend], "and")
        than = listed([phrase for *_, phrase in legend], "and")
        text += (
            f"; {better}: significantly better than {than}, {worse}: significantly worse (paired permutation tests, "
            f"Holm-corrected, p < {ALPHA})"
        )
    return f"{text}."


def metric_label(name: str) -> str:
    """The metric as papers write it: nDCG@10, MRR."""
    metric, at, k = name.partition("@")
    labels = {"ndcg": "nDCG", "recall": "Recall", "mrr": "MRR", "map": "MAP", "p": "P", "r-precision": "R-precision"}
    return labels.get(metric, metric.capitalize()) + at + k
