"""What searches outside of a rollout are worth: graded like those inside, or not at all."""

import pytest
from querylect.configs.load import load_config
from querylect.envs.plan import SearchPlan
from querylect.envs.server.schemas import Step, StepResult
from querylect.errors import EnvironmentUnavailableError
from querylect.train.grading import grade

from ..raising import refused


class Client:
    """Gives every search the worth of its depth, and no answer to the question `lost`."""

    def step(self, steps, *, with_text=False, metrics=()):
        return [
            None
            if step.question_id == "lost"
            else StepResult(
                question_id=step.question_id, ranking=[], reward=0.0, metrics=dict.fromkeys(metrics, step.plan.k / 1000)
            )
            for step in steps
        ]


@pytest.mark.parametrize(
    ("overrides", "depth"), [([], 10), (["reward.metric=recall@100"], 100), (["rollout.documents=30"], 30)]
)
def test_a_search_is_as_deep_as_in_a_rollout(overrides, depth):
    config = load_config("demo", overrides)
    (result,) = grade(config, Client(), [Step(question_id="q", plan=SearchPlan.of("x"))], "searches")
    assert result.metrics[config.reward.metric] == depth / 1000


def test_what_was_not_answered_is_not_guessed():
    steps = [Step(question_id=name, plan=SearchPlan.of("x")) for name in ("q", "lost")]
    with refused(EnvironmentUnavailableError, None, "1 of 2 searches"):
        grade(load_config("demo"), Client(), steps, "searches")
