"""Render an evaluation as Markdown, LaTeX, HTML and CSV: one wide table, the same in each form, and all scores."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from ..markdown_tables import markdown_table
from ..storage import write_text
from .behaviour import percent
from .csv_tables import MEASURED, comparisons_csv, scores_csv
from .report.examples import Examples
from .report.figures import Drawing
from .report.page import render_page
from .table import MeanCosts, Table, TableScore, decimal, p_cell, signed, whole_datasets
from .transfer import Transfer
from .wide_table import WideTable

WRITTEN = (*MEASURED.values(), "with fall-back")
COSTS = ("LLM calls", "tokens read", "tokens written", "retrievals", "seconds")
WRITTEN_EXPLAINED = (
    "Cut at limit: the answer ended at its token limit. In format: the rewriter could read it. Repeats the question: "
    "all rewrites of an answer have its words. With fall-back: the first metric if a question whose answer has the "
    "wrong format were searched as it stands. Costs are means per question, earlier turns included; tokens read are "
    "those of the last prompt, which holds the turns before it; seconds are a batch's, shared out equally."
)
TRANSFER_EXPLAINED = (
    "Rows: policies and the environment that they were trained in; columns: the environment in which they are asked. "
    "In brackets: the difference from the raw question there. Bold: the environment of the training."
)
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "<": "$<$", ">": "$>$", "|": r"\textbar{}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "−": "$-$", "×": r"$\times$",
    "†": r"$^{\dagger}$", "‡": r"$^{\ddagger}$", "↓": r"$^{\downarrow}$", "⇓": r"$^{\Downarrow}$",
    "★": r"$^{\star}$", "☆": r"$^{\circ}$",
}  # fmt: skip
_PACKAGES = r"% needs \usepackage{booktabs,graphicx}"
_FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
"""Scales what follows down to the width of a line, and never up."""
_NARROW = 6
"""With more columns than this, a LaTeX table spans both columns of a page."""

Bold = Callable[[str], str]
Cells = tuple[list[str], list[list[str]]]
"""Header and rows."""


@dataclass(frozen=True, slots=True)
class Page:
    """The content of the output files."""

    title: str
    headline: str
    """The verdict in a sentence; "" without one."""
    family: str
    metrics: Sequence[str]
    tables: Sequence[Table]
    wide: WideTable | None
    """None if no system has a result."""
    transfer: Transfer | None
    notes: Sequence[str]
    """Notes on the whole evaluation, including failed cells."""
    about: Sequence[str]
    """Split, seed, licences, and how to reproduce the results."""
    drawings: Sequence[Drawing] = ()
    examples: Sequence[Examples] = ()
    facts: Sequence[tuple[str, str]] = ()
    """Where the numbers come from."""
    config: str = ""
    """All settings as YAML."""


def write_pages(folder: Path, page: Page) -> None:
    """Write tables.md, tables.tex, scores.csv, comparisons.csv and report.html."""
    write_text(folder / "tables.md", markdown(page))
    write_text(folder / "tables.tex", latex(page))
    write_text(folder / "scores.csv", scores_csv(page.tables))
    write_text(folder / "comparisons.csv", comparisons_csv(page.tables, page.metrics[0]))
    write_text(folder / "report.html", html(page))


def markdown(page: Page) -> str:
    """The wide table, what is written, and notes, for a README."""
    lines = [f"# {page.title}", "", *([page.headline, ""] if page.headline else []), *_bullets(page.notes)]
    if page.wide is not None:
        lines += [*markdown_table(*_wide(page.wide, _bold_markdown)), "", page.wide.caption, ""]
        head, rows = written_table(whole_datasets(page.tables)[-1])
        lines += ["## What is written, and what it costs", "", *markdown_table(head, rows), "", WRITTEN_EXPLAINED, ""]
    if page.transfer is not None:
        lines += [f"## Transfer: {page.transfer.title}", ""]
        lines += [*markdown_table(*_matrix(page.transfer, _bold_markdown)), "", TRANSFER_EXPLAINED, ""]
    return "\n".join([*lines, *_bullets(table_notes(page.tables)), *_bullets([page.family, *page.about])])


def latex(page: Page) -> str:
    """The tables of `markdown` as floats; "" without one."""
    if page.wide is None:
        return ""
    floats = [_float(page.title, page.wide.caption, _wide(page.wide, _bold_latex))]
    written = written_table(whole_datasets(page.tables)[-1])
    floats.append(_float(f"{page.title}-written", f"What is written, and what it costs. {WRITTEN_EXPLAINED}", written))
    if page.transfer is not None:
        caption = f"Transfer, {page.transfer.title}: {page.transfer.metric}. {TRANSFER_EXPLAINED}"
        floats.append(_float(f"{page.title}-transfer", caption, _matrix(page.transfer, _bold_latex)))
    return "\n".join([_PACKAGES, *floats])


def html(page: Page) -> str:
    """One self-contained page that needs neither server nor network."""
    tables = [
        {
            "title": table.title,
            "notes": table.notes,
            "parts": [
                ("Scores, with 95% bootstrap intervals", *_scores(table, page.metrics)),
                ("What is written, and what it costs", *written_table(table)),
                (f"Tested differences of {page.metrics[0]}", *_comparisons(table)),
            ],
        }
        for table in page.tables
    ]
    return render_page(
        "evaluation.html.j2",
        page=page,
        wide=_wide(page.wide, _bold_html) if page.wide is not None else None,
        tables=tables,
        explained=f"{page.family} {WRITTEN_EXPLAINED}",
        transfer=_matrix(page.transfer, _bold_html) if page.transfer is not None else None,
        transfer_explained=TRANSFER_EXPLAINED,
    )


def table_notes(tables: Sequence[Table]) -> list[str]:
    """The notes of all tables, with the dataset that they are about where there are several."""
    notes = [f"{table.title}: {note}" if len(tables) > 1 else note for table in tables for note in table.notes]
    return list(dict.fromkeys(notes))


def _wide(wide: WideTable, bold: Bold) -> Cells:
    rows = [
        [label, *((bold(cell.value) if cell.best else cell.value) + cell.marks for cell in cells)]
        for label, cells in wide.rows
    ]
    return ["system", *wide.head], rows


def _float(label: str, caption: str, cells: Cells) -> str:
    """A table as one float, at most as wide as its line."""
    head, rows = cells
    spans = len(head) > _NARROW + 1
    environment = "table*" if spans else "table"
    lines = [
        rf"\begin{{{environment}}}",
        r"\centering",
        rf"\caption{{{_tex(caption)}}}",
        rf"\label{{tab:{label}}}",
        *([r"\small"] if spans else []),
        _FIT,
        rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
        r"\toprule",
        " & ".join(map(_tex, head)) + r" \\",
        r"\midrule",
        *(" & ".join(map(_tex, row)) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}}",
        rf"\end{{{environment}}}",
        "",
    ]
    return "\n".join(lines)


def _scores(table: Table, metrics: Sequence[str]) -> Cells:
    """Every metric in every environment with its interval; the marks are of the first one."""

    def cell(score: TableScore | None, metric: str) -> str:
        if score is None or score.metrics[metric] is None:
            return "–"
        low, high = score.intervals[metric]
        marks = score.marks if metric == metrics[0] else ""
        return f"{decimal(score.metrics[metric])}{marks} ({low:.3f} to {high:.3f})"

    columns = [(metric, name) for metric in metrics for name in table.environments]
    rows = [[row.label, *(cell(row.scores[name], metric) for metric, name in columns)] for row in table.rows]
    return ["system", *(f"{metric} {name}".rstrip() for metric, name in columns)], rows


def written_table(table: Table) -> Cells:
    """The shares of a model's answers, by environment, and the costs of every row."""
    several = len(table.environments) > 1
    head = [f"{column} {name}" if several else column for name in table.environments for column in WRITTEN]
    rows = [
        [row.label, *(cell for name in table.environments for cell in _written(row.scores[name])), *_costs(row.costs)]
        for row in table.rows
    ]
    return ["system", *head, *COSTS], rows


