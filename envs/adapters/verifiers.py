"""The environment for the library *verifiers* (0.4): a taskset of questions and the environment that answers queries.

The policy's reply is a search, one query a line; the next user turn shows what it found, for `turns` turns. nDCG@10 of
the last search is the reward, and each turn's value is a metric. A reply without a query has the reward 0. If the
service does not answer, or refuses, the episode fails with that error and has no reward.

    vf-eval querylect --env.taskset.urls '["http://127.0.0.1:8765"]'
"""

import asyncio
from collections.abc import Iterator

import verifiers.v1 as vf
from pydantic import Field
from verifiers.v1.harnesses.null import NullHarnessConfig

from ...configs.schema import ClientConfig
from ...data.history import lines_of
from ...data.types import Utterance
from ...errors import EnvironmentUnavailableError
from ..client.client import EnvironmentClient
from ..plan import SearchPlan
from ..schemas import PRIMARY_METRIC, Step, StepResult
from . import plan_of_reply, show

__all__ = ["RetrievalEnv", "RetrievalTaskset"]

INSTRUCTION = (
    "Find the documents that answer the question. Reply with a search query and nothing else; with several lines, each "
    "is searched and the best documents of all are kept. You then see what was found and may reply with a better query."
)
NO_QUERY = "Your reply held no query."


class RetrievalTasksetConfig(vf.TasksetConfig):
    """Which service, and which of its questions."""

    urls: list[str] = Field(default_factory=list)
    """Replicas of one environment service (`querylect serve`); QUERYLECT_TOKEN holds its token."""
    split: str = "train"
    deadline: float = 120.0
    """Seconds for one search over all attempts and replicas."""
    instruction: str = INSTRUCTION
    """System prompt of every task."""

    @property
    def client(self) -> ClientConfig:
        return ClientConfig(urls=self.urls, deadline=self.deadline)


class QuestionData(vf.TaskData):
    """One question; `id` is its id in the environment."""

    id: str


class QuestionTask(vf.Task[QuestionData]):
    """A question to search for."""


class RetrievalTaskset(vf.Taskset[QuestionTask, RetrievalTasksetConfig]):
    """The questions of a split, in the service's order."""

    def load(self) -> Iterator[QuestionTask]:
        """Ask the service for its questions."""
        with EnvironmentClient(self.config.client) as client:
            for question in client.questions(self.config.split):
                prompt = lines_of([*question.history, Utterance("user", question.text)])
                data = QuestionData(
                    id=question.id,
                    prompt=prompt if question.history else question.text,
                    system_prompt=self.config.instruction,
                )
                yield QuestionTask(data, self.config.task)


class RetrievalEnvConfig(vf.EnvConfig):
    """Who searches, and how often."""

    agent: vf.AgentConfig = vf.AgentConfig(harness=NullHarnessConfig(id="null"), runtime=vf.SubprocessConfig())
    turns: int = 2
    """Searches in one episode; the last one counts."""
    shown: int = 5
    """Documents of a ranking that the next turn shows."""


class RetrievalEnv(vf.Env[RetrievalEnvConfig]):
    """Searches what the agent replies. Override `plan` to read replies of another form."""

    async def start(self) -> None:
        """Open the connection that all episodes share."""
        self._client = EnvironmentClient(self.taskset.config.client)

    async def stop(self) -> None:
        if hasattr(self, "_client"):
            self._client.close()

    def plan(self, reply: str) -> SearchPlan | None:
        """The search that a reply asks for; None where it asks for none."""
        return plan_of_reply(reply)

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        """Play one question: reply, search, show, up to `turns` times."""
        values: list[float] = []
        async with agents.agent.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                plan = self.plan(segment.last_reply)
                result = None if plan is None else await self._search(task.data.id, plan)
                values.append(0.0 if result is None else result.reward)
                if len(values) == self.config.turns:
                    break
                message = NO_QUERY if result is None else show(result.ranking[: self.config.shown])
                segment = await interaction.turn(message)
        trace = interaction.trace
        trace.record_metrics({f"turn_{turn}_{PRIMARY_METRIC}": value for turn, value in enumerate(values, start=1)})
        if values:
            trace.record_reward(PRIMARY_METRIC, values[-1])

    async def _search(self, question_id: str, plan: SearchPlan) -> StepResult:
        step = Step(question_id=question_id, plan=plan)
        (result,) = await asyncio.to_thread(self._client.step, [step], with_text=True)
        if result is None:
            raise EnvironmentUnavailableError(
                f"the search of question {question_id!r} failed: no service answered in "
                f"{self.taskset.config.deadline:g} s; the last failure was {self._client.last_failure}."
            )
        return result
