"""Growing trees: all questions of a step turn by turn, one batched generation and one batched retrieval per turn."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ..configs.schema import RewardConfig, RolloutConfig
from ..data.types import Document, Question
from ..envs.wire import Step, StepResult
from ..errors import ConfigError
from ..rewards.node import node_reward
from ..rewriters.base import Message, Rewriter
from .chat import Chat
from .engine import Engine, Sample, Sampling
from .memory import give_back_freed_memory
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


@dataclass(slots=True)
class _Growing:
    """A place where the next turn attaches."""

    tree: Tree
    messages: list[Message]
    prompt_ids: list[int]
    parent: Node | None
    stream: int = 0
    """Where the random numbers of its samples come from."""


class Grower:
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
        self.engine, self.rewriter, self.client = engine, rewriter, client
        self.rollout, self.reward, self.extra_metrics = rollout, reward, extra_metrics
        self.chat = Chat(engine.tokenizer, getattr(engine, "stop_ids", {engine.tokenizer.eos_token_id}))
        self.clock = Clock()
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
        trees = [Tree(question, []) for question in questions]
        places: list[_Growing] = []
        for tree, own in zip(trees, streams or [0] * len(trees), strict=True):
            messages = self.rewriter.first(self.chat.plain_question(tree.question))
            places.append(_Growing(tree, messages, self.chat.first(messages, self.rewriter.opening), None, own))
        for turn, width in enumerate(branching, start=1):
            prompts = [place.prompt_ids for place in places]
            self.check_length(prompts)
            sampling = Sampling(
                temperature=0.0 if greedy else self.rollout.temperature,
                top_p=1.0 if greedy else self.rollout.top_p,
                max_new_tokens=self.rollout.new_tokens(turn),
            )
            started = time.perf_counter()
            if streams is not None:
                sampling = replace(sampling, streams=tuple(place.stream for place in places))
            samples = self.engine.generate(prompts, width, sampling)
            self.clock.add("generate", started)
            grown = [
                (place, self._node(place, sample, turn))
                for place, several in zip(places, samples, strict=True)
                for sample in several
            ]
            for place, node in grown:
                (place.parent.children if place.parent else place.tree.roots).append(node)
            self._search(grown)
            if turn < len(branching):
                places = [self._next(place, node, turn + 1) for place, node in grown]
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

    def _node(self, place: _Growing, sample: Sample, turn: int) -> Node:
        text = self.chat.text(sample.ids)
        rewrite = self.rewriter.parse(place.tree.question, text, turn)
        return Node(turn, place.prompt_ids, sample.ids, sample.logprobs, sample.finished, text, rewrite)

    def _search(self, grown: Sequence[tuple[_Growing, Node]]) -> None:
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

    def _next(self, place: _Growing, node: Node, turn: int) -> _Growing:
        documents = self.shown([hit.document for hit in node.ranking[: self.rollout.documents]])
        message = self.rewriter.follow_up(self.chat.plain_question(place.tree.question), documents, turn)
        ids = self.chat.continuation(place.messages, message, node.completion_ids, self.rewriter.opening)
        messages: list[Message] = [
            *place.messages,
            {"role": "assistant", "content": self.rewriter.opening + node.text},
            {"role": "user", "content": message},
        ]
        return _Growing(place.tree, messages, [*node.prompt_ids, *node.completion_ids, *ids], node)

    def shown(self, documents: Sequence[Document]) -> list[Document]:
        """The documents as a turn sees them, each and all together within their token budgets; the last may be cut."""
        left = self.rollout.observation_tokens
        if left is None:
            return [self.shorten(document) for document in documents]
        kept = []
        for document in documents:
            short = self.shorten(document, left)
            if not (short.title or short.text) and self.chat.plain(document.title + document.text).strip():
                break  # there is no room for any of it
            kept.append(short)
            left -= self.chat.count(short.title) + self.chat.count(short.text)
        return kept

    def shorten(self, document: Document, most: int | None = None) -> Document:
        """Title and text cut so that both together keep to the token budget of one document, and to `most` tokens."""
        budget = self.rollout.document_tokens if most is None else min(most, self.rollout.document_tokens)
        title = self.chat.cut(document.title, budget)
        left = budget - self.chat.count(title)
        return Document(document.id, title, self.chat.cut(document.text, left) if left > 0 else "")

    def check_length(self, prompts: Sequence[Sequence[int]]) -> None:
        """Raise ConfigError where a prompt is longer than `rollout.max_prompt_tokens`."""
        longest = max(map(len, prompts), default=0)
        if longest > self.rollout.max_prompt_tokens:
            raise ConfigError(
                f"a prompt has {longest} tokens and rollout.max_prompt_tokens is {self.rollout.max_prompt_tokens}. "
                "Raise it, show fewer documents (rollout.documents), or fewer tokens of each (rollout.document_tokens) "
                "or of all (rollout.observation_tokens)."
            )
