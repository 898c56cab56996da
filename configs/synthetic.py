"""Settings of `querylect data questions`: which questions a model writes for the passages of a corpus, to train on."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

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
    widen: Annotated[int, Field(ge=0)] = 4
    """Number of other passages, the most similar by the retriever of `env`, that the judge reads for each question;
    those that answer it are relevant too."""
    min_words: Annotated[int, Field(ge=1)] = 20
    """Passages with fewer words get no question."""
    validation: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the questions for validation. The split is by document: no document has questions in two splits."""
    test: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of the questions for the final test, if no test questions of users are given."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Random seed of passages, splits and typing mistakes."""

    @model_validator(mode="after")
    def _check_shares(self) -> "SyntheticConfig":
        if self.validation + self.test >= 1:
            raise ValueError(
                f"synthetic.validation {self.validation} and synthetic.test {self.test} leave no training questions; "
                "lower one"
            )
        return self
