"""Growing trees: all questions of a step turn by turn, one batched generation and one batched retrieval per turn."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from ..configs.schema import RewardConfig, RolloutConfig
from ..data.types import Question
from ..envs.wire import Step, StepResult
from ..rewards.node import node_reward
from ..rewriters.base import Rewriter
from .engine import Engine
from .memory import give_back_freed_memory
from .speaking import Clock as Clock
from .speaking import Place, Speaker
from .streams import stream
from .tree import Hit, Node, Tree

ANSWERED_AT_ONCE = 192
"""Questions that are answered greedily side by side."""


class EnvironmentLike(Protocol):
    """The one call of the environment client that growing needs."""

    def step(
        self, steps: Sequence[Step], *, with_text: bool = False, metrics: Sequence[str] = ()
    ) -> list[StepResult | None]:
        """Rank and score; None = no answer before the deadline."""
        ...


class Grower(Speaker):
    """Grows trees for one rewriter, engine and environment."""

    def __init__(
        self,
        engine: Engine,
        rewriter: Rewriter,
        client: EnvironmentLike,
        rollout: RolloutConfig,
        reward: RewardConfig,
        extra_metrics: Sequence[str] = (),
    ) -> None:
        super().__init__(engine, rewriter, rollout)
        self.client, self.reward, self.extra_metrics = client, reward, extra_metrics
        self.searched = Clock()
        """The seconds of `clock`'s retrieve, by turn."""

    def grow(
        self,
        questions: Sequence[Question],
        branching: Sequence[int],
        greedy: bool = False,
        streams: Sequence[int] | None = None,
    ) -> list[Tree]:
        """One tree per question, in order; `branching[t]` samples under every node of turn t + 1.

        `streams` gives every question a random stream of its own (rollouts/streams.py): its tree then does not depend
        on the other questions. None draws from torch's global stream.

        A turn whose text fails the format is searched with nothing, earns only the format part, and still grows: its
        follow-up shows no documents. So does an unscorable turn.
        """
        own = streams or [0] * len(questions)
        places = [self.begin(question, its) for question, its in zip(questions, own, strict=True)]
        trees = [place.tree for place in places]
        for turn, width in enumerate(branching, start=1):
            sampling = self.sampling(turn, greedy)
            if streams is not None:
                sampling = replace(sampling, streams=tuple(place.stream for place in places))
            grown = self.say(places, turn, width, sampling)
            self._search(grown)
            if turn < len(branching):
                places = [
                    self.follow(place, node, [hit.document for hit in node.ranking], turn + 1) for place, node in grown
                ]
                for number, (place, (parent, _)) in enumerate(zip(places, grown, strict=True)):
                    place.stream = stream(parent.stream, number % width)
        return trees

    def answer(
        self,
        questions: Sequence[Question],
        turns: int,
        advance: Callable[[int, int], None] | None = None,
        at_least: int = 0,
    ) -> list[Tree]:
        """One greedy path of `turns` turns for each question; `advance` is told how many of how many are answered.

        The engine is called as often as for `at_least` questions: processes that share one call it together.
        """
        trees: list[Tree] = []
        for start in range(0, max(len(questions), at_least), ANSWERED_AT_ONCE):
            if advance is not None:
                advance(start, len(questions))
            trees += self.grow(questions[start : start + ANSWERED_AT_ONCE], [1] * turns, greedy=True)
            give_back_freed_memory()
        if advance is not None:
            advance(len(questions), len(questions))
        return trees

    def _search(self, grown: Sequence[tuple[Place, Node]]) -> None:
        metric = self.reward.metric
        asked: list[Node] = []
        steps: list[Step] = []
        for place, node in grown:
            if node.rewrite.plan is None:
                node.metrics = {metric: 0.0}
                node.reward = self._worth(node, 0.0)
            else:
                asked.append(node)
                steps.append(Step(question_id=place.tree.question.id, plan=node.rewrite.plan))
        started = time.perf_counter()
        results = self.client.step(steps, with_text=True, metrics=[metric, *self.extra_metrics]) if steps else []
        self.clock.add("retrieve", started)
        if grown:
            self.searched.add(f"turn{grown[0][1].turn}", started)
        for node, result in zip(asked, results, strict=True):
            if result is None:
                continue
            node.ranking = [Hit(hit.document, hit.score) for hit in result.ranking]
            node.metrics = dict(result.metrics)
            node.reward = self._worth(node, result.metrics[metric])

    def _worth(self, node: Node, metric: float) -> float | None:
        """The reward of a turn; one that was cut pays `reward.truncation_penalty`."""
        reward = node_reward(metric, node.rewrite.plan is not None, self.reward.format_weight)
        return reward if reward is None or node.finished else reward - self.reward.truncation_penalty
