"""The turns of a model behind llms/: an endpoint, or a local model that is not trained.

It gets the same messages as a policy; each answer is a chat of its own with one request per turn. One that cannot be
read is sent back once, with what is wrong with it; then it failed its format. Documents and histories are cut to their
budgets in words: an endpoint's tokenizer is not here.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from ..configs.schema import RolloutConfig
from ..data.history import count_words, cut_history, first_words
from ..data.types import Document, Question
from ..llms.access import Llm
from ..llms.base import LlmResponse, Message, Prompt, SamplingParams, complete_sum
from ..rewriters.base import Rewrite, RewritingStrategy, read_reply, repair
from .tree import Node, Tree
from .tree_sampler import Branch, Conversation, cut_documents


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
        message = Message(role="user", content=self.follow_up(node, question, visible))
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
        for i, rewrite in enumerate(rewrites):
            if not received[i]:
                yield reasons.get(i, "no reply")
                continue
            yield Node(
                turn,
                [],
                [],
                [],
                all(text.finished for text in received[i][-1].texts),
                opening + _text(received[i][-1]).removeprefix(opening),
                rewrite,
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
