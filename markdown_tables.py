"""Markdown tables, as GitHub and the Hub render them."""

from collections.abc import Iterable, Sequence

_RULES = {"l": "---", "r": "--:", "c": ":-:"}


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], align: str | None = None) -> list[str]:
    """The lines of a table: head, rule, rows. Pipes and line breaks in cells are escaped.

    `align` has a letter per column: l(eft), r(ight) or c(entre); by default the first column is left-aligned and the
    others are right-aligned. Raises ValueError where a row or `align` has another number of columns than the head.
    """
    align = align or "l" + "r" * (len(head) - 1)
    if len(align) != len(head):
        raise ValueError(f"{align!r} aligns {len(align)} columns and the head has {len(head)}")
    lines = [_row(head), f"|{'|'.join(_RULES[letter] for letter in align)}|"]
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"a row has {len(row)} cells and the head has {len(head)}: {row}")
        lines.append(_row(row))
    return lines


def _row(cells: Sequence[str]) -> str:
    escaped = (" ".join(cell.replace("|", "\\|").split()) for cell in cells)
    return f"| {' | '.join(escaped)} |"
