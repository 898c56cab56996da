"""All scores and all tested differences of an evaluation as CSV, for programs."""

from collections.abc import Iterator, Mapping, Sequence
from csv import DictWriter
from dataclasses import asdict
from io import StringIO

from .table import Table

MEASURED = {"cut": "cut at limit", "format_ok": "in format", "repeats": "repeats the question"}
"""Shares of answers that tables have beside the metrics: field of a score → name."""
_PLACE = ("dataset", "part", "environment", "system", "turn", "label", "metric")
_SCORE = ("mean", "low", "high", "n", "of", "marks")
_TEST = ("n", "left_out", "mean_a", "mean_b", "difference", "low", "high", "p", "p_holm", "wins", "ties", "losses")


def scores_csv(tables: Sequence[Table]) -> str:
    """One line per system, turn, dataset, environment and metric, with its 95% interval, also for shares of answers.

    The dataset of an average over datasets is `mean`.
    """
    return _csv((*_PLACE, *_SCORE), (line for table in tables for line in _score_lines(table)))


def _score_lines(table: Table) -> Iterator[dict[str, object]]:
    for row in table.rows:
        for environment, score in row.scores.items():
            if score is None:
                continue
            keys = {**_place(table), **row.arm._asdict(), "label": row.label, "environment": environment}
            main = next(iter(score.metrics))
            for metric, mean in score.metrics.items():
                low, high = score.intervals.get(metric, (None, None))
                marks = score.marks if metric == main else ""
                yield {**keys, "metric": metric, "mean": mean, "low": low, "high": high, "marks": marks} | {
                    "n": score.n, "of": score.of,
                }  # fmt: skip
            shares = {name: getattr(score, field) for field, name in MEASURED.items()}
            shares[f"{main} with fall-back"] = score.with_fall_back
            for name, share in shares.items():
                if share is not None:
                    yield {**keys, "metric": name, "mean": share, "n": score.n, "of": score.of}


def comparisons_csv(tables: Sequence[Table], metric: str) -> str:
    """One line per tested difference: its interval, p, p after Holm's correction, wins, ties and losses."""
    head = (*_PLACE, "against", "against_turn", *_TEST, "effect_size", "significant")
    return _csv(
        head,
        (
            {
                **_place(table), **row.arm._asdict(), **asdict(row.test), "environment": row.environment,
                "label": next((item.label for item in table.rows if item.arm == row.arm), ""), "metric": metric,
                "against": row.baseline.system, "against_turn": row.baseline.turn,
                "p_holm": row.p_holm, "significant": row.significant,
            }
            for table in tables
            for row in table.comparisons
        ),
    )  # fmt: skip


def _place(table: Table) -> dict[str, str]:
    return {"dataset": "mean" if table.average and not table.dataset else table.dataset, "part": table.part}


def _csv(head: Sequence[str], lines: Iterator[Mapping[str, object]]) -> str:
    file = StringIO()
    writer = DictWriter(file, head, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()
