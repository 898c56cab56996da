"""Trees of turns: all questions of a step, turn by turn, with one batched generation and one batched search per turn.

A question becomes prompt ids (`begin`), samples of an engine (`generate`), search plans (`node`), rankings and rewards
(`TreeSampler.search`), and the shown documents become the prompt of the next turn (`next_turn`). `Conversation` is all
of this but the search: training, evaluation and rewriting for a user give a policy the same prompt ids.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..configs.schema import RewardConfig, RolloutConfig
from ..data.types import Document, Question
from ..envs.client.base import ReadingClient, StepClient
from ..envs.schemas import Step, StepResult
from ..errors import ConfigError
from ..llms.base import Message
from ..rewards.reward import node_reward
from ..rewriters.base import RewritingStrategy
from ..rewriters.stop import keep
from .chat import Chat
from .engines.base import Completion, Engine, Sampling
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


@dataclass(slots=True)
class Branch:
    """The branch of the next turn: where it attaches to the tree, and its prompt."""

    tree: Tree
    messages: list[Message]
    prompt_ids: list[int]
    parent: Node | None
    stream: int
    """The random stream of its samples."""
    last_searched: Node | None = None
    """The last turn before with a search plan, whose ranking a stop keeps."""

    def attach(self, node: Node) -> None:
        """Make an answer to this prompt part of the tree."""
        (self.parent.children if self.parent else self.tree.roots).append(node)


class Conversation:
    """Samples turns from one policy with the prompts of one rewriter; searches nothing."""

    def __init__(self, engine: Engine, rewriter: RewritingStrategy, rollout: RolloutConfig) -> None:
        self.engine, self.rewriter, self.rollout = engine, rewriter, rollout
        self.chat = Chat(engine.tokenizer, engine.stop_ids)
        self.clock = Clock()

    def begin(self, question: Question, its_stream: int = 0) -> Branch:
        """The first turn of a question, in a new tree."""
        messages = self.rewriter.first(self.with_cut_history(question))
        return Branch(Tree(question, []), messages, self.chat.first(messages, self.rewriter.opening), None, its_stream)

    def generate(self, branches: Sequence[Branch], turn: int, width: int, greedy: bool) -> list[tuple[Branch, Node]]:
        """Sample `width` answers for every branch in one batch; each becomes a tree node, returned with its branch.

        Raises ConfigError as `check_length`.
        """
        prompts = [branch.prompt_ids for branch in branches]
        self.check_length(prompts)
        started = time.perf_counter()
        sampled = self.engine.generate(prompts, width, self.sampling(branches, greedy))
        self.clock.add("generate", started)
        answered = zip(branches, sampled, strict=True)
        nodes = [(branch, self.node(branch, sample, turn)) for branch, samples in answered for sample in samples]
        for branch, node in nodes:
            branch.attach(node)
        return nodes

    def next_turn(
        self, branch: Branch, node: Node, documents: Sequence[Document], turn: int, number: int = 0
    ) -> Branch:
        """The branch of turn `turn` under `node`, whose message shows `documents`, cut to their token budgets.

        `documents` is empty where nothing was searched or found. `number` is that of `node` among the answers of
        `branch`, and gives the new branch its random stream.
        """
        message = self.rewriter.follow_up(
            self.with_cut_history(branch.tree.question), self.cut_documents(documents[: self.rollout.documents]), turn
        )
        ids = self.chat.continuation(branch.messages, message, node.completion_ids, self.rewriter.opening)
        messages: list[Message] = [
            *branch.messages,
            {"role": "assistant", "content": self.rewriter.opening + node.text},
            {"role": "user", "content": message},
        ]
        prompt_ids = [*node.prompt_ids, *node.completion_ids, *ids]
        last_searched = node if node.rewrite.plan is not None else branch.last_searched
        return Branch(branch.tree, messages, prompt_ids, node, stream(branch.stream, number), last_searched)

    def sampling(self, branches: Sequence[Branch], greedy: bool) -> Sampling:
        """How the answers to these branches are sampled."""
        rollout, streams = self.rollout, tuple(branch.stream for branch in branches)
        if greedy:
            return Sampling(temperature=0.0, max_new_tokens=rollout.max_new_tokens, streams=streams)
        return Sampling(rollout.temperature, rollout.top_p, rollout.max_new_tokens, streams)

    def node(self, branch: Branch, sample: Completion, turn: int) -> Node:
        """The node of an answer, which is not part of the tree yet."""
        text = self.chat.text(sample.ids)
        rewrite = self.rewriter.parse(branch.tree.question, text, turn)
        last = branch.last_searched
        if rewrite.stop and last is not None:
            rewrite = keep(rewrite, last.rewrite.plan)
        node = Node(turn, branch.prompt_ids, sample.ids, sample.logprobs, sample.finished, text, rewrite)
        node.reused = rewrite.stop and last is not None
        return node

    def with_cut_history(self, question: Question) -> Question:
        """The question as prompts show it, its history cut to `rollout.history_tokens`."""
        return self.chat.plain_question(question, self.rollout.history_tokens)

    def cut_documents(self, documents: Sequence[Document]) -> list[Document]:
        """The documents as a turn shows them, within the token budgets of each and of all; the last may be cut."""
        left = self.rollout.observation_tokens
        shortened = []
        for document in documents:
            budget = self.rollout.document_tokens if left is None else min(left, self.rollout.document_tokens)
            title = self.chat.cut(document.title, budget)
            used = self.chat.count(title)
            text = self.chat.cut(document.text, budget - used) if used < budget else ""
            if left is not None:
                if not (title or text) and self.chat.plain(document.title + document.text).strip():
                    break  # the remaining budget takes no part of it
                left -= used + self.chat.count(text)
            shortened.append(Document(document.id, title, text))
        return shortened

    def check_length(self, prompts: Sequence[Sequence[int]]) -> None:
        """Raise ConfigError where a prompt is longer than `rollout.max_prompt_tokens`."""
        longest = max(map(len, prompts), default=0)
        if longest > self.rollout.max_prompt_tokens:
            raise ConfigError(
                f"a prompt has {longest} tokens and rollout.max_prompt_tokens is {self.rollout.max_prompt_tokens}. "
                "Raise it, show fewer documents (rollout.documents), fewer tokens of each (rollout.document_tokens) or "
                "of all (rollout.observation_tokens), or less of a question's history (rollout.history_tokens)."
            )


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
        self.client, self.reward = client, reward
        self._metrics, self._signals = [reward.metric, *extra_metrics], reward.signals

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
        documents. A turn below a failed search is neither searched nor scored: it did not see what the retriever would
        have shown. A turn that stops does not grow, and is worth the ranking that it keeps; one that stops before any
        search (`rewriter.stop: answer`) is worth what the reader answers without documents.
        """
        streams = streams or [stream(question.id) for question in questions]
        first = [self.begin(question, its) for question, its in zip(questions, streams, strict=True)]
        for branch in first:
            branch.tree.branching = tuple(branching)
        self.grow_from(first, branching, greedy)
        return [branch.tree for branch in first]

    def grow_from(self, branches: Sequence[Branch], branching: Sequence[int], greedy: bool) -> None:
        """Grow the trees of these first turns."""
        for turn, width in enumerate(branching, start=1):
            grown = self.generate(branches, turn, width, greedy)
            started = time.perf_counter()
            self.search(grown)
            self.clock.add("retrieve", started)
            if grown:
                self.clock.add(f"retrieve/turn{turn}", started)
            if turn < len(branching):
                branches = [
                    self.next_turn(branch, node, [hit.document for hit in node.ranking], turn + 1, number % width)
                    for number, (branch, node) in enumerate(grown)
                    if not node.rewrite.stop
                ]

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
        """Search what these turns ask for in one batch, and give them their rankings and rewards."""
        searched: list[Node] = []
        steps: list[Step] = []
        unsearched: list[tuple[Node, str]] = []
        for branch, node in grown:
            if branch.parent is not None and branch.parent.reward is None:
                continue  # below a failed search
            last, plan = branch.last_searched, node.rewrite.plan
            if node.reused and last is not None:
                node.ranking, node.metrics, node.truncated = last.ranking, last.metrics, last.truncated
                self._score(node)
            elif not node.rewrite.format_ok:
                node.cost, node.metrics = self.reward.search_price, dict.fromkeys(self._signals, 0.0)
                self._score(node)
            elif plan is None:
                unsearched.append((node, branch.tree.question.id))
            else:
                node.cost = self.reward.search_price
                searched.append(node)
                steps.append(Step(question_id=branch.tree.question.id, plan=plan))
        results = self._results(steps, [name for _, name in unsearched])
        for node, result in zip([*searched, *(node for node, _ in unsearched)], results, strict=True):
            if result is not None:
                node.ranking = [Hit(hit.document, hit.score) for hit in result.ranking]
                node.metrics, node.truncated = dict(result.metrics), result.truncated
                self._score(node)

    def _results(self, steps: Sequence[Step], unsearched: Sequence[str]) -> list[StepResult | None]:
        """The results of the steps, then those of questions whose path ended before any search: what a reader answers
        without documents; without a reader 0, as of an empty ranking."""
        if unsearched and isinstance(self.client, ReadingClient):
            return self.client.step_and_read(steps, unsearched, metrics=self._metrics)
        results = self.client.step(steps, with_text=True, metrics=self._metrics) if steps else []
        return [*results, *(StepResult.without_search(name, self._metrics) for name in unsearched)]

    def _score(self, node: Node) -> None:
        metric = node.metrics[self._signals[-1]]
        node.reward = node_reward(metric, node.rewrite.format_ok, self.reward.format_weight)
