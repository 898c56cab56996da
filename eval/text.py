"""Render an evaluation as Markdown, LaTeX, HTML and CSV: one wide table, the same in each form, and all scores."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..markdown_tables import markdown_table
from .behaviour import percent
from .csv_tables import MEASURED, comparisons_csv, scores_csv
from .pages.figures import Drawing
from .pages.templates import render_page
from .records import write_text
from .table import Table, TableScore, decimal, signed, whole_datasets
from .transfer import Transfer
from .wide_table import COSTS, WideTable, cost_cells

MARKS_EXPLAINED = (
    "† and ‡: significantly better than the first and the second baseline; ↓ and ⇓: significantly worse. ★ and ☆: "
    "significantly better and worse than the best training-free baseline. Bold: the best of a column."
)
WRITTEN = (*MEASURED.values(), "with fall-back")
WRITTEN_EXPLAINED = (
    "Cut at limit: the answer ended at its token limit. In format: the rewriter could read it. Repeats the question: "
    "all rewrites of an answer have its words. With fall-back: the first metric if a question whose answer has the "
    "wrong format were searched as it stands."
)
COSTS_EXPLAINED = (
    "Costs are means per question, earlier turns included; tokens read are those of the last prompt, which holds the "
    "turns before it; seconds are a batch's, shared out equally."
)
LEARNING_EXPLAINED = (
    "Gain: the first metric minus that of the same model before training, with the prompt of its config. Searches and "
    "sampled tokens are all of the run, with those of validation and of a reflection model; minutes are those of "
    "steps, answers and proposals, without loading models and saving. Not counted: searches that choose training "
    "questions (train.raw_reward), and warm starts."
)
NARROW = 6
"""With more columns than this, a LaTeX table spans both columns of a page."""
_UPRIGHT = 7
"""The names of its columns are turned upright where one has more letters than this, and so is wider than a figure."""
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "<": "$<$", ">": "$>$", "|": r"\textbar{}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "−": "$-$", "×": r"$\times$",
    "†": r"$^{\dagger}$", "‡": r"$^{\ddagger}$", "↓": r"$^{\downarrow}$", "⇓": r"$^{\Downarrow}$",
    "★": r"$^{\star}$", "☆": r"$^{\circ}$",
}  # fmt: skip

Bold = Callable[[str], str]
Cells = tuple[list[str], list[list[str]]]
"""Header and rows."""


@dataclass(frozen=True, slots=True)
class Page:
    """The content of the output files."""

    title: str
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
    learning: Cells | None = None
    """What learning gained and cost; None without a trained system."""


def markdown(page: Page) -> str:
    """The wide table, what is written, and notes, for a README."""
    lines = [f"# {page.title}", "", *_bullets(page.notes)]
    if page.wide is not None:
        table = markdown_table(["", *page.wide.flat_head], _rows(page.wide, _bold_markdown))
        lines += [*table, "", page.wide.caption, ""]
    if behaviour := _written(page):
        lines += ["## What is written", "", *markdown_table(*behaviour), "", WRITTEN_EXPLAINED, ""]
    if page.learning is not None:
        lines += ["## What learning gained and cost", "", *markdown_table(*page.learning), "", LEARNING_EXPLAINED, ""]
    if page.transfer is not None:
        lines += [f"## Transfer: {page.transfer.title}", ""]
        lines += [*markdown_table(*_matrix(page.transfer, _bold_markdown)), "", TRANSFER_EXPLAINED, ""]
    return "\n".join([*lines, *_bullets(table_notes(page.tables)), *_bullets([page.family, *page.about])])


def _rows(wide: WideTable, bold: Bold) -> list[list[str]]:
    return [
        [label, *((bold(cell.value) if cell.best else cell.value) + cell.marks for cell in cells)]
        for label, cells in wide.rows
    ]


def latex(wide: WideTable, name: str) -> str:
    """The wide table as one float, at most as wide as its line; `name` is that of its label."""
    spans = len(wide.head) > NARROW
    environment = "table*" if spans else "table"
    head = list(map(_tex, wide.head))
    if spans and max(map(len, wide.head)) > _UPRIGHT:
        head = [rf"\rotatebox{{90}}{{{name}}}" for name in head]
    groups, start = [], 2
    for group, columns in wide.groups:
        groups.append(
            (rf"\multicolumn{{{columns}}}{{c}}{{{_tex(group)}}}", rf"\cmidrule(lr){{{start}-{start + columns - 1}}}")
        )
        start += columns
    padding = " &" * (len(wide.head) + 2 - start)
    lines = [" & " + " & ".join(head for head, _ in groups) + padding + r" \\", " ".join(rule for _, rule in groups)]
    content = [
        rf"\label{{tab:{name}}}",
        *([r"\small", r"\setlength{\tabcolsep}{4pt}"] if spans else []),
        *_tabular(["", *head], _rows(wide, _bold_latex), lines if groups else []),
    ]
    return "\n".join([_PACKAGES, *_float(environment, wide.caption, content)])


def written_latex(written: Cells, name: str) -> str:
    """What is written, as a float of its own; `name` is that of the float of the scores."""
    head, rows = written
    environment = "table*" if len(head) > NARROW else "table"
    content = [rf"\label{{tab:{name}-written}}", *_tabular(list(map(_tex, head)), rows)]
    return "\n".join(_float(environment, f"What is written. {WRITTEN_EXPLAINED}", content))


def transfer_latex(transfer: Transfer) -> str:
    """The matrix of policies and environments as one float."""
    caption = f"Transfer, {transfer.title}: {transfer.metric}. {TRANSFER_EXPLAINED}"
    head, rows = _matrix(transfer, _bold_latex)
    return "\n".join([_PACKAGES, *_float("table", caption, _tabular(list(map(_tex, head)), rows))])


def _float(environment: str, caption: str, content: Sequence[str]) -> list[str]:
    """The lines of a float, the last one empty."""
    begin, end = rf"\begin{{{environment}}}", rf"\end{{{environment}}}"
    return [begin, r"\centering", rf"\caption{{{_tex(caption)}}}", *content, end, ""]


_PACKAGES = r"% needs \usepackage{booktabs,graphicx}"
_FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
"""Scales what follows down to the width of a line, and never up."""


def _tabular(head: Sequence[str], rows: Sequence[Sequence[str]], above: Sequence[str] = ()) -> list[str]:
    """The rows under `head`, which is LaTeX already, fitted to the line."""
    return [
        _FIT,
        rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
        r"\toprule",
        *above,
        " & ".join(head) + r" \\",
        r"\midrule",
        *(" & ".join(map(_tex, row)) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}}",
    ]


def html(page: Page, drawing: Drawing | None) -> str:
    """One self-contained HTML page that needs neither server nor network."""
    return render_page(
        "tables.html.j2",
        page=page,
        written=_written(page),
        written_explained=WRITTEN_EXPLAINED,
        learning_explained=LEARNING_EXPLAINED,
        notes=table_notes(page.tables),
        drawing=drawing,
        downloads=downloads(page),
    )


def table_files(page: Page) -> dict[str, str]:
    """The content of tables.md, tables.tex, scores.csv and comparisons.csv."""
    written = _written(page)
    floats = [latex(page.wide, page.title)] if page.wide is not None else []
    floats += [written_latex(written, page.title)] if floats and written is not None else []
    return {
        "tables.md": markdown(page),
        "tables.tex": "\n".join(floats),
        "scores.csv": scores_csv(page.tables),
        "comparisons.csv": comparisons_csv(page.tables, page.metrics[0]),
    }


def write_tables(folder: Path, page: Page) -> None:
    """Write the files of `table_files`."""
    for name, text in table_files(page).items():
        write_text(folder / name, text)


@dataclass(frozen=True, slots=True)
class Download:
    """A file that a page holds within itself."""

    name: str
    href: str
    """A data: URL."""


def downloads(page: Page) -> list[Download]:
    """The files of `table_files`, as a page offers them."""
    kinds = {"csv": "text/csv", "tex": "application/x-tex", "md": "text/markdown"}

    def url(name: str, text: str) -> str:
        content = base64.b64encode(text.encode()).decode()
        return f"data:{kinds[name.rpartition('.')[2]]};charset=utf-8;base64,{content}"

    return [Download(name, url(name, text)) for name, text in table_files(page).items() if text]


def explanation(family: str) -> str:
    """The text above the tables of a report: explains tests, marks and costs."""
    return f"{family} {MARKS_EXPLAINED} {WRITTEN_EXPLAINED} {COSTS_EXPLAINED}"


@dataclass(frozen=True, slots=True)
class HtmlTable:
    """A table for the macro scores_table: its scores, and the cells that are the same in every format."""

    table: Table
    head: list[str]
    costs: list[list[str]]
    """By row."""
    further: list[Cells]
    """What is written, and the further metrics."""


def html_tables(tables: Sequence[Table], metrics: Sequence[str]) -> list[HtmlTable]:
    """The tables in the form that the macro scores_table expects."""
    return [
        HtmlTable(
            table,
            [metrics[0], *table.environments, *COSTS],
            [cost_cells(row.costs) for row in table.rows],
            [part for part in (_behaviour_table(table), _further_metrics(table, metrics[1:])) if part],
        )
        for table in tables
    ]


TRANSFER_EXPLAINED = (
    "Rows: policies and the environment that they were trained in; columns: the environment in which they are asked. "
    "In brackets: the difference from the raw question there. Bold: the environment of the training."
)


def _written(page: Page) -> Cells | None:
    """The shares of answers, over all datasets (means over them, if there are several)."""
    return _behaviour_table(whole_datasets(page.tables)[-1]) if page.tables else None


def table_notes(tables: Sequence[Table]) -> list[str]:
    """The notes of all tables, with the dataset that they are about where there are several."""
    notes = [f"{table.title}: {note}" if len(tables) > 1 else note for table in tables for note in table.notes]
    return list(dict.fromkeys(notes))


def _further_metrics(table: Table, metrics: Sequence[str]) -> Cells | None:
    """Header and rows of the further metrics, by environment; they are not tested. None without any."""
    if not metrics:
        return None
    several = len(table.environments) > 1
    pairs = [(metric, name) for metric in metrics for name in table.environments]
    rows = [[row.label, *(decimal(table.mean(row.arm, name, metric)) for metric, name in pairs)] for row in table.rows]
    return ["not tested", *(f"{metric} {name}" if several else metric for metric, name in pairs)], rows


def _behaviour_table(table: Table) -> Cells | None:
    """Header and rows of behaviour figures of model answers; None if no model wrote any."""
    rows = [
        [row.label, *(cell for name in table.environments for cell in _behaviour_cells(row.scores[name]))]
        for row in table.rows
        if row.arm.turn
    ]
    several = len(table.environments) > 1
    columns = (f"{column} {name}" if several else column for name in table.environments for column in WRITTEN)
    head = ["rewrites", *columns]
    return (head, rows) if rows else None


def _behaviour_cells(score: TableScore | None) -> list[str]:
    if score is None:
        return ["–"] * len(WRITTEN)
    return [*(percent(getattr(score, share)) for share in MEASURED), decimal(score.with_fall_back)]


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
