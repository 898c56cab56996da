"""Score searches that are not part of a rollout."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..configs.schema import RunConfig
from ..configs.section import RewardMetric, cutoff
from ..envs.client.base import ReadingClient, StepClient
from ..envs.schemas import Step, StepResult
from ..errors import EnvironmentUnavailableError

_Item = TypeVar("_Item")

STEPS_PER_CALL = 512
"""Searches of one call of the client. Each call has `client.deadline` to itself, so that a slow retriever may grade a
whole training split."""


@dataclass(frozen=True, slots=True)
class Grader:
    """Scores the searches of a run."""

    client: StepClient
    metric: RewardMetric
    """Of the metrics of a ranking, the one that every result has."""
    depth: int
    """Documents of a ranking, at least."""
    deadline: float
    """Seconds of `client.deadline`."""

    def grade(self, steps: Sequence[Step], label: str, with_text: bool = False) -> list[StepResult]:
        """One result per step; `with_text` adds the texts of documents. Rankings are as deep as the metric looks.

        Raises EnvironmentUnavailableError if any step got no answer before its deadline: a guess would change the
        training data. `label` names the searches in that message.
        """
        depth = max(self.depth, cutoff(self.metric))
        steps = [
            step.model_copy(update={"plan": step.plan.model_copy(update={"k": max(step.plan.k, depth)})})
            for step in steps
        ]
        return self._in_parts(
            steps, label, lambda part: self.client.step(part, with_text=with_text, metrics=[self.metric])
        )

    def grade_unsearched(self, question_ids: Sequence[str], label: str) -> list[StepResult]:
        """One result per question, answered without documents by the reader of `reward.kind: answer`. Raises as
        `grade`."""
        reading = self.client
        assert isinstance(reading, ReadingClient), "a config with rewriter.stop: answer has a reader"
        return self._in_parts(question_ids, label, lambda part: reading.step_and_read([], part, metrics=[self.metric]))

    def _in_parts(
        self, items: Sequence[_Item], label: str, score: Callable[[Sequence[_Item]], Sequence[StepResult | None]]
    ) -> list[StepResult]:
        answered: list[StepResult] = []
        for start in range(0, len(items), STEPS_PER_CALL):
            part = items[start : start + STEPS_PER_CALL]
            answered += [result for result in score(part) if result is not None]
            if len(answered) < start + len(part):
                failure = getattr(self.client, "last_failure", None)
                raise EnvironmentUnavailableError(
                    f"{start + len(part) - len(answered)} of {len(part)} {label} could not be graded before "
                    f"client.deadline ({self.deadline:g} s), after {start} that were. "
                    f"{f'Last failure: {failure}. ' if failure else ''}Check the service, or raise client.deadline."
                )
        return answered


def grader_of(config: RunConfig, client: StepClient) -> Grader:
    """The grader of a run: by the metric of its reward, in rankings as deep as those of its rollouts."""
    return Grader(client, config.reward.metric, config.search_depth, config.client.deadline)
