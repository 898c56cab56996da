"""Growing trees: all questions of a step turn by turn, one batched generation and one batched retrieval per turn."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..configs.schema import RewardConfig, RolloutConfig
from ..data.types import Question
from ..envs.client.base import ReadingClient, StepClient
from ..envs.schemas import Step, StepResult
from ..rewards.reward import node_reward
from ..rewriters.base import RewritingStrategy
from .conversation import Branch, Conversation
from .conversation import Clock as Clock
from .engines.base import Engine, Sampling
from .memory import give_back_freed_memory
from .tree import Hit, Node, Tree

ANSWERED_AT_ONCE = 192
"""Questions that are answered greedily side by side."""


class TreeSampler(Conversation):
    """Grows trees for one rewriter, engine and environment."""

    def __init__(
        self,
        engine: Engine,
        rewriter: RewritingStrategy,
        client: StepClient,
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

        `streams` gives every question a random stream of its own (random_streams.py): its tree then does not depend
        on the other questions. None draws from torch's global stream.

        A turn whose text fails the format is not searched, earns nothing, and still grows: its follow-up shows no
        documents. A turn below a failed search is neither searched nor scored: it did not see what the
        retriever would have shown. A turn that stops does not grow, and is worth the ranking that it keeps; one that
        stops before any search (`rewriter.stop: answer`) is worth what the reader answers without documents.
        """
        question_streams = streams or [0] * len(questions)
        first = [self.begin(question, its) for question, its in zip(questions, question_streams, strict=True)]
        for branch in first:
            branch.tree.branching = tuple(branching)
        self.grow_from(first, branching, greedy, streams is not None)
        return [branch.tree for branch in first]

    def grow_from(self, branches: Sequence[Branch], branching: Sequence[int], greedy: bool, streams: bool) -> None:
        """Grow the trees of these first turns; `streams`: from their random streams, not from torch's global one."""
        for turn, width in enumerate(branching, start=1):
            grown = self.generate(branches, turn, width, self.sampling_of(branches, greedy, streams))
            started = time.perf_counter()
            self.search(grown)
            self.clock.add("retrieve", started)
            if grown:
                self.searched.add(f"turn{turn}", started)
            if turn < len(branching):
                branches = self.next_turns(grown, turn + 1, width)

    def sampling_of(self, branches: Sequence[Branch], greedy: bool, streams: bool) -> Sampling:
        """How the answers to these branches are sampled: from their random streams, or from torch's global one."""
        sampling = self.sampling(greedy)
        return replace(sampling, streams=tuple(branch.stream for branch in branches)) if streams else sampling

    def next_turns(self, grown: Sequence[tuple[Branch, Node]], turn: int, width: int) -> list[Branch]:
        """The branches of turn `turn` below all answers of the turn before, `width` to each of its branches; none below
        an answer that stopped."""
        return [
            self.next_turn(branch, node, [hit.document for hit in node.ranking], turn, number % width)
            for number, (branch, node) in enumerate(grown)
            if not node.rewrite.stop
        ]

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

    def search(self, grown: Sequence[tuple[Branch, Node]]) -> None:
        """Search what these turns ask for in one batch, and give them their rankings and rewards."""
        searched: list[Node] = []
        steps: list[Step] = []
        unsearched: list[Node] = []
        unsearched_ids: list[str] = []
        for branch, node in grown:
            if branch.parent is not None and branch.parent.reward is None:
                continue  # below an outage
            node.cost = 0.0 if node.reused or node.rewrite.unsearched else self.reward.search_price
            if node.reused and branch.last_searched is not None:
                searched_node = branch.last_searched
                node.ranking, node.metrics = searched_node.ranking, searched_node.metrics
                node.truncated = searched_node.truncated
                node.reward = self._reward_of(node, searched_node.metrics[self.reward.signal])
            elif node.rewrite.unsearched:
                unsearched.append(node)
                unsearched_ids.append(branch.tree.question.id)
            elif node.rewrite.plan is None:
                node.metrics = dict.fromkeys(self.reward.signals, 0.0)
                node.reward = self._reward_of(node, 0.0)
            else:
                searched.append(node)
                steps.append(Step(question_id=branch.tree.question.id, plan=node.rewrite.plan))
        for node, result in zip([*searched, *unsearched], self._results(steps, unsearched_ids), strict=True):
            if result is None:
                continue
            node.ranking = [Hit(hit.document, hit.score) for hit in result.ranking]
            node.metrics, node.truncated = dict(result.metrics), result.truncated
            node.reward = self._reward_of(node, result.metrics[self.reward.signal])

    def _results(self, steps: Sequence[Step], unsearched: Sequence[str]) -> list[StepResult | None]:
        """What the steps came to, then what the questions did whose path ended before any search: without a reader 0,
        as an empty ranking."""
        metrics = [self.reward.metric, *self.extra_metrics]
        if unsearched and isinstance(self.client, ReadingClient):
            return self.client.step_and_read(steps, unsearched, metrics=metrics)
        results = self.client.step(steps, with_text=True, metrics=metrics) if steps else []
        return [*results, *(StepResult.without_search(name, metrics) for name in unsearched)]

    def _reward_of(self, node: Node, metric: float) -> float | None:
        return node_reward(metric, node.rewrite.format_ok, self.reward.format_weight)
