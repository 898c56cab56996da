"""What soak.py counts and compares: samples that add up, and rewards that nobody invented."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from querylect.configs.schema import ClientConfig, RunConfig
from querylect.data.types import Question
from querylect.envs.client.client import EnvironmentClient, Step, StepResult
from querylect.envs.environment import Environment
from querylect.envs.plan import SearchPlan
from querylect.rewards.reward import node_reward
from querylect.rewriters.card import RetrieverCard
from querylect.rewriters.registry import make_rewriter

WORDS = ["", "hand", "abnormal", "heart", "short", "blood", "loss of", "late"]
SHOWN = 20


@dataclass
class Row:
    """One line of the table: what was done, what came back, and the promises that were broken."""

    what: str
    statuses: Counter = field(default_factory=Counter)
    asked: int = 0
    scored: int = 0
    unscorable: int = 0
    memory: tuple[int, int] | None = None
    """Resident bytes of the service before and after."""
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def check(self, holds: bool, otherwise: str) -> None:
        """Note a promise that was broken."""
        if not holds and len(self.wrong) < SHOWN:
            self.wrong.append(otherwise)

    def add_up(self) -> None:
        """Every sample has one outcome."""
        self.check(
            self.asked == self.scored + self.unscorable,
            f"{self.asked} samples asked for, {self.scored} scored and {self.unscorable} unscorable do not add up",
        )


class Asker:
    """Asks for samples through the project's client and compares every reward with the one computed here."""

    def __init__(self, here: Environment, client: ClientConfig, url: str) -> None:
        self._here, self._client, self._url = here, client, url
        self._questions = here.questions("train")

    def client(self) -> EnvironmentClient:
        """A client with the right token."""
        return EnvironmentClient(self._client, [self._url])

    def samples(self, number: int) -> list[Step]:
        """Plans that nobody asked for before, mostly: questions with a word added."""
        return [
            Step(question_id=question.id, plan=SearchPlan.of(f"{question.text} {random.choice(WORDS)}"))
            for question in random.choices(self._questions, k=number)
        ]

    def ask(self, row: Row, clients: int, samples: int, times: int = 1) -> None:
        """Several clients that ask at once, each so many times."""

        async def one() -> None:
            async with self.client() as client:
                before = row.unscorable
                for _ in range(times):
                    await self.step(row, client, samples)
                if clients == 1:
                    row.check(client.stats.unscorable == row.unscorable - before, "the client counts other samples")

        async def together() -> None:
            await asyncio.gather(*(one() for _ in range(clients)))

        asyncio.run(together())

    async def step(self, row: Row, client: EnvironmentClient, samples: int) -> None:
        """One call of a client, counted and compared."""
        asked = self.samples(samples)
        results = await client.step(asked)
        self._compare(row, asked, results)

    def _compare(self, row: Row, asked: Sequence[Step], results: Sequence[StepResult | None]) -> None:
        row.asked += len(asked)
        rankings = self._here.search([step.plan for step in asked])
        for step, result, ranking in zip(asked, results, rankings, strict=True):
            if result is None:
                row.unscorable += 1
                continue
            row.scored += 1
            worth = self._here.score(step.question_id, ranking, ["ndcg@10"])["ndcg@10"]
            row.check(result.reward == worth, f"{step.question_id}: reward {result.reward}, computed here {worth}")


def judge_run(row: Row, folder: Path, config: RunConfig, here: Environment) -> None:
    """Compare what a run recorded with what its plans are worth here; count its samples."""
    rewriter = make_rewriter(config.rewriter, RetrieverCard.from_service(here.card), config.search_depth)
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trees = [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]
    row.check([step["step"] for step in steps] == [*range(1, len(steps) + 1)], "a step is missing or twice")
    row.check(
        Counter(tree["step"] for tree in trees) == {step["step"]: config.train.questions_per_step for step in steps},
        "a tree is missing or twice",
    )
    missing: Counter = Counter()
    values: set[float] = set()
    failed = 0
    for tree in trees:
        question = Question(tree["question_id"], tree["question"])
        for node in [*tree["turns"], *(child for turn in tree["turns"] for child in turn["children"])]:
            plan = rewriter.parse(question, node["text"], node["turn"]).plan
            reward, metric = node["reward"], None
            if plan is None:
                failed += 1
            else:
                row.asked += 1
                row.scored += reward is not None
                row.unscorable += reward is None
                missing[tree["step"], node["turn"]] += reward is None
                (ranking,) = here.search([plan])
                if reward is not None:
                    row.check(node["ranking"] == [hit.id for hit in ranking], f"{question.id}: another ranking")
                    metric = here.score(question.id, ranking, [config.reward.metric])[config.reward.metric]
            expected = node_reward(metric, plan is not None, config.reward.format_weight)
            row.check(reward == expected, f"step {tree['step']}, {question.id}: reward {reward}, computed {expected}")
            row.check(reward is not None or not (node["ranking"] or node["metrics"]), "a sample half scored")
            values |= {reward} - {None}
    width = config.train.questions_per_step
    for step in steps:
        for turn, several in enumerate(config.rollout.branching, start=1):
            width = width * several if turn > 1 else config.train.questions_per_step * several
            told, counted = step[f"unscorable/turn{turn}"], missing[step["step"], turn] / width
            row.check(abs(told - counted) < 1e-5, f"step {step['step']} records {told} unscorable, its trees {counted}")
    row.notes.append(
        f"{len(steps)} steps, none missing or twice; {row.scored} rewards ({len(values)} different values) equal to "
        f"those computed in-process, {failed} format failures without a search"
    )
