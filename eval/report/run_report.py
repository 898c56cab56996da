"""One self-contained page about a run: verdict, tables, curves, examples, and the source of every number.

The page loads no script, font, image or style sheet. The template engine escapes all text from questions, documents and
models; only the drawings made here are inserted as markup.
"""

from collections.abc import Callable, Sequence

from ...configs.differences import flat
from ...configs.methods import TRAINING_FREE
from ..pages.figures import Drawing
from ..pages.templates import render_page
from ..records import HISTORY, HYDE, METRICS, RAW, TRAINED, UNTRAINED, WARM_START
from ..results import Provenance
from ..run_table import RunTable, explanation, final_comparisons, headline
from ..table import ALPHA, Arm
from ..text import Download
from .examples import Examples

_LABELS = {"ndcg@10": "nDCG@10", "recall@10": "Recall@10", "mrr@10": "MRR@10"}


def render(
    results: RunTable,
    *,
    provenance: Provenance,
    drawings: Sequence[Drawing],
    examples: Examples,
    created: str,
    downloads: Sequence[Download] = (),
) -> str:
    """The page as HTML. `created` is the time of the evaluation, as text."""
    last = {row.arm.system: row for row in results.rows}
    start, end = _axis(results)
    return render_page(
        "report.html.j2",
        headline=headline(results),
        explanation=explanation(results, provenance.split),
        mood=_mood(results),
        tiles=[
            row for row in last.values() if row.arm.system not in TRAINING_FREE or row.arm.system == results.best_free
        ],
        results=results,
        metrics=METRICS,
        metric_labels=[_LABELS[name] for name in METRICS],
        columns=_columns(results, list(last)),
        axis_start=start,
        percent_of_axis=lambda width: f"{100 * width / (end - start):.2f}",
        drawings=drawings,
        examples=examples,
        provenance=provenance,
        environment=[(name, str(value)) for name, value in flat(provenance.environment.model_dump())],
        alpha=ALPHA,
        created=created,
        downloads=downloads,
    )


def _columns(results: RunTable, systems: Sequence[str]) -> list[tuple[str, Callable[[Arm], Arm]]]:
    """The heads of the columns of differences, each with what a row is compared with."""
    columns: list[tuple[str, Callable[[Arm], Arm]]] = [("against raw", lambda arm: Arm(RAW, 0))]
    if TRAINED not in systems:
        return columns
    columns.append(("against untrained", lambda arm: Arm(UNTRAINED, arm.turn)))
    if WARM_START in systems:
        columns.append(("against warm start", lambda arm: Arm(WARM_START, arm.turn)))
    if HYDE in systems:
        columns.append(("against HyDE", lambda arm: Arm(HYDE, 1)))
    if results.best_free is not None:
        best_free = Arm(results.best_free, 0)
        columns.append(("against best training-free", lambda arm: best_free))
    if HISTORY in systems:
        columns.append(("against history and question", lambda arm: Arm(HISTORY, 0)))
    return columns


def _mood(results: RunTable) -> str:
    """`good` if every final comparison is won, `bad` if one is lost, else `mixed`; sets the verdict's colour."""
    outcomes = {row.outcome for row in final_comparisons(results)}
    if outcomes == {"better"}:
        return "good"
    return "bad" if "worse" in outcomes else "mixed"


def _axis(results: RunTable) -> tuple[float, float]:
    """Ends of the axis shared by all intervals, with a margin; (0, 1) without intervals."""
    scores = [results.score(row) for row in results.rows]
    lows = [score.low for score in scores if score.low is not None]
    highs = [score.high for score in scores if score.high is not None]
    if not lows or not highs:
        return 0.0, 1.0
    margin = 0.05 * (max(highs) - min(lows)) or 0.05
    return min(lows) - margin, max(highs) + margin
