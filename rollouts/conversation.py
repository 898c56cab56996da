"""The turns of a model with the prompts of one rewriter: a question becomes a prompt (`begin`), samples (`generate`),
and the shown documents become the prompt of the next turn (`next_turn`). Nothing is searched here.

Training, evaluation and rewriting for a user give a policy the same prompt ids (PolicyConversation). A model behind
llms/ (PromptedConversation: an endpoint, or a local model that is not trained) gets the same messages; each answer is a
chat of its own with one request per turn. One that cannot be read is sent back once, with what is wrong with it; then
it failed its format. Documents and histories are cut to their budgets in words there: an endpoint's tokenizer is not
here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from ..configs.schema import RolloutConfig
from ..data.history import count_words, cut_history, first_words
from ..data.types import Document, Question
from ..errors import ConfigError
from ..llms.access import Llm
from ..llms.base import LlmResponse, Message, Prompt, SamplingParams, complete_sum
from ..rewriters.base import Rewrite, RewritingStrategy, read_reply, repair
from ..rewriters.delegating import keep
from .chat import Chat
from .engines.base import Completion, Engine, Sampling, stream
from .tree import Node, Tree


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
        """Make an answer to this prompt part of the tree."""
        (self.parent.children if self.parent else self.tree.roots).append(node)

    def resolve_stop(self, rewrite: Rewrite) -> Rewrite:
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
        question, visible = self.with_cut_history(branch.tree.question), documents[: self.rollout.documents]
        message = self.rewriter.follow_up(question, self.cut_documents(visible), node.turn + 1)
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
        rewrite = branch.resolve_stop(self.rewriter.parse(branch.tree.question, text, turn))
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


class PromptedConversation(Conversation):
    """A prompted model, or the trained policy behind an endpoint."""

    def __init__(
        self,
        llm: Llm,
        rewriter: RewritingStrategy,
        rollout: RolloutConfig,
        *,
        seed: int = 0,
        trained: bool = False,
    ) -> None:
        """`trained`: the model is the policy, whose
        answers begin with the opening and are parsed as strictly as in training."""
        self.llm, self.rewriter, self.rollout, self.trained = llm, rewriter, rollout, trained
        self._seed = seed
        self.missing: dict[tuple[Branch, int, int], str] = {}
        """Why an answer was not given, by prompt, turn and sample."""

    def begin(self, question: Question, its_stream: int = 0) -> Branch:
        messages = self.rewriter.first(cut_history(question, self.rollout.history_tokens))
        return Branch(Tree(question, []), messages, [], None, its_stream)

    def generate(self, branches: Sequence[Branch], turn: int, width: int, greedy: bool) -> list[tuple[Branch, Node]]:
        """As Conversation.generate, without the answers that the model did not give (`missing`). Those of one number
        have one seed and are asked together. Raises as `Llm.ask`."""
        entries = [(branch.sample + number, number, branch) for branch in branches for number in range(width)]
        nodes: list[tuple[Branch, Node]] = []
        for sample, group in groupby(sorted(entries, key=lambda entry: entry[0]), key=lambda entry: entry[0]):
            _, numbers, of_sample = zip(*group, strict=True)
            sampling = self._sampling(sample, greedy)
            for branch, number, node in zip(of_sample, numbers, self._answers(of_sample, turn, sampling), strict=True):
                if isinstance(node, str):
                    self.missing[branch, turn, sample] = node
                else:
                    node.number = number
                    branch.attach(node)
                    nodes.append((branch, node))
        return nodes

    def next_turn(self, branch: Branch, node: Node, documents: Sequence[Document]) -> Branch:
        question = cut_history(branch.tree.question, self.rollout.history_tokens)
        visible = cut_documents(documents[: self.rollout.documents], self.rollout, count_words, first_words)
        message = Message(role="user", content=self.rewriter.follow_up(question, visible, node.turn + 1))
        return branch.below(node, [Message(role="assistant", content=node.text), message], [])

    def _sampling(self, sample: int, greedy: bool) -> SamplingParams:
        rollout = self.rollout
        if greedy:
            return SamplingParams(max_tokens=rollout.max_new_tokens)
        seed = (self._seed * 1_000_003 + sample) % 2**31
        return SamplingParams(1, rollout.temperature, rollout.top_p, rollout.max_new_tokens, seed)

    def _answers(self, branches: Sequence[Branch], turn: int, sampling: SamplingParams) -> Iterator[Node | str]:
        """The answer to each branch, or why there is none."""
        opening = self.rewriter.opening if self.trained else ""
        prefilled = [Message(role="assistant", content=opening)] if opening else []
        prompts = [Prompt((*branch.messages, *prefilled)) for branch in branches]
        reasons: dict[int, str] = {}
        replies = self.llm.ask(prompts, sampling, reasons.__setitem__)
        received = [[] if reply is None else [reply] for reply in replies]
        rewrites = [
            self._read(branch, reply, turn) if reply is not None else Rewrite(None)
            for branch, reply in zip(branches, replies, strict=True)
        ]
        failed = [i for i, rewrite in enumerate(rewrites) if received[i] and rewrite.failure and not self.trained]
        repairs = [Prompt((*prompts[i].messages, *repair(_text(received[i][0]), rewrites[i].failure))) for i in failed]
        for i, reply in zip(failed, self.llm.ask(repairs, sampling) if repairs else [], strict=True):
            if reply is not None:
                received[i].append(reply)
                rewrites[i] = self._read(branches[i], reply, turn)
        for i, (branch, rewrite) in enumerate(zip(branches, rewrites, strict=True)):
            if not received[i]:
                yield reasons.get(i, "no reply")
                continue
            rewrite = branch.resolve_stop(rewrite)
            yield Node(
                turn,
                [],
                [],
                [],
                all(text.finished for text in received[i][-1].texts),
                opening + _text(received[i][-1]).removeprefix(opening),
                rewrite,
                reused=rewrite.stop and branch.last_searched is not None,
                tokens=complete_sum([reply.tokens for reply in received[i]]),
                prompt_tokens=complete_sum([reply.prompt_tokens for reply in received[i]]),
                calls=sum(len(reply.texts) for reply in received[i]),
            )

    def _read(self, branch: Branch, reply: LlmResponse, turn: int) -> Rewrite:
        question = branch.tree.question
        if self.trained:
            return self.rewriter.parse(question, reply.texts[0].text.removeprefix(self.rewriter.opening), turn)
        return read_reply(self.rewriter, question, reply, turn)


def _text(reply: LlmResponse) -> str:
    return "\n\n".join(sample.text for sample in reply.texts)


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