def _written(score: TableScore | None) -> list[str]:
    if score is None:
        return ["–"] * len(WRITTEN)
    return [*(percent(getattr(score, share)) for share in MEASURED), decimal(score.with_fall_back)]


def _costs(costs: MeanCosts | None) -> list[str]:
    if costs is None:
        return ["–"] * len(COSTS)
    return [
        f"{costs.calls:.4g}",
        "–" if costs.tokens_in is None else f"{costs.tokens_in:.0f}",
        "–" if costs.tokens_out is None else f"{costs.tokens_out:.1f}",
        f"{costs.searches:.2f}",
        f"{costs.seconds:.3f}",
    ]


def _comparisons(table: Table) -> Cells:
    labels = {row.arm: row.label for row in table.rows}
    rows = [
        [
            f"{labels[row.arm]} against {labels[row.baseline]}",
            row.environment or "–",
            signed(row.test.difference) + ("*" if row.significant else ""),
            f"{signed(row.test.low)} to {signed(row.test.high)}",
            p_cell(row.test.p),
            p_cell(row.p_holm),
            "–" if row.test.effect_size is None else signed(row.test.effect_size),
            f"{row.test.wins} / {row.test.ties} / {row.test.losses}",
            str(row.test.n),
        ]
        for row in table.comparisons
    ]
    names = ["compared", "environment", "difference", "95% interval", "p", "p (Holm)", "Cohen's d"]
    return [*names, "won / tied / lost", "n"], rows


def _matrix(matrix: Transfer, bold: Bold) -> Cells:
    rows = []
    for policy in matrix.policies:
        cells = []
        for name in matrix.environments:
            value, gain = policy.values[name], policy.gains[name]
            text = "–" if value is None else f"{value:.3f}" + ("" if gain is None else f" ({signed(gain)})")
            cells.append(bold(text) if policy.at_home(name) else text)
        rows.append([f"{policy.system} ({policy.trained_in})", *cells])
    return ["policy (trained in)", *matrix.environments], rows


def _bullets(lines: Sequence[str]) -> list[str]:
    return [*(f"- {' '.join(line.split())}" for line in lines), ""] if lines else []


_BOLD_START, _BOLD_END = "\x01", "\x02"
"""Placeholders for LaTeX commands while the surrounding text is escaped."""


def _tex(text: str) -> str:
    escaped = "".join(_LATEX.get(character, character) for character in text)
    return escaped.replace(_BOLD_START, r"\textbf{").replace(_BOLD_END, "}")


def _bold_latex(text: str) -> str:
    return f"{_BOLD_START}{text}{_BOLD_END}"


def _bold_markdown(text: str) -> str:
    return f"**{text}**"


def _bold_html(text: str) -> str:
    return Markup("<strong>{}</strong>").format(text)
