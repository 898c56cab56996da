"""The turns of a model with the prompts of one rewriter: a question becomes a prompt (`begin`), samples (`generate`),
and the shown documents become the prompt of the next turn (`next_turn`). Nothing is searched here.

Training, evaluation and rewriting for a user give a policy the same prompt ids (`PolicyConversation`), and a prompted
model the same messages (prompted.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..configs.schema import RolloutConfig
from ..data.types import Document, Question
from ..errors import ConfigError
from ..llms.base import Message
from ..rewriters.base import Rewrite, RewritingStrategy
from ..rewriters.stop import keep
from .chat import Chat
from .engines.base import Completion, Engine, Sampling
from .random_streams import stream
from .tree import Node, Tree


@dataclass(slots=True)
class Branch:
    """The branch of the next turn: where it attaches to the tree, and its prompt."""

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
        """Make an answer to this prompt part of the tree."""
        (self.parent.children if self.parent else self.tree.roots).append(node)

    def kept(self, rewrite: Rewrite) -> Rewrite:
        """A stop with the plan of the last turn that was searched; any other rewrite as it is."""
        return keep(rewrite, self.last_searched.rewrite.plan if self.last_searched is not None else None)

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


class PolicyConversation(Conversation):
    """A policy in this process."""

    def __init__(self, engine: Engine, rewriter: RewritingStrategy, rollout: RolloutConfig) -> None:
        self.engine, self.rewriter, self.rollout = engine, rewriter, rollout
        self.chat = Chat(engine.tokenizer, engine.stop_ids)

    def begin(self, question: Question, its_stream: int = 0) -> Branch:
        messages = self.rewriter.first(self.with_cut_history(question))
        return Branch(Tree(question, []), messages, self.chat.first(messages, self.rewriter.opening), None, its_stream)

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
        question, shown = self.with_cut_history(branch.tree.question), documents[: self.rollout.documents]
        message = self.rewriter.follow_up(question, self.cut_documents(shown), node.turn + 1)
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
        rewrite = branch.kept(self.rewriter.parse(branch.tree.question, text, turn))
        return Node(
            turn,
            branch.prompt_ids,
            sample.ids,
            sample.logprobs,
            sample.finished,
            text,
            rewrite,
            number=number,
            reused=rewrite.stop and branch.last_searched is not None,
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
