"""Selects the prompts of a policy by the target retriever. They are built on first use and cached."""

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from ..configs.rewriter import RewriterConfig
from ..errors import ConfigError
from ..rewriters.base import RewritingStrategy
from ..rewriters.card import RetrieverCard
from ..rewriters.registry import make_rewriter
from ..rollouts.conversation import Conversation
from ..rollouts.engines.base import Engine
from .endpoint import EndpointConversation, EndpointModel
from .load import Member, Trained, with_cards

log = logging.getLogger(__name__)

Retriever = str | RetrieverCard | Mapping[str, object]
"""The name of an environment or a retriever, or a retriever's card, also as returned by `GET /v1/environment`."""


@dataclass(frozen=True, slots=True)
class RetrieverRewriter:
    """The policy with the prompts for one retriever."""

    conversation: Conversation | EndpointConversation
    card: RetrieverCard
    member: str | None
    """Name of the environment; None for a retriever that the policy was not trained for."""


class RewriterPool:
    """The prompts of a policy for all retrievers; thread-safe."""

    def __init__(self, trained: Trained, engine: Engine | EndpointModel) -> None:
        self._trained, self._engine = trained, engine
        self._cache: dict[tuple[str | None, RetrieverCard], RetrieverRewriter] = {}
        self._lock = threading.Lock()

    @property
    def members(self) -> Mapping[str, Member]:
        """The members with their cards. The environment is asked once for cards that no file contains."""
        with self._lock:
            self._trained = with_cards(self._trained)
            return self._trained.members

    @property
    def retriever_names(self) -> str:
        """The retrievers of training, without asking the environment for missing cards."""
        return self._trained.retriever_names

    def needs_environment(self, retriever: Retriever | None) -> bool:
        """Whether `select` must ask the environment for a missing card, which may be slow."""
        has_card = retriever is not None and not isinstance(retriever, str)
        return not has_card and any(member.card is None for member in self._trained.members.values())

    def select(self, retriever: Retriever | None) -> RetrieverRewriter:
        """The prompts for a retriever; None selects the only one. See `Rewriter.rewrite`. Raises ConfigError."""
        if retriever is None or isinstance(retriever, str):
            name = self._member_name(retriever)
            return self._prompts_for(name, self.members[name].rewriter, self._card(name))
        return self._for_card(
            retriever if isinstance(retriever, RetrieverCard) else RetrieverCard.from_service(retriever)
        )

    def _member_name(self, retriever: str | None) -> str:
        """The member for the name of an environment or a retriever."""
        members = self.members
        if retriever:
            matches = [name for name in members if retriever in (name, self._card(name).name)]
            if retriever in members or len(matches) == 1:
                return retriever if retriever in members else matches[0]
        if retriever or len(members) > 1:
            names = ", ".join(name or self._card(name).name for name in members)
            raise ConfigError(
                f"the policy was trained for {names}, and {retriever!r} does not name one: retriever=NAME"
            )
        return next(iter(members))

    def _for_card(self, card: RetrieverCard) -> RetrieverRewriter:
        """The prompts for a retriever by its card, whether the policy was trained for it or not."""
        members = self._trained.members  # the environment need not be asked for a card that the caller passed
        matches = [name for name, member in members.items() if member.card and member.card.name == card.name]
        if matches:
            name = next((name for name in matches if members[name].card == card), matches[0])
            return self._prompts_for(name, members[name].rewriter, card)
        if len(members) > 1:
            raise ConfigError(
                f"{self._trained.name} was trained for {', '.join(members)}, and the retriever {card.name!r} is none "
                "of theirs. Say as which of them it is asked: retriever=NAME."
            )
        (member,) = members.values()
        if member.card is not None and (None, card) not in self._cache:
            log.warning(
                "the retriever %r will search, and %s was trained for %r: its rewrites suit that one. Measure it with "
                "`querylect eval` before you rely on it",
                card.name, self._trained.name, member.card.name,
            )  # fmt: skip
        return self._prompts_for(None, member.rewriter, card)

    def _card(self, name: str) -> RetrieverCard:
        card = self.members[name].card
        assert card is not None, "the environment was asked for it"
        return card

    def _prompts_for(self, name: str | None, rewriter: RewriterConfig, card: RetrieverCard) -> RetrieverRewriter:
        with self._lock:
            if (name, card) not in self._cache:
                conversation = self._conversation(make_rewriter(rewriter, card, self._trained.k))
                self._cache[name, card] = RetrieverRewriter(conversation, card, name)
            return self._cache[name, card]

    def _conversation(self, rewriter: RewritingStrategy) -> Conversation | EndpointConversation:
        rollout = self._trained.config.rollout
        if isinstance(self._engine, EndpointModel):
            return self._engine.conversation(rewriter, rollout)
        return Conversation(self._engine, rewriter, rollout)
