"""Score searches that are not part of a rollout."""

from collections.abc import Sequence

from ..configs.schema import RunConfig
from ..envs.client.base import StepClient
from ..envs.server.schemas import Step, StepResult
from ..errors import EnvironmentUnavailableError


def grade(
    config: RunConfig, client: StepClient, steps: Sequence[Step], label: str, with_text: bool = False
) -> list[StepResult]:
    """One result per step, with `reward.metric` among its metrics; `with_text` adds the texts of documents.

    Rankings are as deep as those of a rollout (RunConfig.search_depth), because the metric uses all ranks.
    Raises EnvironmentUnavailableError if any step got no answer before the deadline: a guess would change the training
    data. `label` names the searches in that message.
    """
    steps = [
        step.model_copy(update={"plan": step.plan.model_copy(update={"k": max(step.plan.k, config.search_depth)})})
        for step in steps
    ]
    results = client.step(steps, with_text=with_text, metrics=[config.reward.metric]) if steps else []
    answered = [result for result in results if result is not None]
    if len(answered) < len(steps):
        raise EnvironmentUnavailableError(
            f"{len(steps) - len(answered)} of {len(steps)} {label} could not be graded before client.deadline "
            f"({config.client.deadline:g} s). Last failure: {getattr(client, 'last_failure', None)}. "
            "Check the service, or raise client.deadline."
        )
    return answered
