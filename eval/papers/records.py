"""What every system did on every question of a task, one JSON object a line, appended while a paper runs.

A line is reused only where its key, a hash of all its inputs, is the same. A line with a missing reply or ranking is
never reused: its question is run again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...methods.method import MISSING, NO_RANKING
from ..tasks.judges import JudgeScore
from ..tasks.records import ReaderRecord

PASSING = (MISSING, NO_RANKING)
"""Transient failures, which another run may not meet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRecord(ReaderRecord):
    """One system on one question; its answer is what was read out of the text of the reader or the method."""

    task: str
    searched: bool
    failure: str
    """Why the method came to no end; "" where it did."""
    text: str | None
    """All that the reader wrote; None where the method answered, or nobody did."""
    judged: Mapping[str, JudgeScore]
    """The verdicts by judge; a judge who had nothing to judge is not there."""
    notes: Mapping[str, Any]
    """What the method said on the way."""
    spent: Mapping[str, int | None]
    """Of the method: calls, prompt_tokens, tokens, searches, truncated, cut (methods/runner.py); of the reader:
    reader_prompt_tokens, reader_tokens. Tokens are None where an endpoint does not say."""

    @property
    def reason(self) -> str:
        """Why there is no answer; "" where there is one."""
        return self.failure or (MISSING if self.answer is None else "")

    @property
    def cut_at_limit(self) -> bool | None:
        """Whether the method or the reader wrote a text that was cut at its token limit; None where neither wrote."""
        if self.text is None and not self.spent["calls"]:
            return None
        return bool(self.spent["cut"] or self.cut)

    @property
    def whole(self) -> bool:
        """Whether nothing of it has to be asked again; a lasting failure is not."""
        return self.reason not in PASSING and not any(verdict.missing for verdict in self.judged.values())
