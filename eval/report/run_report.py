"""One self-contained page about a run: verdict, tables, curves, examples, and the source of every number.

The page loads no script, font, image or style sheet. The template engine escapes all text from questions, documents and
models; only the drawings made here are inserted as markup.
"""

from collections.abc import Sequence
from typing import Any

from ...configs.differences import flat
from ...configs.methods import TRAINING_FREE
from ..behaviour import percent
from ..pages.templates import render_page
from ..provenance import Provenance
from ..records import METRICS, RAW, TRAINED, UNTRAINED
from ..run_table import RunTable, explanation, final_comparisons, headline
from ..table import ALPHA, Arm, Row, TableScore, decimal
from .curve_figures import Panels
from .examples import Examples

_LABELS = {"ndcg@10": "nDCG@10", "recall@10": "Recall@10", "mrr@10": "MRR@10"}


def render(
    results: RunTable, *, provenance: Provenance, drawings: Sequence[Panels], examples: Examples, created: str
) -> str:
    """The page as HTML. `created` is the time of the evaluation, as text."""
    return render_page(
        "report.html.j2",
        headline=headline(results),
        explanation=explanation(results, provenance.split),
        mood=_mood(results),
        tiles=_tiles(results),
        results=results,
        rows=[_row(row, results) for row in results.rows],
        metrics=[_LABELS[name] for name in METRICS],
        has_trained=any(row.arm.system == TRAINED for row in results.rows),
        drawings=drawings,
        examples=examples,
        has_gold=any(row.gold for row in examples.rows),
        provenance=provenance,
        environment=[(name, str(value)) for name, value in flat(provenance.environment)],
        alpha=ALPHA,
        created=created,
    )


def _mood(results: RunTable) -> str:
    """`good` if every final comparison is won, `bad` if one is lost, else `mixed`; sets the verdict's colour."""
    verdicts = {row.verdict for row in final_comparisons(results)}
    if verdicts == {"beats"}:
        return "good"
    return "bad" if "is worse than" in verdicts else "mixed"


def _tiles(results: RunTable) -> list[dict[str, str]]:
    """The main metric of the raw question, every system at its last turn, and the best training-free baseline."""
    last = {row.arm.system: row for row in results.rows}
    rows = [row for row in last.values() if row.arm.system not in TRAINING_FREE or row.arm.system == results.best_free]
    return [{"label": results.label(row.arm), "value": decimal(results.score(row).metrics[METRICS[0]])} for row in rows]


def _row(row: Row, results: RunTable) -> dict[str, Any]:
    """One row of the results table, with numbers as text."""
    score = results.score(row)
    return {
        "score": score,
        "costs": row.costs,
        "label": results.label(row.arm),
        "metrics": [decimal(score.metrics[name]) for name in METRICS],
        "bar": _bar(score, *_axis(results)),
        "against_raw": results.comparison(row.arm, Arm(RAW, 0)),
        "against_untrained": results.comparison(row.arm, Arm(UNTRAINED, row.arm.turn)),
        "against_best_free": results.comparison(row.arm, Arm(results.best_free or "", 0)),
        "format_ok": percent(score.format_ok),
        "repeats": percent(score.repeats),
        "cut": percent(score.cut),
        "with_fall_back": decimal(score.with_fall_back),
    }


def _bar(score: TableScore, start: float, end: float) -> dict[str, str] | None:
    """A row's interval as text and as percentages of an axis from `start` to `end`; None without a score."""
    mean = score.metrics[METRICS[0]]
    if mean is None or score.low is None or score.high is None:
        return None
    scale = 100 / (end - start)
    return {
        "text": f"{score.low:.3f} to {score.high:.3f}",
        "left": f"{scale * (score.low - start):.2f}",
        "width": f"{scale * (score.high - score.low):.2f}",
        "dot": f"{scale * (mean - start):.2f}",
    }


def _axis(results: RunTable) -> tuple[float, float]:
    """Ends of the axis shared by all intervals, with a margin; (0, 1) without intervals."""
    scores = [results.score(row) for row in results.rows]
    lows = [score.low for score in scores if score.low is not None]
    highs = [score.high for score in scores if score.high is not None]
    if not lows or not highs:
        return 0.0, 1.0
    margin = 0.05 * (max(highs) - min(lows)) or 0.05
    return min(lows) - margin, max(highs) + margin
