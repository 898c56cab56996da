"""Which words a policy is asked in: the rewriter for the retriever that will search, made when it is first meant."""

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..configs.rewriter import RewriterConfig
from ..errors import ConfigError
from ..rewriters.card import RetrieverCard
from ..rewriters.registry import make_rewriter
from ..rewriters.small import load_prompt
from ..rollouts.engine import Engine
from ..rollouts.speaking import Speaker
from .trained import Member, Trained, asked_of_environment

log = logging.getLogger(__name__)

Retriever = str | RetrieverCard | Mapping[str, Any]
"""The name of an environment or a retriever, or a retriever's card, also as `GET /v1/environment` gives it."""

_TELLING = ("model_fingerprint", "pooling", "similarity", "query_template", "max_length", "k1", "b")
"""Entries of a card by which two retrievers of one name differ."""


@dataclass(frozen=True, slots=True)
class Voice:
    """The policy, asked in the words for one retriever."""

    speaker: Speaker
    card: RetrieverCard
    member: str | None
    """The environment that is meant, by name; None for a retriever that the policy was not trained for."""


class Voices:
    """All voices of a policy; may be asked from several threads."""

    def __init__(self, trained: Trained, engine: Engine) -> None:
        self._trained, self._engine = trained, engine
        self._made: dict[tuple[str | None, RetrieverCard], Voice] = {}
        self._told: set[object] = set()
        self._lock = threading.Lock()

    @property
    def members(self) -> Mapping[str, Member]:
        """With their cards; those that no file holds are asked of the environment, once."""
        with self._lock:
            self._trained = asked_of_environment(self._trained)
            return self._trained.members

    @property
    def known(self) -> Mapping[str, Member]:
        """The same as far as files say it; nothing is asked."""
        return self._trained.members

    def must_ask(self, retriever: Retriever | None) -> bool:
        """Whether `of` has to ask the environment, which takes its time: no file says which retriever is meant."""
        given = retriever is not None and not isinstance(retriever, str)
        return not given and any(member.card is None for member in self._trained.members.values())

    def of(self, retriever: Retriever | None) -> Voice:
        """The voice for a retriever; None is the only one. See `Rewriter.rewrite`. Raises ConfigError."""
        if retriever is None or isinstance(retriever, str):
            name = self._name(retriever)
            return self._voice(name, self.members[name].rewriter, self._card(name))
        if isinstance(retriever, RetrieverCard):
            return self._for_card(retriever, {})
        return self._for_card(RetrieverCard.from_service(retriever), retriever)

    def _name(self, meant: str | None) -> str:
        """The member that is meant."""
        members = self.members
        cards = {name: self._card(name) for name in members}
        known = ", ".join(name or card.name for name, card in cards.items())
        if meant is None:
            if len(members) > 1:
                raise ConfigError(f"the policy was trained for {known}. Say which retriever will search: retriever=…")
            return next(iter(members))
        if meant in members and meant:
            return meant
        found = [name for name, card in cards.items() if card.name == meant]
        if len(found) == 1:
            return found[0]
        if len(members) > 1:
            many = f"{len(found)} of the environments have" if found else "none of the environments is or has"
            raise ConfigError(f"{many} the retriever {meant!r}; the policy was trained for {known}. Name one of them.")
        (name,) = members
        self._warn(meant, f"the retriever {meant!r}", cards[name])
        return name

    def _for_card(self, card: RetrieverCard, said: Mapping[str, Any]) -> Voice:
        """The voice for a retriever of which the card is known, trained for or not."""
        members = self._trained.members  # a card that is given need not be asked for
        same = [name for name, member in members.items() if member.card == card]
        same = same or [name for name, member in members.items() if member.card and member.card.name == card.name]
        if same:
            member = members[same[0]]
            changed = [key for key in _TELLING if key in said and said[key] != member.said.get(key, said[key])]
            if changed:
                self._warn(("changed", card), f"the retriever {card.name!r} with another {', '.join(changed)}", card)
            return self._voice(same[0], member.rewriter, card)
        rewriter = self._rewriter_of_all(card)
        trained = [member.card for member in members.values() if member.card is not None]
        if trained:
            self._warn(card, f"the retriever {card.name!r}", *trained)
        return self._voice(None, rewriter, card)

    def _rewriter_of_all(self, card: RetrieverCard) -> RewriterConfig:
        """The settings that all members have. Raises ConfigError where they differ."""
        members = self._trained.members
        first, *others = [member.rewriter for member in members.values()]
        if not all(_alike(first, other) for other in others):
            raise ConfigError(
                f"{self._trained.name} was trained for {', '.join(members)}, each with a rewriter of its own, and the "
                f"retriever {card.name!r} is none of theirs. Say in whose words it is asked: retriever=NAME."
            )
        return first

    def _warn(self, key: object, seen: str, *trained: RetrieverCard) -> None:
        if key in self._told:
            return
        self._told.add(key)
        names = ", ".join(repr(card.name) for card in trained)
        log.warning(
            "%s will search, and %s was trained for %s: its rewrites suit that one. Measure it with `querylect eval` "
            "before you rely on it",
            seen,
            self._trained.name,
            names,
        )

    def _card(self, name: str) -> RetrieverCard:
        card = self.members[name].card
        assert card is not None, "the environment was asked for it"
        return card

    def _voice(self, name: str | None, rewriter: RewriterConfig, card: RetrieverCard) -> Voice:
        with self._lock:
            made = self._made.get((name, card))
            if made is None:
                speaker = Speaker(
                    self._engine, make_rewriter(rewriter, card, self._trained.k), self._trained.config.rollout
                )
                self._made[name, card] = made = Voice(speaker, card, name)
            return made


def _alike(one: RewriterConfig, other: RewriterConfig) -> bool:
    """Whether two settings are the same, their prompts compared by what stands in them."""
    if one.name == other.name == "small" and load_prompt(one.prompt) == load_prompt(other.prompt):
        other = other.model_copy(update={"prompt": one.prompt})
    return one == other
