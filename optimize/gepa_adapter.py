"""GEPA's view of a run: candidates are evaluated from the journal where it has them, within the budget of searches."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gepa.core.adapter import EvaluationBatch

from ..data.types import Question
from ..logs import Progress
from ..rewriters.small import FewShotPrompt
from ..storage import KeyedJournal
from .prompts import digest_of, prompt_of
from .reflection import feedback
from .scoring import RAW, ScoredAnswer, Scorer, evaluation_key

Task = tuple[str, Question]
"""A split and one of its questions."""


class BudgetSpentError(Exception):
    """The next evaluation would take more searches than are left: the end of a run, not a failure."""


class EnvironmentAdapter:
    """Evaluates candidates, and turns evaluations of training questions into feedback."""

    propose_new_texts = None
    """GEPA looks for it; the Reflector makes the proposals."""

    def __init__(
        self,
        scorer: Scorer,
        journal: KeyedJournal[ScoredAnswer],
        budget: int,
        feedback: bool,
        relevant: Mapping[str, Sequence[str]],
        update: Callable[[FewShotPrompt], None],
        progress: Progress,
    ) -> None:
        """Without `feedback` the reflection model reads of no question. `relevant` are titles of relevant documents by
        training question, as far as they are known here; `update` is called with each prompt after its evaluation on a
        batch, or in place of one that takes more than the budget."""
        self._scorer, self._journal, self._budget, self._feedback = scorer, journal, budget, feedback
        self._relevant, self._update, self._progress = relevant, update, progress

    def evaluate(
        self, batch: Sequence[Task], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[tuple[Question, ScoredAnswer], ScoredAnswer]:
        """The evaluations of a candidate, in the order of the batch. Raises BudgetSpentError, and as `Scorer.score`."""
        prompt = prompt_of(self._scorer.start, candidate)
        digest = digest_of(prompt)
        try:
            pending = self._pending(digest, batch, self._scorer.turns)
        except BudgetSpentError:
            self._update(prompt)
            raise
        for split in dict.fromkeys(split for split, _ in pending):
            questions = [question for of_split, question in pending if of_split == split]
            for evaluations in self._scorer.score(prompt, split, questions):
                self._journal.append(evaluations)
                self._progress(self.searches, self._budget)
        results = [self._journal.by_key[evaluation_key(digest, split, question.id)] for split, question in batch]
        self._update(prompt)
        traces = [(question, result) for (_, question), result in zip(batch, results, strict=True)]
        scores = [result.reward for result in results]
        return EvaluationBatch(outputs=results, scores=scores, trajectories=traces if capture_traces else None)

    def make_reflective_dataset(
        self,
        candidate: dict[str, str],
        eval_batch: EvaluationBatch[tuple[Question, ScoredAnswer], ScoredAnswer],
        components: list[str],
    ) -> dict[str, list[dict[str, Any]]]:
        """What the reflection model reads of each training question. Raises BudgetSpentError."""
        if not self._feedback:
            return {component: [] for component in components}
        traces = eval_batch.trajectories or []
        pending = self._pending(RAW, [(evaluation.split, question) for question, evaluation in traces], 1)
        if pending:
            self._journal.append(self._scorer.score_raw("train", [question for _, question in pending]))
        examples = []
        for question, evaluation in traces:
            raw = self._journal.by_key[evaluation_key(RAW, evaluation.split, question.id)]
            relevant = self._relevant.get(question.id, ())
            examples.append(feedback(self._scorer.with_cut_history(question), evaluation, raw.reward, relevant))
        return dict.fromkeys(components, examples)

    def _pending(self, candidate: str, batch: Sequence[Task], searches: int) -> list[Task]:
        """The tasks that have no evaluation yet, each once. Raises BudgetSpentError where `searches` for each are more
        than are left."""
        tasks = {evaluation_key(candidate, split, question.id): (split, question) for split, question in batch}
        pending = [task for key, task in tasks.items() if self._journal.get(key) is None]
        if self.searches + len(pending) * searches > self._budget:
            raise BudgetSpentError
        return pending

    @property
    def searches(self) -> int:
        return sum(evaluation.searches for evaluation in self._journal.by_key.values())
