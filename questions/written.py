"""Which passages get a question, in which style and for which split; typing mistakes; and how good the questions are.

Pure functions. Documents are divided between the splits, not questions: a passage of a test document is never a
training judgement, and a passage of another split neither is shown with it nor widens its judgements.
"""

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from ..configs.llm import Style
from ..data.leakage import words
from ..data.sampling import sample_key
from ..data.types import Document
from ..errors import DataError
from ..markdown_tables import markdown_table
from .models import excerpt

VALIDATION, TEST = 0.1, 0.2
"""Shares of the questions; no test questions are written where users have given some."""
_WORDS_PER_TYPO, _SHORTEST = 6, 4
"""Words for each typing mistake, and letters of the shortest word that one goes into."""


@dataclass(slots=True)
class WrittenQuestion:
    """A question that is planned, then written, judged, and kept or dropped."""

    split: str
    style: Style
    passages: tuple[Document, ...]
    """What it is about: one passage, or two for `multi_hop`."""
    draft: str = ""
    """As the writer wrote it; "" if the answer did not have the required form."""
    failure: str = ""
    text: str = ""
    """As users would type it: with mistakes, if that is its style."""
    answerable: bool | None = None
    """The judge's verdict; None if there is none."""
    also: tuple[str, ...] = ()
    """Ids of further passages that answer it."""
    relevant: int = 0
    """Relevant passages of a question that was kept, its own included; 0 for one that was not."""


def split_documents(
    passages: Sequence[Document], document_of: Mapping[str, str], with_test: bool = True
) -> dict[str, str]:
    """The split of each document: the one with most passages first, each to the split that lacks most of its share.

    Raises DataError if there are fewer documents than splits.
    """
    shares = {"train": 1 - VALIDATION - TEST * with_test, "validation": VALIDATION, "test": TEST * with_test}
    lacking = {split: share * len(passages) for split, share in shares.items() if share}
    sizes: dict[str, int] = {}
    for passage in passages:
        sizes[document_of[passage.id]] = sizes.get(document_of[passage.id], 0) + 1
    if len(sizes) < len(lacking):
        raise DataError(
            f"{len(sizes)} documents have a passage that is long enough, and {', '.join(lacking)} need one each. Give "
            "more documents, divide a long one into several files, or lower synthetic.min_words."
        )
    order = sorted(sizes, key=lambda name: (-sizes[name], sample_key(0, name)))
    split_of: dict[str, str] = {}
    for number, name in enumerate(order):
        empty = [split for split in lacking if split not in split_of.values()]
        split_of[name] = max(empty if len(order) - number <= len(empty) else lacking, key=lacking.__getitem__)
        lacking[split_of[name]] -= sizes[name]
    return split_of


def split_counts(splits: Collection[str], count: int) -> dict[str, int]:
    """How many of `count` questions each split gets; the test share only if the test is among the splits."""
    counts = {"validation": max(1, round(VALIDATION * count))}
    if "test" in splits:
        counts["test"] = max(1, round(TEST * count))
    return {"train": max(1, count - sum(counts.values())), **counts}


def plan_questions(
    drawn: Mapping[str, Sequence[Document]],
    counts: Mapping[str, int],
    styles: Sequence[Style],
    partners: Mapping[str, Document],
) -> list[WrittenQuestion]:
    """Questions about the drawn passages of each split; styles in turn, every passage once before one is asked about
    twice, and never twice in one style.

    `partners` has second passages for questions about two; a passage without one gets a question of the next style.
    """
    planned: list[WrittenQuestion] = []
    used: set[tuple[str, Style]] = set()
    for split, passages in drawn.items():
        for number in range(min(counts[split], len(passages) * len(styles))):
            turn, index = divmod(number, len(passages))
            passage = passages[index]
            rotated = (styles[(index + turn + offset) % len(styles)] for offset in range(len(styles)))
            possible = (style for style in rotated if style != "multi_hop" or passage.id in partners)
            style = next((style for style in possible if (passage.id, style) not in used), None)
            if style is not None:
                used.add((passage.id, style))
                second = (partners[passage.id],) if style == "multi_hop" else ()
                planned.append(WrittenQuestion(split, style, (passage, *second)))
    return planned


