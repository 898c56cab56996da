"""Growing questions into trees of turns, which an environment searches and scores.

A conversation turns a question into a prompt with the rewriter (`begin`), samples the answers (`generate`), and turns
the shown documents into the prompt of the next turn (`next_turn`); it searches nothing. Training, evaluation and
rewriting for a user give a policy the same prompt ids (PolicyConversation).

TreeSampler grows all questions of a step turn by turn, with one batched generation and one batched search per turn.
StreamingTreeSampler is for engines that take requests at any time (vLLM, a vLLM server): a turn is searched when it
ends and the turn below it is sampled at once, so nothing waits for the longest answer of a turn. While SEARCHES_AT_ONCE
requests are under way, turns that end are collected for the next one: the slower the service, the larger its batches.
Every sample has the random stream of its position in the tree, whichever answer or search ends first, and children are
in the order of their numbers.
"""

import ctypes
import sys
import time
from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import TypeVar, cast

from ..configs.schema import MixConfig, RewardConfig, RewriterConfig, RolloutConfig
from ..data.types import Document, Question
from ..envs.client.base import EnvironmentApi, ReadingClient, StepClient
from ..envs.schemas import HitBody, Step, StepResult
from ..errors import ConfigError
from ..llms.base import Message
from ..rewards.reward import node_reward
from ..rewriters.base import RewritingStrategy
from ..rewriters.delegating import MixedRewriter
from ..rewriters.registry import make_rewriter
from ..rewriters.retriever_info import RetrieverInfo
from .chat import Chat
from .engines.base import Completion, Engine, Sampling, StreamingEngine, stream
from .tree import Node, Tree

ANSWERED_AT_ONCE = 192
"""Questions that are answered greedily side by side."""
REFUSED = "refused query"
"""The failure of a rewrite whose native query the retriever refused: a failure of the format."""
SEARCHES_AT_ONCE = 4
"""Search requests that a process may have under way (docs/scale.md compares one, four and more)."""

_Result = TypeVar("_Result")


def rewriter_for(rewriter: RewriterConfig, mix: MixConfig | None, client: EnvironmentApi, k: int) -> RewritingStrategy:
    """The rewriter whose plans ask for `k` documents; the environment says which retriever it speaks to, each
    question's own in a mix, whose environments have rewriters of their own."""
    from ..envs.client.connect import MixedClient  # whose HTTP client takes a second to import

    if mix is None or not isinstance(client, MixedClient):
        return make_rewriter(rewriter, RetrieverInfo.from_service(client.info().retriever), k)
    return MixedRewriter(
        {
            name: make_rewriter(mix.environments[name].rewriter, RetrieverInfo.from_service(info.retriever), k)
            for name, info in client.infos().items()
        }
    )


def make_tree_sampler(
    engine: Engine, rewriter: RewritingStrategy, client: StepClient, rollout: RolloutConfig, reward: RewardConfig
) -> "TreeSampler":
    """What grows trees with this engine, and searches them turn by turn or while they are sampled."""
    kind = TreeSampler if rollout.engine == "transformers" else StreamingTreeSampler
    return kind(PolicyConversation(engine, rewriter, rollout), client, reward)


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


@dataclass(slots=True, eq=False)
class Branch:
    """The branch of the next turn: where it attaches to the tree, and its prompt. No two are equal."""

    tree: Tree
    messages: list[Message]
    prompt_ids: list[int]
    """Empty for a prompted model."""
    parent: Node | None
    stream: int
    """The random stream of its samples."""
    last_searched: Node | None = None
    """The last turn before with a search plan, whose ranking a stop keeps."""
    sample: int = 0
    """Of a path without branches below its first turn: the number of that turn."""

    def attach(self, node: Node) -> None:
        """Make an answer to this prompt part of the tree, its siblings in the order of their numbers. One that stops
        takes the plan of the last turn that was searched, if any."""
        last = self.last_searched
        if node.rewrite.stop and last is not None:
            node.rewrite, node.reused = replace(node.rewrite, plan=last.rewrite.plan), True
        insort(self.parent.children if self.parent else self.tree.roots, node, key=lambda sibling: sibling.number)

    def below(self, node: Node, messages: Sequence[Message], prompt_ids: list[int]) -> "Branch":
        """The branch under `node`, which answers this one."""
        last = node if node.rewrite.plan is not None else self.last_searched
        its_stream, sample = stream(self.stream, node.number), self.sample + node.number
        return Branch(self.tree, [*self.messages, *messages], prompt_ids, node, its_stream, last, sample)


