"""The tables of a grid in Markdown, LaTeX and HTML: the same figures, marks and notes in each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..pages.figures import Drawing
from ..pages.templates import page_environment
from ..table import signed
from .table import Costs, GridTable, Score
from .transfer import Transfer

COSTS = ("LLM calls", "tokens read", "tokens written", "retrievals", "seconds", "in format")
MARKS_EXPLAINED = (
    "† and ‡: significantly better than the first and the second baseline; ↓ and ⇓: significantly worse. Bold: the "
    "best of a column."
)
COSTS_EXPLAINED = (
    "Costs are means per question, earlier turns included; tokens read are those of the last prompt, which holds the "
    "turns before it; seconds are a batch's, shared out equally."
)
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "−": "$-$", "×": r"$\times$",
    "†": r"$^{\dagger}$", "‡": r"$^{\ddagger}$", "↓": r"$^{\downarrow}$", "⇓": r"$^{\Downarrow}$",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Page:
    """Everything that the tables say."""

    title: str
    family: str
    metrics: Sequence[str]
    tables: Sequence[GridTable]
    transfer: Transfer | None
    notes: Sequence[str]
    """Of the evaluation as a whole, failed cells among them."""
    about: Sequence[str]
    """Split, seed, licences, how to make it again."""


def markdown(page: Page) -> str:
    """All tables for a README."""
    lines = [f"# {page.title}", ""]
    lines += [*_bullets(page.notes), explanation(page.family), ""]
    for table in page.tables:
        lines += [f"## {table.title}", "", *_pipe(*_main(table, page.metrics[0], _bold_markdown)), ""]
        if page.metrics[1:]:
            lines += [*_pipe(*_others(table, page.metrics[1:])), ""]
        lines += _bullets(table.notes)
    if page.transfer is not None:
        lines += [f"## Transfer: {page.transfer.title}", "", *_pipe(*_matrix(page.transfer, _bold_markdown)), ""]
        lines += [TRANSFER_EXPLAINED, ""]
    return "\n".join([*lines, *_bullets(page.about)])


def latex(page: Page) -> str:
    """All tables for a paper; they need the package booktabs."""
    lines = ["% needs \\usepackage{booktabs}"]
    said = f"{page.metrics[0]}. {explanation(page.family)}"
    for table in page.tables:
        notes = " ".join([said, *table.notes])
        lines += _float(*_main(table, page.metrics[0], _bold_latex), f"{table.title}: {notes}")
    if page.transfer is not None:
        caption = f"Transfer, {page.transfer.title}: {page.transfer.metric}. {TRANSFER_EXPLAINED}"
        lines += _float(*_matrix(page.transfer, _bold_latex), caption)
    lines += [f"% {note}" for note in page.notes]
    return "\n".join([*lines, ""])


def html(page: Page, drawing: Drawing | None) -> str:
    """One page that opens without a server or a network."""
    return (
        page_environment()
        .get_template("grid.html.j2")
        .render(
            page=page,
            tables=html_tables(page.tables, page.metrics),
            drawing=drawing,
            explained=explanation(page.family),
        )
    )


def explanation(family: str) -> str:
    """What stands above the tables: the tests, the marks and the costs."""
    return f"{family} {MARKS_EXPLAINED} {COSTS_EXPLAINED}"


def html_tables(tables: Sequence[GridTable], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """The tables as grid_table.html.j2 takes them, figures as text."""
    return [
        {
            "title": table.title,
            "head": _main(table, metrics[0], str)[0],
            "rows": _html_rows(table, metrics[0]),
            "others": _others(table, metrics[1:]) if metrics[1:] else None,
            "notes": table.notes,
        }
        for table in tables
    ]


TRANSFER_EXPLAINED = (
    "Rows: policies and the environment that they were trained in; columns: the environment in which they are asked. "
    "In brackets: the difference from the raw question there. Bold: the environment of the training."
)

Bold = Callable[[str], str]


def _main(table: GridTable, metric: str, bold: Bold) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the first metric with its costs."""
    head = ["", *table.environments, *COSTS]
    rows = [
        [row.label, *(_figure(row.scores[name], metric, bold) for name in table.environments), *_cost_cells(row.costs)]
        for row in table.rows
    ]
    return head, rows


def _others(table: GridTable, metrics: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the further metrics, environment by environment; they are not tested."""
    pairs = [(metric, name) for metric in metrics for name in table.environments]
    rows = [[row.label, *(_value(row.scores[name], metric) for metric, name in pairs)] for row in table.rows]
    return ["not tested", *(f"{metric} {name}" for metric, name in pairs)], rows


def _matrix(found: Transfer, bold: Bold) -> tuple[list[str], list[list[str]]]:
    rows = []
    for policy in found.policies:
        cells = []
        for name in found.environments:
            value, gain = policy.values[name], policy.gains[name]
            said = "–" if value is None else f"{value:.3f}" + ("" if gain is None else f" ({signed(gain)})")
            cells.append(bold(said) if policy.at_home(name) else said)
        rows.append([f"{policy.system} ({policy.trained_in})", *cells])
    return ["policy (trained in)", *found.environments], rows


def _html_rows(table: GridTable, metric: str) -> list[dict[str, Any]]:
    return [
        {
            "label": row.label,
            "scores": [_html_score(row.scores[name], metric) for name in table.environments],
            "costs": _cost_cells(row.costs),
        }
        for row in table.rows
    ]


def _html_score(score: Score | None, metric: str) -> dict[str, Any] | None:
    if score is None or score.metrics[metric] is None:
        return None
    interval = f"{score.low:.3f} to {score.high:.3f}" if score.low is not None and score.high is not None else ""
    return {"value": _value(score, metric), "marks": score.marks, "best": score.best, "interval": interval}


def _figure(score: Score | None, metric: str, bold: Bold) -> str:
    value = _value(score, metric)
    return value if score is None else (bold(value) if score.best else value) + score.marks


def _value(score: Score | None, metric: str) -> str:
    value = score.metrics[metric] if score is not None else None
    return "–" if value is None else f"{value:.3f}"


def _cost_cells(costs: Costs | None) -> list[str]:
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


def _pipe(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    marks = "|".join(["---", *["--:"] * (len(head) - 1)])
    return [_pipe_row(head), f"|{marks}|", *map(_pipe_row, rows)]


def _pipe_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


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
"""Stand for LaTeX's own commands until the text around them is escaped."""


def _tex(text: str) -> str:
    escaped = "".join(_LATEX.get(character, character) for character in text)
    return escaped.replace(_BOLD_START, r"\textbf{").replace(_BOLD_END, "}")


def _bold_latex(text: str) -> str:
    return f"{_BOLD_START}{text}{_BOLD_END}"


def _bold_markdown(text: str) -> str:
    return f"**{text}**"
