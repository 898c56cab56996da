"""The files of an evaluation: results.json, and its tables as Markdown, LaTeX, CSV and one HTML page.

Every table is a DataFrame of text whose first column names the rows; `**` marks what is bold.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ..markdown_tables import markdown_table
from ..storage import write_text
from .records import RAW
from .results import RESULTS, EvalResults, write_json
from .table import ALPHA, MEAN, Arm, Score, decimal, listed, p_cell, percent, signed
from .tasks.metrics import TITLES

SHARES = {"cut": "cut at limit", "format_ok": "in format", "repeats": "repeats the question"}
"""Shares of answers that tables have beside the metrics: field of a score → name."""
COSTS_TITLE = "What is written, and what it costs"
WRITTEN = (
    "Cut at limit: the answer ended at its token limit. In format: the rewriter could read it. Repeats the question: "
    "all rewrites of an answer have its words. Without hits: the native query found nothing, or was refused. With "
    "fall-back: the first metric if a question whose answer has the wrong format were searched as it stands. Costs "
    "are means per question, earlier turns included; tokens read are those of the last prompt, which holds the turns "
    "before it; seconds are a batch's, shared out equally."
)
EVERY_METRIC = "Means over the questions with a score, with 95% bootstrap intervals; the marks are of the first metric."
TRANSFER = (
    "Rows: policies and the environment that they were trained in; columns: the environment in which they are asked. "
    "In brackets: the difference from the raw question there. Bold: the environment of the training."
)
_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "<": "$<$", ">": "$>$", "|": r"\textbar{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "–": "--", "−": "$-$", "×": r"$\times$", "·": r"$\cdot$", "†": r"$^{\dagger}$", "‡": r"$^{\ddagger}$",
    "↓": r"$^{\downarrow}$", "⇓": r"$^{\Downarrow}$", "★": r"$^{\star}$", "☆": r"$^{\circ}$",
})  # fmt: skip
ENDS = ("low", "high")
_NARROW = 6
"""With more columns than this, a LaTeX table spans both columns of a page."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A finished figure."""

    title: str
    caption: str
    image: str
    """An SVG as a data: URL."""


def write_results(folder: Path, results: EvalResults, drawings: Sequence[Drawing] = ()) -> None:
    """Write results.json, tables.md, tables.tex, scores.csv, comparisons.csv and report.html. Raises StorageError."""
    write_json(folder / RESULTS, results)
    write_text(folder / "tables.md", markdown(results))
    write_text(folder / "tables.tex", latex(results))
    write_text(folder / "scores.csv", scores_frame(results).to_csv(index=False))
    write_text(folder / "comparisons.csv", comparisons_frame(results).to_csv(index=False))
    write_text(folder / "report.html", html(results.name, [results], drawings))


def wide(results: EvalResults) -> pd.DataFrame:
    """Systems × datasets and environments, on the first metric, with the mean over datasets."""
    scores = [score for score in results.scores if not score.part]

    def column(environment: str, dataset: str) -> str:
        if len(results.environments) == 1:
            return dataset
        return f"{dataset} · {environment}" if len(results.datasets) > 1 else environment

    cells = pd.DataFrame(
        {
            "system": score.label,
            "column": column(score.environment, score.dataset),
            "cell": (f"**{decimal(score.mean)}**" if score.best else decimal(score.mean)) + score.marks,
        }
        for score in scores
    )
    columns = [column(environment, dataset) for environment in results.environments for dataset in results.datasets]
    columns = [name for name in columns if name in set(cells["column"])]
    table = cells.pivot(index="system", columns="column", values="cell").fillna("–")
    return table.reindex(index=cells["system"].unique(), columns=columns).reset_index()


def caption(results: EvalResults) -> str:
    """The wide table in one sentence."""
    datasets = [name for name in results.datasets if name != MEAN]
    sampled = "; ".join(f"{name}: {sample}" for name, sample in results.samples.items())
    scope = f"{len(datasets)} datasets" if len(datasets) > 1 else datasets[0]
    scope += f" with {results.environments[0]}" if len(results.environments) == 1 else ""
    scope += f" ({sampled})" if sampled else ""
    text = f"{metric_label(results.metrics[0])} on the {results.split} split of {scope}; bold: the best of a column"
    marks = {mark for score in results.scores if not score.part for mark in score.marks}
    if legend := [entry for entry in results.legend if marks & {*entry[:2]}]:
        better, worse, than = (listed(list(names), "and") for names in zip(*legend, strict=True))
        text += f"; {better}: significantly better than {than}, {worse}: significantly worse"
        text += f" (two-sided paired permutation tests, Holm-corrected over all comparisons of this table, p < {ALPHA})"
    return f"{text}."


