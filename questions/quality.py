"""How good written questions are, by style: answerable, repeated, copied from their passages.

A question that copies its passage is found by any retriever and teaches nothing; one that several passages answer
should be judged with all of them. The counts say how far a writer can be trusted before anything is trained on it.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..data.leakage import words
from ..markdown_tables import markdown_table
from ..storage import write_lines

QUALITY = "quality.json"


@dataclass(frozen=True, slots=True)
class WrittenQuestion:
    """A question that was asked for, and what became of it."""

    style: str
    text: str
    """"" if the writer's answer did not have the required form."""
    passages: str
    """What the writer was shown."""
    answerable: bool | None = None
    """The judge's verdict; None if there is none."""
    judgements: int = 0
    """Relevant passages of a question that was kept, its own included; 0 for one that was not."""


@dataclass(frozen=True, slots=True)
class StyleQuality:
    """Counts and means of the questions of one style; None where there is nothing to take a mean of."""

    style: str
    requested: int
    written: int
    """Answers that had the required form."""
    answerable: float | None
    """Share of the written questions that, says the judge, their passages answer; None without a judge."""
    repeated: float | None
    """Share of the written questions with the words of an earlier one."""
    words: float | None
    """Mean length."""
    copied_words: float | None
    """Mean share of a question's words that stand in its passages."""
    copied_run: float | None
    """Mean length, in words, of the longest stretch that stands in its passages word for word."""
    kept: int
    judgements: float | None
    """Mean number of relevant passages of a question that was kept."""


def quality_by_style(questions: Iterable[WrittenQuestion]) -> list[StyleQuality]:
    """A line for each style, in order of first appearance, and one for all ("all")."""
    by_style: dict[str, list[tuple[WrittenQuestion, bool]]] = {}
    every: list[tuple[WrittenQuestion, bool]] = []
    earlier: set[str] = set()
    for question in questions:
        text = words(question.text)
        every.append((question, text in earlier))
        by_style.setdefault(question.style, []).append(every[-1])
        earlier |= {text} if text else set()
    return [_quality(style, of_style) for style, of_style in [*by_style.items(), ("all", every)]]


def copied(question: str, passages: str) -> tuple[float, int]:
    """Share of the question's words that stand in the passages, and the longest stretch of words that does.

    Words are compared without case, punctuation and accents.
    """
    tokens, source = words(question).split(), words(passages).split()
    if not tokens:
        return 0.0, 0
    vocabulary = set(source)
    share = sum(word in vocabulary for word in tokens) / len(tokens)
    longest = 0
    runs = [0] * (len(source) + 1)  # length of the common run that ends at each word of the passages
    for word in tokens:
        for position in range(len(source), 0, -1):
            runs[position] = runs[position - 1] + 1 if source[position - 1] == word else 0
        longest = max(longest, *runs)
    return share, longest


def write_quality(folder: Path, qualities: Sequence[StyleQuality]) -> None:
    """Write `QUALITY`. Raises OSError."""
    write_lines(folder / QUALITY, [json.dumps([asdict(quality) for quality in qualities], indent=1)])


def quality_lines(qualities: Sequence[StyleQuality]) -> list[str]:
    """The qualities as a Markdown table."""
    head = ["style", "requested", "written", "answerable", "repeated", "words", "in the passage", "longest copy"]
    rows = [
        [
            quality.style,
            str(quality.requested),
            str(quality.written),
            _percent(quality.answerable),
            _percent(quality.repeated),
            _number(quality.words),
            _percent(quality.copied_words),
            _number(quality.copied_run),
            str(quality.kept),
            _number(quality.judgements),
        ]
        for quality in qualities
    ]
    return markdown_table([*head, "kept", "relevant"], rows, "lrrrrrrrrr")


def _quality(style: str, questions: Sequence[tuple[WrittenQuestion, bool]]) -> StyleQuality:
    well_formed = [question for question, _ in questions if question.text]
    judged = any(question.answerable is not None for question in well_formed)
    retained = [question for question in well_formed if question.judgements]
    copies = [copied(question.text, question.passages) for question in well_formed]
    return StyleQuality(
        style=style,
        requested=len(questions),
        written=len(well_formed),
        answerable=_mean([bool(question.answerable) for question in well_formed]) if judged else None,
        repeated=_mean([repeated for question, repeated in questions if question.text]),
        words=_mean([len(question.text.split()) for question in well_formed]),
        copied_words=_mean([share for share, _ in copies]),
        copied_run=_mean([run for _, run in copies]),
        kept=len(retained),
        judgements=_mean([question.judgements for question in retained]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
