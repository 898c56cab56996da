"""Render the tables of a spec as Markdown, LaTeX, HTML and CSV, with the same figures and marks in each."""

from collections.abc import Callable, Sequence
from csv import DictWriter
from dataclasses import asdict, dataclass
from io import StringIO

from ..markdown_tables import markdown_table
from .behaviour import percent
from .pages.figures import Drawing
from .pages.templates import render_page
from .table import MeanCosts, Row, Table, TableScore, decimal, signed
from .transfer import Transfer

COSTS = ("LLM calls", "tokens read", "tokens written", "retrievals", "seconds", "in format")
MARKS_EXPLAINED = (
    "† and ‡: significantly better than the first and the second baseline; ↓ and ⇓: significantly worse. ★ and ☆: "
    "significantly better and worse than the best training-free baseline. Bold: the best of a column."
)
WRITTEN = ("repeats the question", "cut", "in format", "with fall-back")
WRITTEN_EXPLAINED = (
    "Repeats the question: all rewrites of an answer have its words. Cut: the answer ended at its token limit. With "
    "fall-back: the first metric if a question whose answer has the wrong format were searched as it stands."
)
COSTS_EXPLAINED = (
    "Costs are means per question, earlier turns included; tokens read are those of the last prompt, which holds the "
    "turns before it; seconds are a batch's, shared out equally."
)
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
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
    transfer: Transfer | None
    notes: Sequence[str]
    """Notes on the whole evaluation, including failed cells."""
    about: Sequence[str]
    """Split, seed, licences, and how to reproduce the results."""


def markdown(page: Page) -> str:
    """All tables as Markdown, for a README."""
    lines = [f"# {page.title}", ""]
    lines += [*_bullets(page.notes), explanation(page.family), ""]
    for table in page.tables:
        lines += [f"## {table.title}", "", *markdown_table(*_main(table, page.metrics[0], _bold_markdown)), ""]
        if behaviour := _behaviour_table(table):
            lines += [*markdown_table(*behaviour), ""]
        if further := _further_metrics(table, page.metrics[1:]):
            lines += [*markdown_table(*further), ""]
        lines += _bullets(table.notes)
    if page.transfer is not None:
        lines += [
            f"## Transfer: {page.transfer.title}",
            "",
            *markdown_table(*_matrix(page.transfer, _bold_markdown)),
            "",
        ]
        lines += [TRANSFER_EXPLAINED, ""]
    return "\n".join([*lines, *_bullets(page.about)])


def latex(page: Page) -> str:
    """All tables as LaTeX, for a paper; needs the package booktabs."""
    lines = ["% needs \\usepackage{booktabs}"]
    preamble = f"{page.metrics[0]}. {explanation(page.family)}"
    for table in page.tables:
        notes = " ".join([preamble, *table.notes])
        lines += _float(*_main(table, page.metrics[0], _bold_latex), f"{table.title}: {notes}")
        if behaviour := _behaviour_table(table):
            lines += _float(*behaviour, f"{table.title}: what is written. {WRITTEN_EXPLAINED}")
    if page.transfer is not None:
        caption = f"Transfer, {page.transfer.title}: {page.transfer.metric}. {TRANSFER_EXPLAINED}"
        lines += _float(*_matrix(page.transfer, _bold_latex), caption)
    lines += [f"% {note}" for note in page.notes]
    return "\n".join([*lines, ""])


def html(page: Page, drawing: Drawing | None) -> str:
    """One self-contained HTML page that needs neither server nor network."""
    return render_page(
        "tables.html.j2",
        page=page,
        tables=html_tables(page.tables, page.metrics),
        drawing=drawing,
        explained=explanation(page.family),
    )


def explanation(family: str) -> str:
    """The text above the tables: explains tests, marks and costs."""
    return f"{family} {MARKS_EXPLAINED} {WRITTEN_EXPLAINED} {COSTS_EXPLAINED}"


def csv(page: Page) -> str:
    """All tables in one file: one line per table, system, turn and environment."""
    file = StringIO()
    writer = DictWriter(file, _columns(page.metrics), lineterminator="\n")
    writer.writeheader()
    for table in page.tables:
        for row in table.rows:
            for name, score in row.scores.items():
                if score is not None:
                    writer.writerow(_csv_row(table, row, name, score))
    return file.getvalue()


