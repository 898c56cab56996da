"""Rewards of searches outside of a rollout: computed like those inside."""

from querylect.envs.schemas import StepResult
from querylect.train.questions import STEPS_PER_CALL, grade


class Client:
    """Scores every search by its depth."""

    def __init__(self):
        self.calls = []

    def step(self, steps, *, with_text=False, metrics=()):
        self.calls.append([step.question_id for step in steps])
        return [
            StepResult(question_id=step.question_id, ranking=[], reward=0.0, metrics={metrics[0]: step.plan.k / 1000})
            for step in steps
        ]


def test_many_searches_are_graded_in_calls_that_each_have_a_deadline():
    names, client = [str(number) for number in range(STEPS_PER_CALL + 1)], Client()
    results = grade(client, [(name, "x") for name in names], "recall@100", 10, "all")
    assert [result.question_id for result in results] == names
    assert client.calls == [names[:STEPS_PER_CALL], names[STEPS_PER_CALL:]]
    assert results[0].metrics == {"recall@100": 0.1}