class Conversation(ABC):
    """Samples turns with the prompts of one rewriter."""

    rewriter: RewritingStrategy
    rollout: RolloutConfig

    @abstractmethod
    def begin(self, question: Question, its_stream: int = 0) -> Branch:
        """The first turn of a question, in a new tree."""

    @abstractmethod
    def generate(self, branches: Sequence[Branch], turn: int, width: int, greedy: bool) -> list[tuple[Branch, Node]]:
        """Sample `width` answers for every branch; each becomes a tree node, returned with its branch."""

    @abstractmethod
    def next_turn(self, branch: Branch, node: Node, documents: Sequence[Document]) -> Branch:
        """The branch under `node`, whose message shows `documents`, cut to their budgets; none where nothing was
        searched or found."""

    def plain(self, text: str) -> str:
        """`text` from outside without what may open or close a turn."""
        return text

    def follow_up(self, node: Node, question: Question, documents: Sequence[Document]) -> str:
        """The message that opens the turn under `node`: the rewriter's, after what came of a native query."""
        feedback = "" if node.hits is None else f"Documents that match: {node.hits}\n"
        if node.error is not None:
            feedback = f"The search engine refused the query: {self.plain(node.error)}\n"  # it quotes the query
        return feedback + self.rewriter.follow_up(question, documents, node.turn + 1)


