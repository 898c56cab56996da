"""One batched turn of many conversations with a policy: prompts of a rewriter, samples of an engine, shown documents.

Tree growing (training, evaluation) and rewriting for a user share these steps, so a policy gets the same prompt ids
wherever it is used. Nothing here searches or scores.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..configs.schema import RolloutConfig
from ..data.types import Document, Question
from ..errors import ConfigError
from ..llms.base import Message
from ..rewriters.base import RewritingStrategy
from ..rewriters.stop import keep
from .chat import Chat
from .engines.base import Completion, Engine, Sampling
from .random_streams import stream
from .tree import Node, Tree


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
    stream: int = 0
    """The random stream of its samples."""
    last_searched: Node | None = None
    """The last turn before with a search plan, whose ranking a stop keeps."""


class Conversation:
    """Samples turns from one policy with the prompts of one rewriter."""

    def __init__(self, engine: Engine, rewriter: RewritingStrategy, rollout: RolloutConfig) -> None:
        self.engine, self.rewriter, self.rollout = engine, rewriter, rollout
        self.chat = Chat(engine.tokenizer, getattr(engine, "stop_ids", {engine.tokenizer.eos_token_id}))
        self.clock = Clock()

    def begin(self, question: Question, stream: int = 0) -> Branch:
        """The first turn of a question, in a new tree."""
        messages = self.rewriter.first(self.with_cut_history(question))
        return Branch(Tree(question, []), messages, self.chat.first(messages, self.rewriter.opening), None, stream)

    def generate(
        self, branches: Sequence[Branch], turn: int, width: int, sampling: Sampling
    ) -> list[tuple[Branch, Node]]:
        """Sample `width` answers for every branch in one batch; each becomes a tree node, returned with its branch.

        Raises ConfigError as `check_length`.
        """
        prompts = [branch.prompt_ids for branch in branches]
        self.check_length(prompts)
        started = time.perf_counter()
        samples = self.engine.generate(prompts, width, sampling)
        self.clock.add("generate", started)
        nodes = [
            (branch, self.node(branch, sample, turn))
            for branch, group in zip(branches, samples, strict=True)
            for sample in group
        ]
        for branch, node in nodes:
            (branch.parent.children if branch.parent else branch.tree.roots).append(node)
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

    def sampling(self, greedy: bool) -> Sampling:
        """How an answer is sampled."""
        return Sampling(
            temperature=0.0 if greedy else self.rollout.temperature,
            top_p=1.0 if greedy else self.rollout.top_p,
            max_new_tokens=self.rollout.max_new_tokens,
        )

    def node(self, branch: Branch, sample: Completion, turn: int) -> Node:
        """The node of an answer, which is not part of the tree yet."""
        text = self.chat.text(sample.ids)
        rewrite = self.rewriter.parse(branch.tree.question, text, turn)
        last = branch.last_searched
        if rewrite.stop:
            rewrite = keep(rewrite, last.rewrite.plan if last is not None else None)
        node = Node(turn, branch.prompt_ids, sample.ids, sample.logprobs, sample.finished, text, rewrite)
        node.reused = rewrite.stop and last is not None
        return node

    def with_cut_history(self, question: Question) -> Question:
        """The question as prompts show it, its history cut to `rollout.history_tokens`."""
        return self.chat.plain_question(question, self.rollout.history_tokens)

    def cut_documents(self, documents: Sequence[Document]) -> list[Document]:
        """The documents as a turn shows them, within the token budgets of each and of all; the last may be cut."""
        left = self.rollout.observation_tokens
        if left is None:
            return [self.shorten(document) for document in documents]
        shortened = []
        for document in documents:
            short = self.shorten(document, left)
            if not (short.title or short.text) and self.chat.plain(document.title + document.text).strip():
                break  # the remaining budget takes no part of it
            shortened.append(short)
            left -= self.chat.count(short.title) + self.chat.count(short.text)
        return shortened

    def shorten(self, document: Document, limit: int | None = None) -> Document:
        """Title and text cut so that both together keep to the token budget of one document, and to `limit` tokens."""
        budget = self.rollout.document_tokens if limit is None else min(limit, self.rollout.document_tokens)
        title = self.chat.cut(document.title, budget)
        left = budget - self.chat.count(title)
        return Document(document.id, title, self.chat.cut(document.text, left) if left > 0 else "")

    def check_length(self, prompts: Sequence[Sequence[int]]) -> None:
        """Raise ConfigError where a prompt is longer than `rollout.max_prompt_tokens`."""
        longest = max(map(len, prompts), default=0)
        if longest > self.rollout.max_prompt_tokens:
            raise ConfigError(
                f"a prompt has {longest} tokens and rollout.max_prompt_tokens is {self.rollout.max_prompt_tokens}. "
                "Raise it, show fewer documents (rollout.documents), fewer tokens of each (rollout.document_tokens) or "
                "of all (rollout.observation_tokens), or less of a question's history (rollout.history_tokens)."
            )
