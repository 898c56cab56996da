"""Trees of turns: all questions of a step turn by turn, with one batched generation and one batched search per turn."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..configs.schema import RewardConfig
from ..data.types import Document, Question
from ..envs.client.base import ReadingClient, StepClient
from ..envs.schemas import Step, StepResult
from ..rewards.reward import node_reward
from .conversation import Branch, Conversation, PolicyConversation
from .memory import give_back_freed_memory
from .random_streams import stream
from .tree import Hit, Node, Tree

ANSWERED_AT_ONCE = 192
"""Questions that are answered greedily side by side."""


@dataclass(slots=True)
class Clock:
    """Seconds spent since it was last read, by activity."""

    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, activity: str, since: float) -> None:
        """Count the time from `since` (perf_counter) until now."""
        self.seconds[activity] = self.seconds.get(activity, 0.0) + time.perf_counter() - since

    def read(self) -> dict[str, float]:
        """Return and reset the counts."""
        seconds, self.seconds = self.seconds, {}
        return seconds


class TreeSampler:
    """Grows trees of one conversation and environment."""

    def __init__(
        self,
        conversation: Conversation,
        client: StepClient,
        reward: RewardConfig,
        extra_metrics: Sequence[str] = (),
    ) -> None:
        self.conversation, self.client, self.reward = conversation, client, reward
        self.clock = Clock()
        self.turn_seconds: list[float] = []
        """Seconds of generation and search by turn of the last `grow`."""
        self._metrics, self._signals = [reward.metric, *extra_metrics], reward.signals

    @property
    def policy(self) -> PolicyConversation:
        """The conversation of a policy in this process."""
        assert isinstance(self.conversation, PolicyConversation)
        return self.conversation

    def grow(
        self,
        questions: Sequence[Question],
        branching: Sequence[int],
        greedy: bool = False,
        streams: Sequence[int] = (),
    ) -> list[Tree]:
        """One tree per question, in order; `branching[t]` samples under every node of turn t + 1.

        `streams`: the random stream of each question (random_streams.py), by default one named by its id; its tree does
        not depend on the other questions.

        A turn whose text fails the format is not searched, earns nothing, and still grows: its follow-up shows no
        documents. Below a failed search nothing grows: it would not see what the retriever would have shown. A turn
        that stops does not grow, and is worth the ranking that it keeps; one that stops before any search
        (`rewriter.stop: answer`) is worth what the reader answers without documents.
        """
        streams = streams or [stream(question.id) for question in questions]
        first = [self.conversation.begin(question, its) for question, its in zip(questions, streams, strict=True)]
        for branch in first:
            branch.tree.branching = tuple(branching)
        self.grow_from(first, branching, greedy)
        return [branch.tree for branch in first]

    def grow_from(self, branches: Sequence[Branch], branching: Sequence[int], greedy: bool) -> None:
        """Grow the trees of these first turns."""
        self.turn_seconds = []
        for turn, width in enumerate(branching, start=1):
            started = time.perf_counter()
            grown = self.conversation.generate(branches, turn, width, greedy)
            self.clock.add("generate", started)
            searching = time.perf_counter()
            self.search(grown)
            self.clock.add("retrieve", searching)
            if grown:
                self.clock.add(f"retrieve/turn{turn}", searching)
            self.turn_seconds.append(time.perf_counter() - started)
            branches = [self.next_turn(branch, node) for branch, node in grown if node.grows and turn < len(branching)]

    def next_turn(self, branch: Branch, node: Node) -> Branch:
        """The branch under a node that was searched."""
        return self.conversation.next_turn(branch, node, [hit.document for hit in node.ranking])

    def answer(self, questions: Sequence[Question], turns: int, at_least: int = 0) -> list[Tree]:
        """One greedy path of `turns` turns for each question.

        The engine is called as often as for `at_least` questions: processes that share one call it together.
        """
        trees: list[Tree] = []
        for start in range(0, max(len(questions), at_least), ANSWERED_AT_ONCE):
            trees += self.grow(questions[start : start + ANSWERED_AT_ONCE], [1] * turns, greedy=True)
            give_back_freed_memory()
        return trees

    def search(self, grown: Sequence[tuple[Branch, Node]]) -> None:
        """Search what these turns ask for in one batch, and give them their rankings and rewards. Documents that no
        turn is shown have no texts."""
        searched: list[tuple[Node, bool]] = []
        steps: list[Step] = []
        unsearched: list[tuple[Node, str]] = []
        for branch, node in grown:
            tree, last, plan = branch.tree, branch.last_searched, node.rewrite.plan
            if node.reused and last is not None:
                node.ranking, node.metrics, node.truncated = last.ranking, last.metrics, last.truncated
                self._score(node)
            elif not node.rewrite.format_ok:
                node.cost, node.metrics = self.reward.search_price, dict.fromkeys(self._signals, 0.0)
                self._score(node)
            elif plan is None:
                unsearched.append((node, tree.question.id))
            else:
                node.cost = self.reward.search_price
                searched.append((node, node.turn < len(tree.branching)))
                steps.append(Step(question_id=tree.question.id, plan=plan))
        with_text = any(shown for _, shown in searched)
        results = self._results(steps, [name for _, name in unsearched], with_text)
        nodes = [*searched, *((node, False) for node, _ in unsearched)]
        for (node, shown), result in zip(nodes, results, strict=True):
            if result is not None:
                node.ranking = [
                    Hit(hit.document if shown else Document(hit.id, "", ""), hit.score) for hit in result.ranking
                ]
                node.metrics, node.truncated = dict(result.metrics), result.truncated
                self._score(node)

    def _results(self, steps: Sequence[Step], unsearched: Sequence[str], with_text: bool) -> list[StepResult | None]:
        """The results of the steps, then those of questions whose path ended before any search: what a reader answers
        without documents; without a reader 0, as of an empty ranking."""
        if unsearched and isinstance(self.client, ReadingClient):
            return self.client.step_and_read(steps, unsearched, metrics=self._metrics)
        results = self.client.step(steps, with_text=with_text, metrics=self._metrics) if steps else []
        return [*results, *(StepResult.without_search(name, self._metrics) for name in unsearched)]

    def _score(self, node: Node) -> None:
        metric = node.metrics[self._signals[-1]]
        node.reward = node_reward(metric, node.rewrite.format_ok, self.reward.format_weight)
