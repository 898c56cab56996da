"""Rewards of searches outside of a rollout: computed like those inside, or refused."""

from querylect.configs.load import load_config
from querylect.envs.plan import SearchPlan
from querylect.envs.schemas import Step, StepResult
from querylect.train.questions import STEPS_PER_CALL, grade


class Client:
    """Scores every search by its depth; the question `lost` gets no answer."""

    def __init__(self):
        self.calls = []

    def step(self, steps, *, with_text=False, metrics=()):
        self.calls.append([step.question_id for step in steps])
        return [
            None
            if step.question_id == "lost"
            else StepResult(
                question_id=step.question_id, ranking=[], reward=0.0, metrics=dict.fromkeys(metrics, step.plan.k / 1000)
            )
            for step in steps
        ]


def steps(*names):
    return [Step(question_id=name, plan=SearchPlan.of("x")) for name in names]


def test_many_searches_are_graded_in_calls_that_each_have_a_deadline():
    names, client = [str(number) for number in range(STEPS_PER_CALL + 1)], Client()
    results = grade(load_config("demo"), client, steps(*names), "all")
    assert [result.question_id for result in results] == names
    assert client.calls == [names[:STEPS_PER_CALL], names[STEPS_PER_CALL:]]