def _columns(metrics: Sequence[str]) -> list[str]:
    score_columns = ["low", "high", "n", "of", "marks", "format_ok", "repeats", "cut", "with_fall_back"]
    return ["table", "system", "turn", "label", "environment", *metrics, *score_columns]


def _csv_row(table: Table, row: Row, environment: str, score: TableScore) -> dict[str, object]:
    labels = {"table": table.title, "system": row.arm.system, "turn": row.arm.turn, "label": row.label}
    figures = {key: value for key, value in asdict(score).items() if key not in ("metrics", "best")}
    return {**labels, "environment": environment, **score.metrics, **figures}


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
            [_cost_cells(row.costs) for row in table.rows],
            [part for part in (_behaviour_table(table), _further_metrics(table, metrics[1:])) if part],
        )
        for table in tables
    ]


TRANSFER_EXPLAINED = (
    "Rows: policies and the environment that they were trained in; columns: the environment in which they are asked. "
    "In brackets: the difference from the raw question there. Bold: the environment of the training."
)


def _main(table: Table, metric: str, bold: Bold) -> Cells:
    """Header and rows of the first metric, with costs."""
    head = ["", *table.environments, *COSTS]
    rows = [
        [row.label, *(_figure(row.scores[name], metric, bold) for name in table.environments), *_cost_cells(row.costs)]
        for row in table.rows
    ]
    return head, rows


def _further_metrics(table: Table, metrics: Sequence[str]) -> Cells | None:
    """Header and rows of the further metrics, by environment; they are not tested. None without any."""
    if not metrics:
        return None
    pairs = [(metric, name) for metric in metrics for name in table.environments]
    rows = [[row.label, *(_value(row.scores[name], metric) for metric, name in pairs)] for row in table.rows]
    return ["not tested", *(f"{metric} {name}" for metric, name in pairs)], rows


def _behaviour_table(table: Table) -> Cells | None:
    """Header and rows of behaviour figures of model answers; None if no model wrote any."""
    rows = [
        [row.label, *(cell for name in table.environments for cell in _behaviour_cells(row.scores[name]))]
        for row in table.rows
        if row.arm.turn
    ]
    head = ["rewrites", *(f"{column} {name}" for name in table.environments for column in WRITTEN)]
    return (head, rows) if rows else None


def _behaviour_cells(score: TableScore | None) -> list[str]:
    if score is None:
        return ["–"] * len(WRITTEN)
    shares = [percent(share) for share in (score.repeats, score.cut, score.format_ok)]
    return [*shares, decimal(score.with_fall_back)]


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


def _figure(score: TableScore | None, metric: str, bold: Bold) -> str:
    value = _value(score, metric)
    return value if score is None else (bold(value) if score.best else value) + score.marks


def _value(score: TableScore | None, metric: str) -> str:
    return decimal(score.metrics[metric] if score is not None else None)


def _cost_cells(costs: MeanCosts | None) -> list[str]:
    if costs is None:
        return ["–"] * len(COSTS)
    return [
        str(costs.calls),
        "–" if costs.tokens_in is None else f"{costs.tokens_in:.0f}",
        "–" if costs.tokens_out is None else f"{costs.tokens_out:.1f}",
        f"{costs.searches:.2f}",
        f"{costs.seconds:.3f}",
        f"{100 * costs.format_ok:.1f}%",
    ]


def _bullets(lines: Sequence[str]) -> list[str]:
    return [*(f"- {' '.join(line.split())}" for line in lines), ""] if lines else []


def _float(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> list[str]:
    return [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_tex(caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
        r"\toprule",
        " & ".join(map(_tex, head)) + r" \\",
        r"\midrule",
        *(" & ".join(map(_tex, row)) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


_BOLD_START, _BOLD_END = "\x01", "\x02"
"""Placeholders for LaTeX commands while the surrounding text is escaped."""


def _tex(text: str) -> str:
    escaped = "".join(_LATEX.get(character, character) for character in text)
    return escaped.replace(_BOLD_START, r"\textbf{").replace(_BOLD_END, "}")


def _bold_latex(text: str) -> str:
    return f"{_BOLD_START}{text}{_BOLD_END}"


def _bold_markdown(text: str) -> str:
    return f"**{text}**"
