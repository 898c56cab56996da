"""The first stage of rewriters that have two: a frozen model is asked about a question before its first turn.

A question whose answer is missing, or is not of the form that was asked for even after one repair, falls out and is
counted: nothing is made up for it. Other rewriters pass all their questions on.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack

from ..configs.llm import LlmConfig
from ..data.history import cut_history
from ..data.types import Question
from ..errors import ConfigError
from ..llms.access import Llm
from ..llms.structured import ask_structured
from ..rewriters.base import FirstStage, RewritingStrategy, StagedQuestion
from .llms import open_llm

log = logging.getLogger(__name__)

Outcome = Question | str
"""A question with the answer of its first stage, if it has one; or the reason why there is none."""


class FirstStages(ExitStack):
    """Asks about the questions of a rewriter. A model is opened when it is first asked and kept until the end of the
    context."""

    def __init__(self, rewriter: RewritingStrategy, base: LlmConfig, history_words: int) -> None:
        """`base` is asked where a stage names no model. Prompts show the newest `history_words` of a history."""
        super().__init__()
        self._rewriter, self._base, self._history_words = rewriter, base, history_words
        self._models: dict[str, Llm] = {}

    def ask(self, questions: Sequence[Question]) -> list[Outcome]:
        """The outcome of each question. Raises as `Llm.ask`."""
        outcomes: list[Outcome] = list(questions)
        groups: dict[tuple[str, str], dict[int, FirstStage]] = {}
        for index, question in enumerate(questions):
            stage = self._rewriter.first_stage(cut_history(question, self._history_words))
            if stage is not None and not isinstance(question, StagedQuestion):
                model = (stage.llm or self._base).model_dump_json()
                groups.setdefault((model, stage.form.__name__), {})[index] = stage
        for (model, _), stages in groups.items():
            if model not in self._models:
                self._models[model] = self.enter_context(open_llm(LlmConfig.model_validate_json(model)))
            first, prompts = next(iter(stages.values())), [stage.prompt for stage in stages.values()]
            answers = ask_structured(self._models[model], prompts, first.form, first.draw)
            for index, answer in zip(stages, answers, strict=True):
                if answer.value is not None:
                    outcomes[index] = StagedQuestion.of(questions[index], answer.value, answer.replies)
                else:
                    outcomes[index] = "no reply" if answer.missing else "not of the form that was asked for"
        return outcomes


def answered(outcomes: Sequence[Outcome]) -> list[Question]:
    """The questions that did not fall out. Raises ConfigError where none is left."""
    remaining = [outcome for outcome in outcomes if not isinstance(outcome, str)]
    failures = [outcome for outcome in outcomes if isinstance(outcome, str)]
    if failures:
        reasons = ", ".join(f"{count} {reason}" for reason, count in Counter(failures).items())
        summary = f"{len(failures)} of {len(outcomes)} questions fall out; their first stage gave: {reasons}"
        if not remaining:
            raise ConfigError(f"{summary}. Ask a stronger model (rewriter.llm), or use another rewriter.")
        log.warning("%s", summary)
    return remaining
