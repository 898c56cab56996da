"""The models that a rewriter asks for its turns: a policy in this process, or a model behind an endpoint.

Both begin a conversation, continue it with the documents of a turn, and answer a batch of conversations greedily.

A trained policy behind an endpoint, served as its export (`vllm serve exports/demo`), gets the messages of training and
the prefilled beginning of its answer, and its answers are parsed as strictly as in training. Any other model is
prompted as in `querylect eval` of a spec: its answers are read leniently, and one that cannot be read is sent back
once.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..configs.llm import LlmConfig
from ..configs.schema import RolloutConfig
from ..data.history import cut_history
from ..data.types import Document, Question
from ..envs.plan import SearchPlan
from ..errors import ConfigError
from ..llms.access import Llm
from ..llms.base import Message, Prompt, SamplingParams
from ..rewriters.base import Rewrite, RewritingStrategy
from ..rewriters.frozen import ask_turn, cut_to_words
from ..rewriters.stop import keep
from ..rollouts.llms import open_llm
from ..rollouts.memory import give_back_freed_memory
from ..rollouts.tree import Node
from ..rollouts.tree_sampler import ANSWERED_AT_ONCE, Branch, Conversation

_PREFILLED = {"continue_final_message": True, "add_generation_prompt": False}
"""Fields of a request with which vLLM and SGLang continue the last message instead of answering it."""


class Answer(NamedTuple):
    """One answer of a model."""

    rewrite: Rewrite
    """Without a plan, and with the reason in `failure`, if the answer cannot be used."""
    text: str = ""
    continuation: Any = None
    """The state of the conversation after the answer; None if the model gave none."""


class Continuation(NamedTuple):
    """The position of an answer in the tree of its question."""

    branch: Branch
    node: Node


class PolicyConversation(Conversation):
    """A policy in this process, which gets the same prompt ids as in training and evaluation."""

    def go_on(self, question: Question, after: Continuation, documents: Sequence[Document], turn: int) -> Branch:
        """The conversation that turn `turn` answers, which is shown `documents`."""
        return self.next_turn(after.branch, after.node, documents, turn)

    def answer(self, questions: Sequence[Question], branches: Sequence[Branch], turn: int) -> list[Answer]:
        """The greedy answers, in their order."""
        limit, answers = self.rollout.max_prompt_tokens, dict[int, Answer]()
        for index, branch in enumerate(branches):
            if (length := len(branch.prompt_ids)) > limit:
                reason = f"the prompt has {length} tokens of {limit}; shorten the question"
                answers[index] = Answer(Rewrite(None, failure=reason))
        short = [index for index in range(len(branches)) if index not in answers]
        for start in range(0, len(short), ANSWERED_AT_ONCE):
            part = short[start : start + ANSWERED_AT_ONCE]
            nodes = self.generate([branches[index] for index in part], turn, 1, greedy=True)
            for index, (branch, node) in zip(part, nodes, strict=True):
                answers[index] = Answer(node.rewrite, node.text, Continuation(branch, node))
            give_back_freed_memory()
        return [answers[index] for index in range(len(branches))]


@dataclass(frozen=True, slots=True)
class ChatState:
    """The messages of one conversation."""

    messages: tuple[Message, ...]
    last_plan: SearchPlan | None = None
    """The last plan so far, which a stop keeps."""

    def after(self, rewrite: Rewrite, text: str) -> Answer:
        """An answer to it."""
        rewrite = keep(rewrite, self.last_plan)
        messages = (*self.messages, Message(role="assistant", content=text))
        return Answer(rewrite, text, ChatState(messages, rewrite.plan or self.last_plan))


@dataclass(frozen=True, slots=True)
class EndpointConversation:
    """A model behind an endpoint. Documents and history are cut to their budgets in words, not tokens."""

    llm: Llm
    rewriter: RewritingStrategy
    rollout: RolloutConfig
    trained: bool
    """Whether the model is the trained policy."""

    def begin(self, question: Question) -> ChatState:
        """The conversation before its first answer."""
        return ChatState(tuple(self.rewriter.first(cut_history(question, self.rollout.history_tokens))))

    def go_on(self, question: Question, after: ChatState, documents: Sequence[Document], turn: int) -> ChatState:
        """The conversation that turn `turn` answers, which is shown `documents`."""
        documents = cut_to_words(documents[: self.rollout.documents], self.rollout)
        question = cut_history(question, self.rollout.history_tokens)
        message = Message(role="user", content=self.rewriter.follow_up(question, documents, turn))
        return replace(after, messages=(*after.messages, message))

    def answer(self, questions: Sequence[Question], chats: Sequence[ChatState], turn: int) -> list[Answer]:
        """The greedy answers, in their order. Raises as `Llm.ask`."""
        missing: dict[int, str] = {}
        draw = SamplingParams(max_tokens=self.rollout.max_new_tokens)
        messages = [chat.messages for chat in chats]
        parsed: list[tuple[Rewrite, str] | None]
        if self.trained:
            opening = self.rewriter.opening
            prefilled = (Message(role="assistant", content=opening),) if opening else ()
            replies = self.llm.ask([Prompt((*chat, *prefilled)) for chat in messages], draw, missing.__setitem__)
            texts = [None if reply is None else reply.texts[0].text.removeprefix(opening) for reply in replies]
            parsed = [
                None if text is None else (self.rewriter.parse(question, text, turn), opening + text)
                for question, text in zip(questions, texts, strict=True)
            ]
        else:
            answers = ask_turn(self.llm, self.rewriter, questions, messages, turn, draw, missing.__setitem__)
            parsed = [None if answer is None else (answer.rewrite, answer.text) for answer in answers]
        return [
            Answer(Rewrite(None, failure=missing.get(index, "no reply"))) if entry is None else chat.after(*entry)
            for index, (chat, entry) in enumerate(zip(chats, parsed, strict=True))
        ]


@dataclass(slots=True)
class EndpointModel:
    """The model of a rewriter behind an OpenAI-compatible endpoint: no weights and no PyTorch on this machine."""

    config: LlmConfig
    trained: bool
    _llms: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def at(cls, endpoint: str | LlmConfig, model: str | None, trained: bool) -> "EndpointModel":
        """`endpoint` is a URL that serves `model` under that name, or all settings. ConfigError without a name."""
        config = endpoint if isinstance(endpoint, LlmConfig) else LlmConfig(model="", base_url=endpoint, cache=None)
        config = config if model is None else config.model_copy(update={"model": model})
        if config.base_url is None or not config.model:
            raise ConfigError(
                "an endpoint needs its URL (http://HOST:PORT/v1) and the name of a model, as `GET URL/models` lists it."
            )
        return cls(config, trained)

    def conversation(self, rewriter: RewritingStrategy, rollout: RolloutConfig) -> EndpointConversation:
        """The model with the prompts of one rewriter. Raises ConfigError for a URL that is none."""
        config = self.config
        if self.trained and rewriter.opening:
            config = config.model_copy(update={"extra": {**_PREFILLED, **config.extra}})
        return EndpointConversation(self._llms.enter_context(open_llm(config)), rewriter, rollout, self.trained)

    def close(self) -> None:
        """Close the connections."""
        self._llms.close()
