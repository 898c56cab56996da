"""Asking the environment what searches outside of a rollout are worth."""

from collections.abc import Sequence

from ..configs.schema import RunConfig
from ..envs.wire import Step, StepResult
from ..errors import EnvironmentUnavailableError
from ..rollouts.grow import EnvironmentLike


def grade(
    config: RunConfig, client: EnvironmentLike, steps: Sequence[Step], what: str, with_text: bool = False
) -> list[StepResult]:
    """One answered result per step, with `reward.metric` among its metrics; rankings carry texts where asked for.

    Rankings are as long as those of a rollout (RunConfig.search_depth), for the metric looks at all of them.
    Raises EnvironmentUnavailableError where one got no answer before the deadline: a guess would change what is
    trained on. `what` names the searches in that message.
    """
    steps = [
        step.model_copy(update={"plan": step.plan.model_copy(update={"k": max(step.plan.k, config.search_depth)})})
        for step in steps
    ]
    results = client.step(steps, with_text=with_text, metrics=[config.reward.metric]) if steps else []
    answered = [result for result in results if result is not None]
    if len(answered) < len(steps):
        raise EnvironmentUnavailableError(
            f"{len(steps) - len(answered)} of {len(steps)} {what} could not be graded before client.deadline "
            f"({config.client.deadline:g} s). Last failure: {getattr(client, 'last_failure', None)}. "
            "Check the service, or raise client.deadline."
        )
    return answered
