"""The first stage of a rewriter in training: asked about a question when it comes up.

A run of 24 steps asks about the questions of these steps, not about the whole training split before the first one; the
cache of replies answers for a question that comes up again. A question whose first stage fails is replaced by another
one, in a mix by one of the same environment. The draw depends on the seed, the step and what has failed, so that every
process draws the same.
"""

import logging
from collections.abc import Mapping, Sequence
from itertools import chain
from random import Random

from ..data.types import Question
from ..rewriters.first_stage import FirstStages, no_question_left
from .distributed.processes import Processes
from .mix import replacements

log = logging.getLogger(__name__)

_GIVE_UP_AFTER = 64
"""Where so many questions were asked about and none has an answer, the run ends."""


class StagedQuestions:
    """Asks about the questions of a run, and knows which of them have an answer of the first stage."""

    def __init__(self, stages: FirstStages, processes: Processes, mixed: bool = False) -> None:
        """`stages` is asked in the main process alone."""
        self._stages, self._processes, self._mixed = stages, processes, mixed
        self._failures: dict[str, str] = {}
        """Of each question that was asked about: "", or why it has no answer."""

    def ready(self, batch: Sequence[Question], questions: Mapping[str, Question], draw: Random) -> list[Question]:
        """The questions with the answers of their first stage, and others of `questions` in place of those without one.

        Collective, also for a process without questions. Raises ConfigError where no question has an answer.
        """
        names, staged = [question.id for question in batch], dict[str, Question]()
        while True:
            by_process = self._processes.all_gather(names)
            ids = list(chain.from_iterable(by_process))
            new = [name for name in dict.fromkeys(ids) if name not in staged and not self._failures.get(name)]
            staged |= self._ask([questions[name] for name in new])
            failed = [name for name in ids if name not in staged]
            if not failed:
                return [staged[name] for name in names]
            working = [name for name, reason in self._failures.items() if not reason]
            if not working and (len(self._failures) >= _GIVE_UP_AFTER or len(self._failures) == len(questions)):
                raise no_question_left(list(self._failures.values()))
            unknown = [name for name in questions if name not in self._failures]
            drawn = replacements(self._mixed, failed, unknown, draw)
            again = replacements(self._mixed, failed, [name for name in working if name in questions], draw)
            instead = iter([new or old for new, old in zip(drawn, again, strict=True)])
            for rank, of_rank in enumerate(by_process):
                for slot, name in enumerate(of_rank):
                    if name not in staged:
                        if (other := next(instead)) is None:
                            raise no_question_left(list(self._failures.values()))
                        if rank == self._processes.rank:
                            names[slot] = other

    def _ask(self, new: Sequence[Question]) -> dict[str, Question]:
        """Those of `new` that have an answer, by id."""
        outcomes = self._processes.on_main_process(lambda: self._stages.ask(new))
        staged: dict[str, Question] = {}
        for question, outcome in zip(new, outcomes, strict=True):
            if isinstance(outcome, str):
                log.warning("the question %r is replaced; its first stage gave: %s", question.id, outcome)
                self._failures[question.id] = outcome
            else:
                self._failures[question.id], staged[question.id] = "", outcome
        return staged