class PolicyConversation(Conversation):
    """A policy in this process."""

    def __init__(self, engine: Engine, rewriter: RewritingStrategy, rollout: RolloutConfig) -> None:
        self.engine, self.rewriter, self.rollout = engine, rewriter, rollout
        self.chat = Chat(engine.tokenizer, engine.stop_ids)

    def plain(self, text: str) -> str:
        return self.chat.plain(text)

    def begin(self, question: Question, its_stream: int = 0) -> Branch:
        shown, opening = self.with_cut_history(question), self.rewriter.opening
        messages = self.rewriter.first(shown)
        return Branch(Tree(question, []), messages, self.chat.first(messages, opening), None, its_stream)

    def generate(self, branches: Sequence[Branch], turn: int, width: int, greedy: bool) -> list[tuple[Branch, Node]]:
        """As Conversation.generate, in one batch. Raises ConfigError as `check_length`."""
        prompts = [branch.prompt_ids for branch in branches]
        self.check_length(prompts)
        sampled = self.engine.generate(prompts, width, self.sampling(branches, greedy))
        answered = zip(branches, sampled, strict=True)
        nodes = [
            (branch, self.node(branch, sample, turn, number))
            for branch, samples in answered
            for number, sample in enumerate(samples)
        ]
        for branch, node in nodes:
            branch.attach(node)
        return nodes

    def next_turn(self, branch: Branch, node: Node, documents: Sequence[Document]) -> Branch:
        question = self.with_cut_history(branch.tree.question)
        visible = self.cut_documents(documents[: self.rollout.documents])
        message = self.follow_up(node, question, visible)
        opening = self.rewriter.opening
        ids = self.chat.continuation(branch.messages, message, node.completion_ids, opening)
        answer = Message(role="assistant", content=opening + node.text)
        messages = [answer, Message(role="user", content=message)]
        return branch.below(node, messages, [*node.prompt_ids, *node.completion_ids, *ids])

    def sampling(self, branches: Sequence[Branch], greedy: bool) -> Sampling:
        """How the answers to these branches are sampled."""
        rollout, streams = self.rollout, tuple(branch.stream for branch in branches)
        if greedy:
            return Sampling(temperature=0.0, max_new_tokens=rollout.max_new_tokens, streams=streams)
        return Sampling(rollout.temperature, rollout.top_p, rollout.max_new_tokens, streams)

    def node(self, branch: Branch, sample: Completion, turn: int, number: int) -> Node:
        """The node of an answer, which is not part of the tree yet."""
        text = self.chat.text(sample.ids)
        rewrite = self.rewriter.parse(branch.tree.question, text, turn)
        return Node(
            turn,
            branch.prompt_ids,
            sample.ids,
            sample.logprobs,
            sample.finished,
            text,
            rewrite,
            number=number,
            tokens=len(sample.ids),
            prompt_tokens=len(branch.prompt_ids),
        )

    def with_cut_history(self, question: Question) -> Question:
        """The question as prompts show it, its history cut to `rollout.history_tokens`."""
        return self.chat.plain_question(question, self.rollout.history_tokens)

    def cut_documents(self, documents: Sequence[Document]) -> list[Document]:
        """The documents as a turn shows them, cut to their budgets of tokens."""
        return cut_documents(documents, self.rollout, self.chat.count, self.chat.cut)

    def check_length(self, prompts: Sequence[Sequence[int]]) -> None:
        """Raise ConfigError where a prompt is longer than `rollout.max_prompt_tokens`."""
        longest = max(map(len, prompts), default=0)
        if longest > self.rollout.max_prompt_tokens:
            raise ConfigError(
                f"a prompt has {longest} tokens and rollout.max_prompt_tokens is {self.rollout.max_prompt_tokens}. "
                "Raise it, show fewer documents (rollout.documents), fewer tokens of each (rollout.document_tokens) or "
                "of all (rollout.observation_tokens), or less of a question's history (rollout.history_tokens)."
            )


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

        `streams`: the random stream of each question, by default one named by its id; its tree does not depend on the
        other questions.

        A turn whose text fails the format, or whose native query the retriever refuses, earns nothing and still grows:
        its follow-up shows no documents. Below a failed search nothing grows: it would not see what the retriever would
        have shown. A turn that stops does not grow, and is worth the ranking that it keeps; one that stops before any
        search (`rewriter.stop: answer`) is worth what the reader answers without documents.
        """
        streams = streams or [stream(question.id) for question in questions]
        first = [self.conversation.begin(question, key) for question, key in zip(questions, streams, strict=True)]
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
            self.turn_seconds.append(time.perf_counter() - started)
            branches = [self.next_turn(branch, node) for branch, node in grown if node.grows and turn < len(branching)]

    def next_turn(self, branch: Branch, node: Node) -> Branch:
        """The branch under a node that was searched."""
        shown = node.ranking[: self.conversation.rollout.documents]
        return self.conversation.next_turn(branch, node, [hit.document for hit in shown])

    def answer(self, questions: Sequence[Question], turns: int) -> list[Tree]:
        """One greedy path of `turns` turns for each question."""
        trees: list[Tree] = []
        for start in range(0, len(questions), ANSWERED_AT_ONCE):
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
            elif plan is not None:
                node.cost = self.reward.search_price
                searched.append((node, node.turn < len(tree.branching)))
                steps.append(Step(question_id=tree.question.id, plan=plan))
            elif node.rewrite.stop:
                unsearched.append((node, tree.question.id))
            else:
                node.cost, node.metrics = self.reward.search_price, dict.fromkeys(self._signals, 0.0)
        with_text = self.conversation.rollout.documents if any(keep_text for _, keep_text in searched) else 0
        results = self._results(steps, [name for _, name in unsearched], with_text)
        nodes = [*searched, *((node, False) for node, _ in unsearched)]
        for (node, keep_text), result in zip(nodes, results, strict=True):
            if result is not None:
                node.ranking = [hit if keep_text else HitBody(id=hit.id, score=hit.score) for hit in result.ranking]
                node.metrics, node.truncated = dict(result.metrics), result.truncated
                node.hits, node.error = result.hits, result.error
                if result.error is not None:
                    node.rewrite = replace(node.rewrite, plan=None, failure=REFUSED)
                    node.metrics = dict.fromkeys(node.metrics, 0.0)  # a reader answers without documents
        for _, node in grown:
            if node.metrics:  # none of a failed search
                metric, keeps_format = node.metrics[self._signals[-1]], not node.rewrite.failure
                node.reward = node_reward(metric, keeps_format, self.reward.format_weight)

    def _results(self, steps: Sequence[Step], unsearched: Sequence[str], with_text: int) -> list[StepResult | None]:
        """The results of the steps, then those of questions whose path ended before any search: what a reader answers
        without documents; without a reader 0, as of an empty ranking."""
        if unsearched and isinstance(self.client, ReadingClient):
            return self.client.step_and_read(steps, unsearched, with_text=with_text, metrics=self._metrics)
        results = self.client.step(steps, with_text=with_text, metrics=self._metrics) if steps else []
        return [*results, *(StepResult.without_search(name, self._metrics) for name in unsearched)]


class StreamingTreeSampler(TreeSampler):
    """Grows trees with an engine that takes requests at any time."""

    @property
    def engine(self) -> StreamingEngine:
        return cast("StreamingEngine", self.policy.engine)

    def grow_from(self, branches: Sequence[Branch], branching: Sequence[int], greedy: bool) -> None:
        """As `TreeSampler.grow_from`; the time of `retrieve` is that in which nothing was sampled."""
        started = time.perf_counter()
        growth = _Growth(self, branching, greedy)
        try:
            growth.run(branches)
        finally:
            self.engine.cancel()
            growth.searcher.shutdown(wait=False, cancel_futures=True)  # a signal does not wait for a search under way
        self.clock.add("generate", started + growth.waited)
        self.clock.add("retrieve", time.perf_counter() - growth.waited)


class _Growth:
    """The trees of one call."""

    def __init__(self, tree_sampler: StreamingTreeSampler, branching: Sequence[int], greedy: bool) -> None:
        self.tree_sampler, self.branching, self.greedy = tree_sampler, branching, greedy
        # a reader answers one batch at a time
        self.searches_at_once = 1 if isinstance(tree_sampler.client, ReadingClient) else SEARCHES_AT_ONCE
        self.searcher = ThreadPoolExecutor(self.searches_at_once)
        self.waited = 0.0
        """Seconds in which nothing was sampled."""
        self._ended: SimpleQueue[Callable[[], None]] = SimpleQueue()
        """What to do about every answer and search that has ended."""
        self._sampling = self._searches = 0
        """The numbers of answers and of search requests under way."""
        self._unsearched: list[tuple[Branch, Node]] = []

    def run(self, first: Sequence[Branch]) -> None:
        """Grow until everything has ended. Raises what sampling and searching raise."""
        for branch in first:
            self._ask(branch, 1)
        while self._sampling or self._searches:
            if not (self._sampling and self.tree_sampler.engine.advance()):
                started, idle = time.perf_counter(), not self._sampling
                self._ended.get()()
                self.waited += time.perf_counter() - started if idle else 0.0
            while not self._ended.empty():
                self._ended.get()()
            if self._unsearched and self._searches < self.searches_at_once:
                ended, self._unsearched = self._unsearched, []
                self._searches += 1
                search = self.searcher.submit(self.tree_sampler.search, ended)
                self._when_done(search, partial(self._searched, ended))

    def _ask(self, branch: Branch, turn: int) -> None:
        policy = self.tree_sampler.policy
        policy.check_length([branch.prompt_ids])
        sampling = policy.sampling([branch], self.greedy)
        futures = self.tree_sampler.engine.submit(branch.prompt_ids, self.branching[turn - 1], sampling)
        self._sampling += len(futures)
        for number, future in enumerate(futures):
            self._when_done(future, partial(self._answered, branch, turn, number))

    def _when_done(self, future: Future[_Result], do: Callable[[_Result], None]) -> None:
        future.add_done_callback(lambda done: self._ended.put(lambda: do(done.result())))

    def _answered(self, branch: Branch, turn: int, number: int, completion: Completion) -> None:
        self._sampling -= 1
        node = self.tree_sampler.policy.node(branch, completion, turn, number)
        branch.attach(node)
        self._unsearched.append((branch, node))

    def _searched(self, searched: Sequence[tuple[Branch, Node]], _: None) -> None:
        self._searches -= 1
        for branch, node in searched:
            if node.turn < len(self.branching) and node.grows:
                self._ask(self.tree_sampler.next_turn(branch, node), node.turn + 1)


def cut_documents(
    documents: Sequence[Document], rollout: RolloutConfig, count: Callable[[str], int], cut: Callable[[str, int], str]
) -> list[Document]:
    """The documents within the budgets of each (`rollout.document_tokens`) and of all (`rollout.observation_tokens`),
    as `count` measures a text; the last may be cut. `cut` gives the beginning of a text within a budget."""
    left = rollout.observation_tokens
    shortened = []
    for document in documents:
        budget = rollout.document_tokens if left is None else min(left, rollout.document_tokens)
        title = cut(document.title, budget)
        used = count(title)
        text = cut(document.text, budget - used) if used < budget else ""
        if left is not None:
            if not (title or text) and (document.title + document.text).strip():
                break  # the remaining budget takes no part of it
            left -= used + count(text)
        shortened.append(Document(document.id, title, text))
    return shortened


def give_back_freed_memory() -> None:
    """Return to the kernel what is free now: blocks of ever new sizes leave gaps, and the heap grows by them.

    Call it where a second's page faults are little against what was done since the last call.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is not None and hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