def written_table(results: EvalResults) -> pd.DataFrame:
    """What is written and what it costs, on the mean of the datasets: a row for each system, and environment."""
    native = any(score.no_hits is not None for score in results.scores)
    shares = {**SHARES, "no_hits": "without hits"} if native else SHARES
    return pd.DataFrame(
        {
            **_named(results, score),
            "n": f"{score.n:,}",
            **{name: percent(getattr(score, share)) for share, name in shares.items()},
            "with fall-back": decimal(score.with_fall_back),
            "LLM calls": "–" if score.calls is None else f"{score.calls:.4g}",
            "tokens read": decimal(score.prompt_tokens, 0),
            "tokens written": decimal(score.tokens, 1),
            "retrievals": decimal(score.searches, 2),
            "seconds": decimal(score.seconds),
        }
        for score in results.scores
        if score.dataset == results.datasets[-1] and not score.part
    )


def transfer(results: EvalResults) -> pd.DataFrame:
    """How a policy that was trained with one retriever performs with the others (Yuan et al., RQ1.2): the first metric
    at its last turn, and its gain over the raw question. Empty unless there are two different training environments."""
    if len({environment for name, environment in results.trained_in.items() if results.last(name)}) < 2:
        return pd.DataFrame()
    rows = []
    for system, trained_in in results.trained_in.items():
        row, arm = {"policy (trained in)": f"{system} ({trained_in})"}, results.last(system)
        for environment in results.environments if arm is not None else ():
            score, raw = (results.score(side, environment=environment) for side in (arm, Arm(RAW, 0)) if side)
            text = decimal(score.mean if score else None)
            if score and raw and score.mean is not None and raw.mean is not None:
                text += f" ({signed(score.mean - raw.mean)})"
            row[environment] = f"**{text}**" if environment in trained_in.split("+") else text
        rows.append(row)
    return pd.DataFrame(rows).fillna("–")


def metrics_table(results: EvalResults, dataset: str, part: str = "") -> pd.DataFrame:
    """Every metric of one dataset or part with its interval: a row for each system, and environment."""
    rows = []
    for score in results.scores:
        if (score.dataset, score.part) == (dataset, part):
            row = _named(results, score)
            for metric, mean in score.metrics.items():
                low, high = score.intervals.get(metric, (0.0, 0.0))
                marks = score.marks if metric == results.metrics[0] else ""
                row[metric_label(metric)] = "–" if mean is None else f"{mean:.3f}{marks} ({low:.3f} to {high:.3f})"
            rows.append({**row, "n": f"{score.n:,}"})
    return pd.DataFrame(rows)


def _named(results: EvalResults, score: Score) -> dict[str, str]:
    environment = {"environment": score.environment} if len(results.environments) > 1 else {}
    return {"system": score.label, **environment}


def tests_table(results: EvalResults, dataset: str, part: str) -> pd.DataFrame:
    """The tested differences of one dataset or part."""
    return pd.DataFrame(
        {
            "compared": f"{results.label(row.arm)} against {results.label(row.baseline)}",
            "environment": row.environment or "–",
            "difference": signed(row.difference) + "*" * row.significant,
            "95% interval": f"{signed(row.low)} to {signed(row.high)}",
            "p": p_cell(row.p),
            "p (Holm)": p_cell(row.p_holm),
            "Cohen's d": "–" if row.effect_size is None else signed(row.effect_size),
            "won / tied / lost": " / ".join(f"{round(count, 1):g}" for count in (row.wins, row.ties, row.losses)),
            "n": str(row.n),
        }
        for row in results.comparisons
        if (row.dataset, row.part) == (dataset, part)
    )


def tables(results: EvalResults) -> list[tuple[str, str, pd.DataFrame]]:
    """Title, caption and content of the tables of the page; none without a score."""
    if not results.scores:
        return []
    sections = [("Results", caption(results), wide(results)), (COSTS_TITLE, WRITTEN, written_table(results))]
    matrix = transfer(results)
    return [*sections, ("Transfer", TRANSFER, matrix)] if len(matrix) else sections


