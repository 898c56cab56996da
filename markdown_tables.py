"""Markdown tables, as GitHub and the Hub render them."""

from collections.abc import Iterable, Sequence

_RULES = {"l": "---", "r": "--:", "c": ":-:"}


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], align: str | None = None) -> list[str]:
    """The lines of a table: head, rule, rows. Pipes and line breaks in cells are escaped.

    `align` has a letter per column: l(eft), r(ight) or c(entre); by default l for the first column, else r.
    """
    align = align or "l" + "r" * (len(head) - 1)
    rule = f"|{'|'.join(_RULES[letter] for letter in align)}|"
    return [_row(head), rule, *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    escaped = (" ".join(cell.replace("|", "\\|").split()) for cell in cells)
    return f"| {' | '.join(escaped)} |"
