"""A rewriter whose model answers behind an OpenAI-compatible endpoint: no weights and no PyTorch on this machine.

A trained policy, served as its export (`vllm serve exports/demo`), gets the messages of training and the prefilled
beginning of its answer, and its answers are parsed as strictly as in training. Any other model is prompted as in
`querylect eval` of a spec: its answers are read leniently, and one that cannot be read is sent back once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

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

_PREFILLED = {"continue_final_message": True, "add_generation_prompt": False}
"""Fields of a request with which vLLM and SGLang continue the last message instead of answering it."""


@dataclass(frozen=True, slots=True)
class ChatSoFar:
    """The messages of one conversation, from which its next turn continues."""

    messages: tuple[Message, ...]
    last_plan: SearchPlan | None = None
    """The last plan so far, which a stop keeps."""


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """One answer of the endpoint. `rewrite.failure` says why it cannot be used; then `rewrite.plan` is None."""

    rewrite: Rewrite
    text: str
    after: ChatSoFar | None
    """None where the endpoint gave no reply: nothing can continue from there."""


@dataclass(frozen=True, slots=True)
class EndpointConversation:
    """Asks turns of one model with the prompts of one rewriter."""

    llm: Llm
    rewriter: RewritingStrategy
    rollout: RolloutConfig
    trained: bool
    """Whether the model is the trained policy."""

    def begin(self, question: Question) -> ChatSoFar:
        """The first turn of a question."""
        return ChatSoFar(tuple(self.rewriter.first(self._with_cut_history(question))))

    def next_turn(self, question: Question, after: ChatSoFar, documents: Sequence[Document], turn: int) -> ChatSoFar:
        """Turn `turn`, which is shown `documents`; both these and the history are cut to their budgets in words."""
        shown = cut_to_words(documents[: self.rollout.documents], self.rollout)
        message = Message(role="user", content=self.rewriter.follow_up(self._with_cut_history(question), shown, turn))
        return replace(after, messages=(*after.messages, message))

    def answer(self, questions: Sequence[Question], chats: Sequence[ChatSoFar], turn: int) -> list[ChatAnswer]:
        """The greedy answer to each chat. Raises as `Llm.ask`."""
        missing: dict[int, str] = {}
        draw = SamplingParams(max_tokens=self.rollout.max_new_tokens)
        messages = [chat.messages for chat in chats]
        answers: list[tuple[Rewrite, str] | None]
        if self.trained:
            answers = self._ask_policy(questions, messages, turn, draw, missing)
        else:
            asked = ask_turn(self.llm, self.rewriter, questions, messages, turn, draw, missing.__setitem__)
            answers = [None if answer is None else (answer.rewrite, answer.text) for answer in asked]
        return [
            ChatAnswer(Rewrite(None, failure=missing.get(index, "no reply")), "", None)
            if answer is None
            else self._answer(*answer, chats[index])
            for index, answer in enumerate(answers)
        ]

    def _with_cut_history(self, question: Question) -> Question:
        return cut_history(question, self.rollout.history_tokens)

    def _answer(self, rewrite: Rewrite, text: str, chat: ChatSoFar) -> ChatAnswer:
        if rewrite.stop:
            rewrite = keep(rewrite, chat.last_plan)
        messages = (*chat.messages, Message(role="assistant", content=text))
        after = ChatSoFar(messages, rewrite.plan or chat.last_plan)
        return ChatAnswer(rewrite, text, after)

    def _ask_policy(
        self,
        questions: Sequence[Question],
        chats: Sequence[Sequence[Message]],
        turn: int,
        draw: SamplingParams,
        missing: dict[int, str],
    ) -> list[tuple[Rewrite, str] | None]:
        opening = self.rewriter.opening
        prefilled = (Message(role="assistant", content=opening),) if opening else ()
        prompts = [Prompt((*chat, *prefilled)) for chat in chats]
        replies = self.llm.ask(prompts, draw, missing=missing.__setitem__)
        texts = [None if reply is None else reply.texts[0].text.removeprefix(opening) for reply in replies]
        return [
            None if text is None else (self.rewriter.parse(question, text, turn), opening + text)
            for question, text in zip(questions, texts, strict=True)
        ]


@dataclass(slots=True, repr=False)
class EndpointModel:
    """The model of a rewriter behind an endpoint, opened once for all of its prompts."""

    config: LlmConfig
    trained: bool
    _llms: dict[bool, Llm] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"EndpointModel({self.config.model!r}, {self.url!r})"

    @property
    def url(self) -> str:
        """Where it is, without user and password."""
        import httpx

        return str(httpx.URL(self.config.base_url or "").copy_with(userinfo=b""))

    def conversation(self, rewriter: RewritingStrategy, rollout: RolloutConfig) -> EndpointConversation:
        """The model with the prompts of one rewriter. Raises ConfigError for a URL that is none."""
        prefilled = self.trained and bool(rewriter.opening)
        if prefilled not in self._llms:
            fields = {**_PREFILLED, **self.config.extra} if prefilled else self.config.extra
            self._llms[prefilled] = open_llm(self.config.model_copy(update={"extra": fields}))
        return EndpointConversation(self._llms[prefilled], rewriter, rollout, self.trained)

    def close(self) -> None:
        for llm in self._llms.values():
            llm.close()


def endpoint_of(url: str | LlmConfig, model: str | None, trained: bool) -> EndpointModel:
    """The endpoint at a URL, which serves a model under that name. Raises ConfigError without a name or for no URL."""
    if isinstance(url, LlmConfig):
        config = url.model_copy(update={"model": model}) if model is not None else url
        if config.base_url is None:
            raise ConfigError("the endpoint has no base_url; give http://HOST:PORT/v1.")
        return EndpointModel(config, trained)
    if model is None:
        raise ConfigError(
            f"the endpoint {url} was given without a model; name the one to ask, as `GET {url}/models` lists it."
        )
    return EndpointModel(LlmConfig(model=model, base_url=url, cache=None), trained)
