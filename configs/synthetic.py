"""Settings of `querylect data questions`: which questions a model writes for the passages of a corpus, to train on."""

from typing import Annotated, Literal

from pydantic import Field

from .section import Section

Style = Literal["keyword", "question", "vague", "typo", "multi_hop"]
STYLES: tuple[Style, ...] = ("keyword", "question", "vague", "typo", "multi_hop")
"""How users ask: search words, a full question, everyday words without the right terms, a question with typing
mistakes, a question that takes two passages."""


class SyntheticConfig(Section):
    """Questions that a language model writes for passages that nobody has judged (docs/adapt.md); writer, judge and
    form of the answers are those of `questions`."""

    count: Annotated[int, Field(ge=3)] = 1000
    """Questions requested; fewer remain after the judge and the removal of repeats."""
    styles: Annotated[list[Style], Field(min_length=1)] = list(STYLES)
    """Styles of the questions, in turn."""
    judge: bool = True
    """Keep only questions that their passages answer, according to the judge. False: keep every question, with its own
    passages as the only relevant ones; for writers that cannot judge."""
    min_words: Annotated[int, Field(ge=1)] = 20
    """Passages with fewer words get no question."""
