"""The environment for TRL's `GRPOTrainer(environment_factory=…)`: search is a tool, the last ranking is the reward.

The policy calls `search` any number of times and sees the results; the reward of a rollout is nDCG@10 of the last
ranking, and 0 without a search. If the service did not answer, the rollout has no reward, and TRL leaves it out of the
baseline. An error that repeating cannot fix (a wrong token, two different indexes) stops the training; otherwise TRL
would show it to the policy as the tool's answer.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...data.types import Question
from ...errors import QuerylectError
from ..client.client import EnvironmentClient
from ..plan import SearchPlan, is_unicode
from ..schemas import Step
from . import show

if TYPE_CHECKING:
    from datasets import Dataset

INSTRUCTION = (
    "Find the documents that answer the question. Call the tool `search` with a query; you see what it finds and may "
    "search again with a better one. Your last search counts."
)


class RetrievalEnvironment:
    """One rollout: `reset` gives it a question, `search` is the policy's tool, `get_reward` scores it."""

    def __init__(self, client: EnvironmentClient, shown: int = 5) -> None:
        """`shown` documents of each ranking are shown to the policy; all instances may share one client."""
        self._client, self._shown = client, shown
        self.reset("")

    def reset(self, question_id: str, **_: object) -> None:
        """Begin with a question of the environment; the other columns of the row are not needed."""
        self._question_id, self._reward, self._failed_search = question_id, 0.0, False
        self._error: QuerylectError | None = None

    def search(self, query: str) -> str:
        """Search the documents.

        Args:
            query: What to search for.

        Returns:
            The documents found, best first.
        """
        if not isinstance(query, str) or not is_unicode(query):
            raise ValueError("the query must be a text")
        step = Step(question_id=self._question_id, plan=SearchPlan.of(query))
        try:
            (result,) = self._client.step([step], with_text=True)
        except QuerylectError as error:
            self._error = error
            raise
        if result is None:
            self._failed_search = True
            return "The search did not answer."
        self._reward = result.reward
        return show(result.ranking[: self._shown])

    def get_reward(self) -> float | None:
        """nDCG@10 of the last search, 0 without one, None where a search had no answer.

        Raises what made a search impossible.
        """
        if self._error is not None:
            raise self._error
        return None if self._failed_search else self._reward


def environment_factory(client: EnvironmentClient, shown: int = 5) -> Callable[[], RetrievalEnvironment]:
    """What `GRPOTrainer` takes: a function that makes one more environment over the same client."""
    return lambda: RetrievalEnvironment(client, shown)


def question_dataset(client: EnvironmentClient, split: str, instruction: str = INSTRUCTION) -> "Dataset":
    """The questions of a split as `train_dataset`: a chat `prompt` and the `question_id` that `reset` takes."""
    from datasets import Dataset

    def row(question: Question) -> dict[str, object]:
        history = [{"role": entry.role, "content": entry.text} for entry in question.history]
        prompt = [{"role": "system", "content": instruction}, *history, {"role": "user", "content": question.text}]
        return {"prompt": prompt, "question_id": question.id}

    return Dataset.from_list([row(question) for question in client.questions(split)])
