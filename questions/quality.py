"""How good written questions are, by style: answerable, repeated, copied from their passages.

A question that copies its passage is found by any retriever and teaches nothing; one that several passages answer
should be judged with all of them. The counts say how far a writer can be trusted before anything is trained on it.
"""

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from statistics import fmean

from ..data.leakage import words
from ..markdown_tables import markdown_table
from .plan import WrittenQuestion
from .prompts import excerpt

QUALITY = "quality.json"
_SHARES = {"answerable": "answerable", "repeated": "repeated", "copied_words": "in the passage"}
_LENGTHS = {"words": "words", "copied_run": "longest copy", "judgements": "relevant"}

Quality = dict[str, str | int | float | None]


def quality_by_style(questions: Iterable[WrittenQuestion], limit: int) -> list[Quality]:
    """A row for each style, in order of first appearance, and one for all ("all"); None where there is nothing to take
    a mean of. `limit` is how many words of its passages the writer saw.

    `requested`, `written` (answers of the required form) and `kept` are counts. Shares of the written questions:
    `answerable` (None without a judge), `repeated` (the words of an earlier one), `copied_words` (mean share of a
    question's words that stand in its passages). Means: `words`; `copied_run`, the longest stretch of words that
    stands in its passages; `judgements`, relevant passages of a kept question.
    """
    by_style: dict[str, list[dict[str, float]]] = {}
    every: list[dict[str, float]] = []
    earlier: set[str] = set()
    for question in questions:
        measured: dict[str, float] = {}
        if question.draft:
            text = words(question.text)
            share, run = copied(question.text, excerpt(question.passages, limit))
            measured = {"repeated": text in earlier, "words": len(question.text.split())}
            measured |= {"copied_words": share, "copied_run": run}
            measured |= {"answerable": question.answerable} if question.answerable is not None else {}
            measured |= {"judgements": question.relevant} if question.relevant else {}
            earlier.add(text)
        every.append(measured)
        by_style.setdefault(question.style, []).append(measured)
    return [_quality(style, rows) for style, rows in [*by_style.items(), ("all", every)]]


def copied(question: str, passages: str) -> tuple[float, int]:
    """Share of the question's words that stand in the passages, and the longest stretch of words that does.

    Words are compared without case, punctuation and accents.
    """
    tokens, source = words(question).split(), words(passages).split()
    run = SequenceMatcher(None, tokens, source, autojunk=False).find_longest_match().size
    vocabulary = set(source)
    return (fmean(word in vocabulary for word in tokens) if tokens else 0.0), run


def quality_lines(rows: Sequence[Quality]) -> list[str]:
    """The rows as a Markdown table."""
    head = {"style": "style", "requested": "requested", "written": "written", **_SHARES, **_LENGTHS, "kept": "kept"}
    return markdown_table(list(head.values()), [[_cell(row, name) for name in head] for row in rows])


def _quality(style: str, rows: Sequence[dict[str, float]]) -> Quality:
    means: Quality = {}
    for name in (*_SHARES, *_LENGTHS):
        values = [row[name] for row in rows if name in row]
        means[name] = fmean(values) if values else None
    selected = sum("judgements" in row for row in rows)
    return {"style": style, "requested": len(rows), "written": sum(map(bool, rows)), **means, "kept": selected}


def _cell(row: Quality, name: str) -> str:
    value = row[name]
    if not isinstance(value, float):
        return "–" if value is None else str(value)
    return f"{value:.0%}" if name in _SHARES else f"{value:.1f}"
