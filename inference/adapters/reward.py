"""The reward of training as a function for other trainers: completions in, nDCG@10 of what they find out.

    reward = querylect.reward_function("http://127.0.0.1:8765", rewriter="direct")
    GRPOTrainer(model, reward_funcs=reward, train_dataset=reward.dataset("train")).train()

A completion is read as in training, strictly: where its format fails nothing is searched and the reward is 0. A search
without an answer before the deadline is None, never 0. What repeating cannot fix (an unknown question, a wrong token)
raises.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self

from ...configs.schema import ClientConfig, RewriterConfig
from ...data.types import Question
from ...envs.client.client import EnvironmentClient
from ...envs.schemas import PRIMARY_METRIC, Step
from ...errors import ConfigError, EnvironmentUnavailableError, RequestError
from ...llms.base import THINK_CLOSE, THINK_OPEN
from ...rewriters.registry import make_rewriter
from ...rewriters.retriever_info import RetrieverInfo

if TYPE_CHECKING:
    from datasets import Dataset

Completion = str | Sequence[Mapping[str, object]]
"""A text, or the messages of a chat, of which the last one is read."""


class RewardFunction:
    """nDCG@10 of completions that rewrite questions of one served environment, with the signature of TRL."""

    __name__ = PRIMARY_METRIC
    """The name under which a trainer logs it."""

    def __init__(
        self,
        environment: str | Sequence[str],
        rewriter: str | RewriterConfig = "general",
        *,
        client: ClientConfig | None = None,
    ) -> None:
        """`environment` is the URL of a running `querylect serve`, or several of its replicas; `client` sets token and
        deadline. `rewriter` is the form of the completions, which are first turns, by name or with its settings.

        Raises ConfigError for a rewriter that is unknown, may search nothing or asks a frozen model first, and as the
        client.
        """
        settings = RewriterConfig(name=rewriter) if isinstance(rewriter, str) else rewriter
        urls = [environment] if isinstance(environment, str) else environment
        self._client = EnvironmentClient(client or ClientConfig(), urls)
        self._rewriter = make_rewriter(settings, RetrieverInfo.from_service(self._client.info().retriever))
        if settings.stop == "answer" or self._rewriter.first_stage(Question("", "")) is not None:
            self.close()
            raise ConfigError(
                f"the rewriter {settings.name!r} asks a frozen model before the policy, or may stop without a search "
                "(rewriter.stop=answer); a reward function can do neither. Choose general or direct, or train with "
                "querylect."
            )
        self._questions: dict[str, Question] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    def rows(self, split: str) -> list[dict[str, object]]:
        """For each question of a split its `prompt`, the chat of the rewriter's first turn, and its `question_id`."""
        questions = self._client.questions(split)
        self._questions |= {question.id: question for question in questions}
        return [{"prompt": self._rewriter.first(question), "question_id": question.id} for question in questions]

    def dataset(self, split: str) -> "Dataset":
        """`rows` as a `train_dataset` of TRL."""
        from datasets import Dataset

        return Dataset.from_list(self.rows(split))

    def __call__(
        self,
        prompts: Sequence[object] | None = None,
        completions: Sequence[Completion] = (),
        question_id: Sequence[str] | None = None,
        **_: object,
    ) -> list[float | None]:
        """The reward of each completion, in [0, 1], by TRL's signature; all are searched in one batch.

        `question_id` names each completion's question; prompts and other columns are not read. None where the search
        had no answer before the deadline. Raises ConfigError without that column, RequestError for an unknown question,
        and as `EnvironmentClient.step`.
        """
        if question_id is None or len(question_id) != len(completions):
            raise ConfigError(
                f"{len(completions)} completions came with {len(question_id or ())} question ids. Give the dataset a "
                "column `question_id` with the ids of the environment's questions, as reward.dataset(split) has."
            )
        steps = [self._step(name, completion) for name, completion in zip(question_id, completions, strict=True)]
        results = iter(self._client.step([step for step in steps if step is not None]))
        rewards: list[float | None] = []
        for step in steps:
            result = next(results) if step is not None else None
            rewards.append(0.0 if step is None else None if result is None else result.reward)
        return rewards

    def value(self, question_id: str, completion: Completion) -> float:
        """The reward of one completion, for a scoring function of *verifiers* (with asyncio.to_thread).

        Raises EnvironmentUnavailableError where the search had no answer, and as a call.
        """
        (reward,) = self(completions=[completion], question_id=[question_id])
        if reward is None:
            raise EnvironmentUnavailableError(
                f"the search of question {question_id!r} failed: {self._client!r} did not answer in time; the last "
                f"failure was {self._client.last_failure}."
            )
        return reward

    def _step(self, question_id: str, completion: Completion) -> Step | None:
        """The search of a completion; None where its format failed."""
        text = (completion if isinstance(completion, str) else _text(completion[-1])).lstrip()
        text = text.removeprefix(self._rewriter.opening)  # which `parse` adds: TRL prefills no answer
        plan = self._rewriter.parse(self._question(question_id), text, 1).plan
        return None if plan is None else Step(question_id=question_id, plan=plan)

    def _question(self, question_id: str) -> Question:
        """The question of an id; the splits are read until it is found."""
        for split in self._client.info().splits if question_id not in self._questions else ():
            self.rows(split)
        if question_id not in self._questions:
            raise RequestError(f"the environment has no question {question_id!r}. Take ids of reward.rows(split).")
        return self._questions[question_id]


def _text(message: Mapping[str, object]) -> str:
    """The answer in a message as it was sampled: TRL takes the thoughts out where the tokenizer says how."""
    thoughts, content = message.get("reasoning_content"), str(message.get("content") or "")
    return f"{THINK_OPEN}{thoughts}{THINK_CLOSE}{content}" if thoughts is not None else content


reward_function = RewardFunction
"""The name in the package's API."""
