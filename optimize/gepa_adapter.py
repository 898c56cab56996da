"""GEPA's view of a run: candidates are evaluated within the budget of searches, and the best one is kept in best/.

Answers are kept in evaluations.jsonl, so one that is needed again, also after a resume, costs nothing.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from gepa.core.adapter import EvaluationBatch

from ..data.types import Question
from ..errors import ConfigError
from ..logs import Progress
from ..rewriters.few_shot import FewShotPrompt
from ..rollouts.checkpoints import PROMPT_FILE, winning_turn
from ..storage import KeyedJournal, atomic_folder, json_object
from ..train.run_folder import RunFolder
from .prompts import COMPONENT, digest_of, prompt_yaml, with_system
from .reflection import ReflectionModel, feedback
from .scoring import RAW, ScoredAnswer, Scorer, evaluation_key

log = logging.getLogger(__name__)

Task = tuple[str, Question]
"""A split and one of its questions."""
Trace = tuple[Question, ScoredAnswer]


class BudgetSpentError(Exception):
    """The next evaluation would take more searches than are left: the end of a run, not a failure."""


class EnvironmentAdapter:
    """Evaluates candidates, and turns evaluations of training questions into feedback."""

    propose_new_texts = None
    """GEPA looks for it; the reflection model makes the proposals."""

    def __init__(
        self,
        scorer: Scorer,
        folder: RunFolder,
        budget: int,
        questions: Sequence[Question],
        relevant: Mapping[str, Sequence[str]],
        reflection: ReflectionModel,
        progress: Progress,
    ) -> None:
        """A prompt has to leave room for all `questions`. `relevant` are titles of relevant documents by training
        question, as far as they are known here."""
        self._scorer, self._folder, self._budget, self._questions = scorer, folder, budget, questions
        self._relevant, self._reflection, self._progress = relevant, reflection, progress
        self._journal = KeyedJournal(folder.path / "evaluations.jsonl", ScoredAnswer)

    @property
    def searches(self) -> int:
        return sum(evaluation.searches for evaluation in self._journal.by_key.values())

    @property
    def best(self) -> float | None:
        """The mean validation reward of the prompt in best/; None before the first validation."""
        record = json_object(self._folder.best / "best.json")
        return float(record["reward"]) if record is not None else None

    def evaluate(
        self, batch: Sequence[Task], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[tuple[str, ...], Trace]:
        """The evaluations of a candidate, in the order of the batch; an unusable prompt has the reward 0 and is not
        searched. Raises BudgetSpentError, and as `Scorer.score`."""
        prompt = self._usable(candidate)
        if prompt is None:
            return EvaluationBatch(outputs=[()] * len(batch), scores=[0.0] * len(batch), num_metric_calls=0)
        digest = digest_of(prompt)
        pending = self._pending(digest, batch, self._scorer.turns)
        for split in dict.fromkeys(split for split, _ in pending):
            questions = [question for of_split, question in pending if of_split == split]
            for evaluations in self._scorer.score(prompt, split, questions):
                self._journal.append(evaluations)
                self._progress(self.searches, self._budget)
        results = [self._journal.by_key[evaluation_key(digest, split, question.id)] for split, question in batch]
        if batch[0][0] == "validation":
            self._keep_best(prompt, results)
        return EvaluationBatch(
            outputs=[result.rewrites for result in results],
            scores=[result.reward for result in results],
            trajectories=[(question, result) for (_, question), result in zip(batch, results, strict=True)]
            if capture_traces
            else None,
        )

    def make_reflective_dataset(
        self,
        candidate: dict[str, str],
        eval_batch: EvaluationBatch[tuple[str, ...], Trace],
        components: list[str],
    ) -> dict[str, list[dict[str, Any]]]:
        """What the reflection model reads of each training question."""
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

    def _usable(self, candidate: dict[str, str]) -> FewShotPrompt | None:
        try:
            prompt = with_system(self._scorer.start, candidate[COMPONENT])
            reason = self._scorer.refusal(prompt, self._questions)
        except ConfigError as error:
            reason = str(error)
        if reason:
            log.info("proposal %d cannot be used: %s", self._reflection.proposals, reason)
            return None
        return prompt

    def _pending(self, candidate: str, batch: Sequence[Task], searches: int) -> list[Task]:
        """The tasks that have no evaluation yet, each once. Raises BudgetSpentError where `searches` for each are more
        than are left."""
        tasks = {evaluation_key(candidate, split, question.id): (split, question) for split, question in batch}
        pending = [task for key, task in tasks.items() if self._journal.get(key) is None]
        if self.searches + len(pending) * searches > self._budget:
            raise BudgetSpentError
        return pending

    def _keep_best(self, prompt: FewShotPrompt, validated: Sequence[ScoredAnswer]) -> None:
        """Replace best/ if the mean reward of a prompt on all validation questions is the highest so far."""
        score, best = fmean(evaluation.reward for evaluation in validated), self.best
        if best is not None and score <= best:
            return
        log.info("a better prompt: %.4f on %d validation questions", score, len(validated))
        step = self._reflection.proposals
        counts = {"questions": len(validated), "failed_searches": 0}
        record: dict[str, float | None] = {"step": step, **counts, "reward": score}
        means = [evaluation.means for evaluation in validated]
        record |= {name: float(f"{fmean(values[name] for values in means):.6g}") for name in means[0]}
        record["turn"] = winning_turn(record, self._scorer.metric, self._scorer.turns)
        with atomic_folder(self._folder.best) as path:
            (path / PROMPT_FILE).write_text(prompt_yaml(prompt), encoding="utf-8")
            (path / "best.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
