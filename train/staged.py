"""The first stage of a rewriter in training: asked about a question when it comes up, once in a run.

A run of 24 steps asks about the questions of these steps, not about the whole training split before the first one. A
question whose first stage fails is replaced by another one, in a mix by one of the same environment. The draw depends
on the seed, the step and what has failed, so that every process draws the same.
"""

import logging
from collections.abc import Mapping, Sequence
from itertools import chain
from random import Random

from ..data.types import Question
from ..rewriters.base import RewritingStrategy, Staged
from ..rollouts.first_stage import StageModels, learn_first_stage, no_question_left
from .distributed.processes import Processes
from .mix import replacements

log = logging.getLogger(__name__)

_GIVE_UP_AFTER = 64
"""Where so many questions were asked about and none has an answer, the run ends."""


class StagedQuestions:
    """The questions of a run, and which of them have an answer of the first stage."""

    def __init__(
        self,
        rewriter: RewritingStrategy,
        models: StageModels,
        processes: Processes,
        mixed: bool = False,
        history_words: int | None = None,
    ) -> None:
        """`models` are opened in the main process alone; their prompts show at most `history_words` of a history."""
        self._rewriter, self._models, self._processes, self._mixed = rewriter, models, processes, mixed
        self._history_words = history_words
        self._failures: dict[str, str] = {}
        """Of each question that was asked about: "", or why it has no answer."""

    def ready(self, batch: Sequence[Question], questions: Mapping[str, Question], draw: Random) -> list[Question]:
        """The questions with an answer of the first stage, and others of `questions` in place of those without one.

        Collective, also for a process without questions. Raises ConfigError where no question has an answer.
        """
        if not isinstance(self._rewriter, Staged):
            return list(batch)
        current = list(batch)
        while True:
            by_process = self._processes.all_gather([question.id for question in current])
            ids = list(chain.from_iterable(by_process))
            self._ask([questions[name] for name in dict.fromkeys(ids) if name not in self._failures])
            failed = [name for name in ids if self._failures[name]]
            if not failed:
                return current
            answered = [name for name, reason in self._failures.items() if not reason]
            if not answered and (len(self._failures) >= _GIVE_UP_AFTER or len(self._failures) == len(questions)):
                raise no_question_left(list(self._failures.values()))
            unknown = [name for name in questions if name not in self._failures]
            drawn = replacements(self._mixed, failed, unknown, draw)
            again = replacements(self._mixed, failed, [name for name in answered if name in questions], draw)
            instead = iter([new or old for new, old in zip(drawn, again, strict=True)])
            for rank, names in enumerate(by_process):
                for slot, name in enumerate(names):
                    if self._failures[name]:
                        if (new := next(instead)) is None:
                            raise no_question_left(list(self._failures.values()))
                        if rank == self._processes.rank:
                            current[slot] = questions[new]

    def _ask(self, new: Sequence[Question]) -> None:
        failures = learn_first_stage(
            self._rewriter, new, self._models, self._processes.on_main_process, self._history_words
        )
        self._failures |= {question.id: failure for question, failure in zip(new, failures, strict=True)}
        for question, failure in zip(new, failures, strict=True):
            if failure:
                log.warning("the question %r is replaced; its first stage gave: %s", question.id, failure)
