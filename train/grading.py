"""Score searches that are not part of a rollout."""

from collections.abc import Sequence

from ..configs.reward_metric import RewardMetric, cutoff
from ..configs.schema import RunConfig
from ..envs.client.base import StepClient
from ..envs.server.schemas import Step, StepResult
from ..errors import EnvironmentUnavailableError

STEPS_PER_CALL = 512
"""Searches of one call of the client. Each call has `client.deadline` to itself, so that a slow retriever may grade a
whole training split."""


def grade(
    config: RunConfig,
    client: StepClient,
    steps: Sequence[Step],
    label: str,
    metric: RewardMetric | None = None,
    with_text: bool = False,
) -> list[StepResult]:
    """One result per step, with `metric` (None: what `reward` rewards) among its metrics; `with_text` adds the texts of
    documents.

    Rankings are at least as deep as those of a rollout (RunConfig.search_depth) and as the metric looks.
    Raises EnvironmentUnavailableError if any step got no answer before its deadline: a guess would change the training
    data. `label` names the searches in that message.
    """
    depth = max(config.search_depth, cutoff(metric)) if metric is not None else config.search_depth
    steps = [
        step.model_copy(update={"plan": step.plan.model_copy(update={"k": max(step.plan.k, depth)})}) for step in steps
    ]
    answered: list[StepResult] = []
    for start in range(0, len(steps), STEPS_PER_CALL):
        part = steps[start : start + STEPS_PER_CALL]
        results = client.step(part, with_text=with_text, metrics=[metric or config.reward.metric])
        answered += [result for result in results if result is not None]
        if len(answered) < start + len(part):
            failure = getattr(client, "last_failure", None)
            raise EnvironmentUnavailableError(
                f"{start + len(part) - len(answered)} of {len(part)} {label} could not be graded before "
                f"client.deadline ({config.client.deadline:g} s), after {start} that were. "
                f"{f'Last failure: {failure}. ' if failure else ''}Check the service, or raise client.deadline."
            )
    return answered