def printed_tables(results: EvalResults) -> list[tuple[str, str, pd.DataFrame]]:
    """The tables of Markdown and LaTeX: `tables`, and every metric, which the page has for every dataset."""
    sections = tables(results)
    every = metrics_table(results, results.datasets[-1]) if sections else None
    return [*sections, ("Every metric", EVERY_METRIC, every)] if every is not None else sections


def markdown(results: EvalResults) -> str:
    """The tables and all notes, for a README."""
    lines = [f"# {results.name}", "", *([results.headline, ""] if results.headline else [])]
    for title, text, table in printed_tables(results):
        rows = table.to_numpy().tolist()
        lines += [f"## {title}", "", *markdown_table(list(table.columns), rows), "", text, ""]
    texts = [*(note.text for note in results.notes), results.family, *(f"{k}: {v}" for k, v in results.facts.items())]
    return "\n".join([*lines, *(f"- {' '.join(text.split())}" for text in texts if text)]) + "\n"


def latex(results: EvalResults) -> str:
    """The tables as floats; "" without one."""
    floats = [
        _float(f"{results.name}-{title.split()[0].lower()}", f"{title}. {text}", table)
        for title, text, table in printed_tables(results)
    ]
    return "\n".join([r"% needs \usepackage{booktabs,graphicx}", *floats]) if floats else ""


def html(
    title: str, evaluations: Sequence[EvalResults], drawings: Sequence[Drawing] = (), runs: pd.DataFrame | None = None
) -> str:
    """One self-contained page that needs neither server nor network: evaluations, and curves of training runs."""
    pages = [
        {
            "results": results,
            "tables": tables(results),
            "details": [
                (dataset, part, metrics_table(results, dataset, part), tests_table(results, dataset, part))
                for dataset, part in dict.fromkeys((score.dataset, score.part) for score in results.scores)
            ],
        }
        for results in evaluations
    ]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # text from questions, documents and models is never markup
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(signed=signed, decimal=decimal, bold=_bold)
    template = environment.get_template("page.html.j2")
    return template.render(title=title, pages=pages, drawings=drawings, runs=runs)


def scores_frame(results: EvalResults) -> pd.DataFrame:
    """One line per system, turn, dataset, part and environment: every metric, its 95% interval as METRIC low and METRIC
    high, shares, costs and marks."""
    rows = []
    for score in results.scores:
        values = asdict(score)
        metrics, intervals = values.pop("metrics"), values.pop("intervals")
        ends = {f"{name} {end}": value for name in intervals for end, value in zip(ENDS, intervals[name], strict=True)}
        rows.append({**values, **metrics, **ends})
    return pd.DataFrame(rows)


def comparisons_frame(results: EvalResults) -> pd.DataFrame:
    """One line per tested difference: its interval, p, p after Holm's correction, wins, ties and losses."""
    return pd.DataFrame(
        {**asdict(row), "label": results.label(row.arm), "significant": row.significant} for row in results.comparisons
    )


def metric_label(name: str) -> str:
    """The metric as papers write it: nDCG@10, MRR, EM."""
    metric, at, k = name.partition("@")
    labels = {"ndcg": "nDCG", "recall": "Recall", "mrr": "MRR", "map": "MAP", "p": "P", "r-precision": "R-precision"}
    labels |= TITLES
    return labels.get(metric, metric.capitalize()) + at + k


def _float(label: str, text: str, table: pd.DataFrame) -> str:
    """A table as one float, scaled down to the width of a line, and never up."""
    columns = "l" + "r" * (len(table.columns) - 1)
    labels = {"caption": _tex(text), "label": f"tab:{label}"}
    tex: str = table.map(_tex).rename(columns=_tex).to_latex(index=False, column_format=columns, **labels)
    box = r"\centering\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
    tex = tex.replace(r"\begin{tabular}", f"{box}\n\\begin{{tabular}}").replace(r"\end{tabular}", r"\end{tabular}}")
    return tex.replace("{table}", "{table*}") if len(table.columns) > _NARROW + 1 else tex


def _tex(text: str) -> str:
    return re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", text.translate(_LATEX))


def _bold(text: str) -> Markup:
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", str(escape(text))))