def neighbours(passages: Sequence[Document], document_of: Mapping[str, str]) -> dict[str, Document]:
    """The next passage of the same document for each passage, for the last one the passage before it. `passages` are
    in the order of the corpus."""
    following: dict[str, Document] = {}
    for first, second in pairwise(sorted(passages, key=lambda passage: document_of[passage.id])):
        if document_of[first.id] == document_of[second.id]:
            following[first.id] = second
            following.setdefault(second.id, first)
    return following


def with_typos(text: str, seed: str) -> str:
    """The text with typing mistakes in longer words, one for every six words: letters swapped, left out or
    doubled. The first letter of a word is right; the same seed gives the same text.
    """
    typed = text.split()
    draw = random.Random(seed)
    longer = [position for position, word in enumerate(typed) if sum(map(str.isalpha, word)) >= _SHORTEST]
    for position in draw.sample(longer, min(len(longer), max(1, round(len(typed) / _WORDS_PER_TYPO)))):
        typed[position] = _mistyped(typed[position], draw)
    return " ".join(typed)


def _mistyped(word: str, draw: random.Random) -> str:
    """The word after one mistake; two equal letters are not swapped, so it always differs."""
    inner = [index for index in range(1, len(word)) if word[index].isalpha()]
    index = draw.choice(inner)
    head, letter, tail = word[:index], word[index], word[index + 1 :]
    edits = [head + tail, head + letter + letter + tail]
    if index + 1 in inner and tail[0] != letter:
        edits.append(head + tail[0] + letter + tail[1:])
    return draw.choice(edits)


Quality = dict[str, str | int | float | None]


def quality_by_style(questions: Sequence[WrittenQuestion], limit: int) -> list[Quality]:
    """How far the writer can be trusted: a row for each style, in order of first appearance, and one for all ("all");
    None where there is nothing to take a mean of. `limit` is how many words of its passages the writer saw.

    `requested`, `written` (answers of the required form) and `kept` are counts. Shares of the written questions:
    `answerable` (None without a judge), `repeated` (the words of an earlier one), `copied` (mean share of a question's
    words that stand in its passages: one that copies them is found by any retriever and teaches nothing). `relevant`:
    mean number of relevant passages of a kept question.
    """
    first: dict[str, WrittenQuestion] = {}
    for question in questions:
        if question.draft:
            first.setdefault(words(question.text), question)
    rows: list[Quality] = []
    for style in [*dict.fromkeys(question.style for question in questions), "all"]:
        chosen = [question for question in questions if style in (question.style, "all")]
        drafts = [question for question in chosen if question.draft]
        rows.append(
            {
                "style": style,
                "requested": len(chosen),
                "written": len(drafts),
                "answerable": _mean(q.answerable for q in drafts if q.answerable is not None),
                "repeated": _mean(first[words(q.text)] is not q for q in drafts),
                "copied": _mean(copied(q.text, excerpt(q.passages, limit)) for q in drafts),
                "kept": sum(question.relevant > 0 for question in chosen),
                "relevant": _mean(question.relevant for question in chosen if question.relevant),
            }
        )
    return rows


def quality_lines(rows: Sequence[Quality]) -> list[str]:
    """The rows as a Markdown table."""

    def cell(name: str, value: str | float | None) -> str:
        if not isinstance(value, float):
            return "–" if value is None else str(value)
        return f"{value:.1f}" if name == "relevant" else f"{value:.0%}"

    return markdown_table(list(rows[0]), [[cell(name, value) for name, value in row.items()] for row in rows])


def copied(question: str, passages: str) -> float:
    """Share of the question's words that stand in the passages, without regard to case, punctuation and accents."""
    vocabulary = set(words(passages).split())
    return _mean(word in vocabulary for word in words(question).split()) or 0.0


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return fmean(listed) if listed else None
