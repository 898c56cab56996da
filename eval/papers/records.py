"""What every system did on every question of a task, one JSON object a line, appended while a paper runs.

A line is reused only where its key, a hash of all its inputs, is the same. A line with a missing reply or ranking is
never reused: its question is run again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...methods.method import MISSING, NO_RANKING
from ..tasks.judges import JudgeScore

PASSING = (MISSING, NO_RANKING)
"""Transient failures, which another run may not meet."""


@dataclass(frozen=True, slots=True)
class PaperRecord:
    """One system on one question."""

    task: str
    system: str
    question_id: str
    question: str
    documents: tuple[str, ...]
    """Ids of the context, in the order in which the reader saw it."""
    searched: bool
    failure: str
    """Why the method came to no end; "" where it did."""
    text: str | None
    """All that the reader wrote; None where the method answered, or nobody did."""
    answer: str | None
    """What was read out of it; None without a failure where the reader did not reply."""
    chosen: str
    """Multiple choice: the letter of the option that the answer names; "" where it names none."""
    cut: bool
    """Whether the answer was cut at its longest."""
    scores: Mapping[str, float | None]
    """By metric; None where there is no answer."""
    judged: Mapping[str, JudgeScore]
    """The verdicts by judge; a judge who had nothing to judge is not there."""
    notes: Mapping[str, Any]
    """What the method said on the way."""
    prompts: tuple[str, ...]
    """Versions of the prompts that the method used."""
    spent: Mapping[str, int | None]
    """Of the method: calls, prompt_tokens, tokens, searches; of the reader: reader_prompt_tokens, reader_tokens.
    Tokens are None where an endpoint does not say."""
    key: str

    @property
    def reason(self) -> str:
        """Why there is no answer; "" where there is one."""
        return self.failure or (MISSING if self.answer is None else "")

    @property
    def whole(self) -> bool:
        """Whether it is complete, so that nothing has to be asked again."""
        return self.reason not in PASSING and not any(verdict.missing for verdict in self.judged.values())
