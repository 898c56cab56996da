"""Selects the prompts of a policy by the target retriever. They are built on first use and cached."""

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from ..configs.rewriter import RewriterConfig
from ..errors import ConfigError
from ..rewriters.base import RewritingStrategy
from ..rewriters.registry import make_rewriter
from ..rewriters.retriever_info import RetrieverInfo
from ..rollouts.engines.base import Engine
from ..rollouts.tree_sampler import Conversation
from .endpoint import EndpointConversation, EndpointModel
from .load import Member, Trained, with_retrievers

log = logging.getLogger(__name__)

Retriever = str | RetrieverInfo | Mapping[str, object]
"""The name of an environment or a retriever, or its description, also as returned by `GET /v1/environment`."""


@dataclass(frozen=True, slots=True)
class RetrieverRewriter:
    """The policy with the prompts for one retriever."""

    conversation: Conversation | EndpointConversation
    retriever: RetrieverInfo
    member: str | None
    """Name of the environment; None for a retriever that the policy was not trained for."""


class RewriterPool:
    """The prompts of a policy for all retrievers; thread-safe."""

    def __init__(self, trained: Trained, engine: Engine | EndpointModel) -> None:
        self._trained, self._engine = trained, engine
        self._cache: dict[tuple[str | None, RetrieverInfo], RetrieverRewriter] = {}
        self._lock = threading.Lock()

    @property
    def members(self) -> Mapping[str, Member]:
        """The members with their retrievers. The environment is asked once for descriptions that no file contains."""
        with self._lock:
            self._trained = with_retrievers(self._trained)
            return self._trained.members

    @property
    def retriever_names(self) -> str:
        """The retrievers of training, without asking the environment for missing descriptions."""
        return self._trained.retriever_names

    def needs_environment(self, retriever: Retriever | None) -> bool:
        """Whether `select` must ask the environment for a missing description, which may be slow."""
        is_described = retriever is not None and not isinstance(retriever, str)
        return not is_described and any(member.retriever is None for member in self._trained.members.values())

    def select(self, retriever: Retriever | None) -> RetrieverRewriter:
        """The prompts for a retriever; None selects the only one. See `Rewriter.rewrite`. Raises ConfigError."""
        if retriever is None or isinstance(retriever, str):
            name = self._member_name(retriever)
            return self._prompts_for(name, self.members[name].rewriter, self._retriever_info(name))
        return self._for_retriever(
            retriever if isinstance(retriever, RetrieverInfo) else RetrieverInfo.from_service(retriever)
        )

    def _member_name(self, retriever: str | None) -> str:
        """The member for the name of an environment or a retriever."""
        members = self.members
        if retriever:
            matches = [name for name in members if retriever in (name, self._retriever_info(name).name)]
            if retriever in members or len(matches) == 1:
                return retriever if retriever in members else matches[0]
        if retriever or len(members) > 1:
            names = ", ".join(name or self._retriever_info(name).name for name in members)
            raise ConfigError(
                f"the policy was trained for {names}, and {retriever!r} does not name one: retriever=NAME"
            )
        return next(iter(members))

    def _for_retriever(self, retriever: RetrieverInfo) -> RetrieverRewriter:
        """The prompts for a retriever by its description, whether the policy was trained for it or not."""
        members = self._trained.members  # the environment need not be asked for a description that the caller passed
        matches = [
            name for name, member in members.items() if member.retriever and member.retriever.name == retriever.name
        ]
        if matches:
            name = next((name for name in matches if members[name].retriever == retriever), matches[0])
            return self._prompts_for(name, members[name].rewriter, retriever)
        if len(members) > 1:
            raise ConfigError(
                f"{self._trained.name} was trained for {', '.join(members)}, and the retriever {retriever.name!r} is "
                "none of theirs. Say as which of them it is asked: retriever=NAME."
            )
        (member,) = members.values()
        if member.retriever is not None and (None, retriever) not in self._cache:
            log.warning(
                "the retriever %r will search, and %s was trained for %r: its rewrites suit that one. Measure it with "
                "`querylect eval` before you rely on it",
                retriever.name, self._trained.name, member.retriever.name,
            )  # fmt: skip
        return self._prompts_for(None, member.rewriter, retriever)

    def _retriever_info(self, name: str) -> RetrieverInfo:
        retriever = self.members[name].retriever
        assert retriever is not None, "the environment was asked for it"
        return retriever

    def _prompts_for(self, name: str | None, rewriter: RewriterConfig, retriever: RetrieverInfo) -> RetrieverRewriter:
        with self._lock:
            if (name, retriever) not in self._cache:
                conversation = self._conversation(make_rewriter(rewriter, retriever, self._trained.k))
                self._cache[name, retriever] = RetrieverRewriter(conversation, retriever, name)
            return self._cache[name, retriever]

    def _conversation(self, rewriter: RewritingStrategy) -> Conversation | EndpointConversation:
        rollout = self._trained.config.rollout
        if isinstance(self._engine, EndpointModel):
            return self._engine.conversation(rewriter, rollout)
        return Conversation(self._engine, rewriter, rollout)
