"""A trained rewriter in a program of one's own.

    rewriter = Rewriter.from_pretrained("runs/demo")
    result = rewriter.rewrite("pinky finger bent inwards")
    print(result.text, result.plan, result.failure)

Answers are greedy and made of the same steps as those of `querylect eval`: the same ids for the same question, in the
turn that won on validation. Where that is a later one, the rewriter searches between its turns. One object may be asked
by many threads and tasks at once; their questions are put together.
"""

import asyncio
import itertools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, overload

from ..data.types import Question
from ..errors import ConfigError, RequestError
from ..rewriters.card import RetrieverCard
from ..rollouts.engine import Engine
from ..rollouts.grow import ANSWERED_AT_ONCE
from .asked import Asked, Shown, checked, document_of, is_one, like
from .desk import Desk
from .results import RewriteResult, SearchResult
from .searching import AsyncSearcher, OwnSearch, Searcher, awaited
from .trained import Trained, open_trained
from .turns import Asker, Conversation, Order, answer, conversation
from .voices import Retriever, Voices

log = logging.getLogger(__name__)

_IDS = 2**16
"""Question ids go round: what a rewriter remembers of questions stays bounded, and no two under way are the same."""


class Rewriter:
    """Rewrites questions, and searches with them, with one policy."""

    def __init__(
        self,
        trained: Trained,
        engine: Engine | None = None,
        *,
        turn: int | None = None,
        client: Searcher | None = None,
    ) -> None:
        """Load the policy, or take an `engine` that already holds it. `turn` and `client` as in `from_pretrained`.

        Raises ConfigError for a turn below 1, ModelError, CheckpointError.
        """
        if turn is not None and turn < 1:
            raise ConfigError(f"turn is {turn}; turns are counted from 1.")
        if engine is None:
            from ..rollouts.engines import load_engine

            engine = load_engine(trained.config, trained.checkpoint, trained.base_fingerprint)
        self._trained = trained
        self._engine = engine
        self._voices = Voices(trained, engine)
        self._turn, self._client, self._own = turn or trained.used.turn, client, OwnSearch(trained)
        if trained.turns > 1:
            reason = trained.used.reason if turn is None else "it was asked for"
            log.info("%s: the rewrite of turn %d is used (%s)", trained.name, self._turn, reason)
        self._numbers = itertools.count()
        self._desk: Desk[Order, RewriteResult] = Desk(
            lambda orders: answer(orders, trained.base, trained.k), ANSWERED_AT_ONCE
        )

    @classmethod
    def from_pretrained(
        cls,
        path_or_id: str | Path,
        *,
        revision: str | None = None,
        token: str | None = None,
        checkpoint: str | None = None,
        settings: Sequence[str] = (),
        trust_remote_code: bool = False,
        turn: int | None = None,
        client: Searcher | None = None,
    ) -> Self:
        """The rewriter of an exported folder, a Hub repository, a run folder, or a config (its untrained policy).

        `turn` asks for another turn than the one that won on validation. `client` is what is searched between turns;
        where it is None, the environment that the run was trained in. The other arguments and errors are those of
        `open_trained`; and it raises as `load_policy`.
        """
        trained = open_trained(
            str(path_or_id),
            revision=revision,
            token=token,
            checkpoint=checkpoint,
            settings=settings,
            trust_remote_code=trust_remote_code,
        )
        return cls(trained, turn=turn, client=client)

    def __repr__(self) -> str:
        names = [member.card.name if member.card else name for name, member in self._voices.known.items()]
        checkpoint = self._trained.checkpoint
        parts = [repr(self.name), f"retriever={'/'.join(names) or 'unknown'!r}", f"turn={self._turn}"]
        parts += [f"checkpoint={checkpoint.name!r}"] if checkpoint is not None else []
        model: Any = getattr(self._engine, "model", None)  # an engine that samples elsewhere has none
        parts += [f"device={str(next(model.parameters()).device)!r}"] if hasattr(model, "parameters") else []
        return f"Rewriter({', '.join(parts)})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Work on nothing more; calls that wait for their turn raise ClosedError."""
        self._desk.close()
        self._own.close()

    def prepare(self, retriever: Retriever | None = None) -> None:
        """Say now, not with the first question, what is wrong with a retriever. Raises ConfigError."""
        self._voices.of(retriever)

    @property
    def name(self) -> str:
        """As the user called it."""
        return self._trained.name

    @property
    def turns(self) -> int:
        """Turns that the policy was trained on."""
        return self._trained.turns

    @property
    def turn(self) -> int:
        """The turn whose rewrite is the answer."""
        return self._turn

    @property
    def retrievers(self) -> dict[str, RetrieverCard]:
        """The retrievers that it was trained for, by the name of their environment; {"": …} for a single one.

        Raises as `open_environments` where no file says it and the environment must be asked.
        """
        return {name: member.card for name, member in self._voices.members.items() if member.card is not None}

    @property
    def waiting(self) -> int:
        """Questions that wait for their turn."""
        return self._desk.waiting

    @property
    def seconds_per_question(self) -> float:
        """Of the last batches; 0 before the first."""
        return self._desk.seconds_per_item

    @overload
    def rewrite(  # type: ignore[overload-overlap]  # a text is a sequence of texts, too
        self,
        questions: Asked,
        *,
        retriever: Retriever | None = None,
        documents: Sequence[Shown] | None = None,
        after: RewriteResult | None = None,
        turn: int | None = None,
        client: Searcher | None = None,
    ) -> RewriteResult: ...

    @overload
    def rewrite(
        self,
        questions: Sequence[Asked],
        *,
        retriever: Retriever | None = None,
        documents: Sequence[Sequence[Shown]] | None = None,
        after: Sequence[RewriteResult] | None = None,
        turn: int | None = None,
        client: Searcher | None = None,
    ) -> list[RewriteResult]: ...

    def rewrite(
        self,
        questions: Any,
        *,
        retriever: Retriever | None = None,
        documents: Any = None,
        after: Any = None,
        turn: int | None = None,
        client: Any = None,
    ) -> Any:
        """Rewrite one question, or several in one batch, and give the answer of `turn`, the rewriter's own where None.

        For a later turn `client` is searched with the answers of those before; the rewriter's own where None.

        `retriever` says which one of a policy for several is meant; for a policy of one it is compared with the card
        that it was trained for, and a difference is told in the log. `documents` takes the place of the search: it asks
        for the turn after the one that found them, a list for one question, a list of lists for several. It goes on
        from `after`, the result of the turn before; without it the first turn is answered again.

        A failed answer gives the question itself, and its `failure` says why. Raises ConfigError for an unknown
        retriever, where one must be named, where a later turn has nothing to search, and where
        `rollout.max_prompt_tokens` leaves no room for any question; RequestError for what is no question, as a blank
        text or None; and what the search raises.
        """
        asked = checked(questions)
        wanted = self._wanted(turn, documents, after)
        if wanted == 1:
            return like(questions, self._desk.ask(self._orders(asked, retriever, documents, after, questions)))
        searcher = client or self._client or self._own.of(self._voices.of(retriever).member, wanted)
        steps = conversation(self._asker(asked, retriever), asked, wanted, None, searched=False)
        found = self._converse(steps, searcher)
        return like(questions, [one.rewrite for one in found])

    @overload
    async def arewrite(  # type: ignore[overload-overlap]
        self,
        questions: Asked,
        *,
        retriever: Retriever | None = None,
        documents: Sequence[Shown] | None = None,
        after: RewriteResult | None = None,
        turn: int | None = None,
        client: Searcher | AsyncSearcher | None = None,
    ) -> RewriteResult: ...

    @overload
    async def arewrite(
        self,
        questions: Sequence[Asked],
        *,
        retriever: Retriever | None = None,
        documents: Sequence[Sequence[Shown]] | None = None,
        after: Sequence[RewriteResult] | None = None,
        turn: int | None = None,
        client: Searcher | AsyncSearcher | None = None,
    ) -> list[RewriteResult]: ...

    async def arewrite(
        self,
        questions: Any,
        *,
        retriever: Retriever | None = None,
        documents: Any = None,
        after: Any = None,
        turn: int | None = None,
        client: Any = None,
    ) -> Any:
        """`rewrite` for an event loop: concurrent calls stand in one batch, and a cancelled one costs nothing more."""
        asked = checked(questions)
        wanted = self._wanted(turn, documents, after)
        await self._know(retriever)
        if wanted == 1:
            orders = self._orders(asked, retriever, documents, after, questions)
            return like(questions, await self._desk.ask_soon(orders))
        searcher = client or self._client
        if searcher is None:
            member = self._voices.of(retriever).member
            searcher = await asyncio.to_thread(self._own.of, member, wanted)
        steps = conversation(self._asker(asked, retriever), asked, wanted, None, searched=False)
        return like(questions, [one.rewrite for one in await self._aconverse(steps, searcher)])

    @overload
    def search(  # type: ignore[overload-overlap]
        self,
        questions: Asked,
        client: Searcher,
        *,
        turns: int | None = None,
        retriever: Retriever | None = None,
        k: int | None = None,
    ) -> SearchResult: ...

    @overload
    def search(
        self,
        questions: Sequence[Asked],
        client: Searcher,
        *,
        turns: int | None = None,
        retriever: Retriever | None = None,
        k: int | None = None,
    ) -> list[SearchResult]: ...

    def search(
        self,
        questions: Any,
        client: Any,
        *,
        turns: int | None = None,
        retriever: Retriever | None = None,
        k: int | None = None,
    ) -> Any:
        """Rewrite and search, turn after turn, each one shown what the one before it found.

        It ends with turn `turns`, the rewriter's own where it is None. Where the last answer failed, the question
        itself is searched. Where `retriever` is None, the client's environment says which one it is. `k` asks for
        another number of documents in the last turn. Raises as `rewrite` and as the client does.
        """
        asked = checked(questions)
        if retriever is None and hasattr(client, "environment"):
            retriever = client.environment().retriever
        steps = conversation(self._asker(asked, retriever), asked, turns or self._turn, k, searched=True)
        return like(questions, self._converse(steps, client))

    @overload
    async def asearch(  # type: ignore[overload-overlap]
        self,
        questions: Asked,
        client: AsyncSearcher,
        *,
        turns: int | None = None,
        retriever: Retriever | None = None,
        k: int | None = None,
    ) -> SearchResult: ...

    @overload
    async def asearch(
        self,
        questions: Sequence[Asked],
        client: AsyncSearcher,
        *,
        turns: int | None = None,
        retriever: Retriever | None = None,
        k: int | None = None,
    ) -> list[SearchResult]: ...

    async def asearch(
        self,
        questions: Any,
        client: Any,
        *,
        turns: int | None = None,
        retriever: Retriever | None = None,
        k: int | None = None,
    ) -> Any:
        """`search` for an event loop."""
        asked = checked(questions)
        if retriever is None and hasattr(client, "environment"):
            retriever = (await client.environment()).retriever
        await self._know(retriever)
        steps = conversation(self._asker(asked, retriever), asked, turns or self._turn, k, searched=True)
        return like(questions, await self._aconverse(steps, client))

    def _converse(self, steps: Conversation, client: Any) -> list[SearchResult]:
        """Answer and search until the conversation ends."""
        orders = next(steps)
        while True:
            try:
                plans = steps.send(self._desk.ask(orders))
                orders = steps.send(client.search(plans) if plans else [])
            except StopIteration as stop:
                return list(stop.value)

    async def _aconverse(self, steps: Conversation, client: Any) -> list[SearchResult]:
        """The same for an event loop; a client that does not have to be waited for searches in a thread."""
        orders = next(steps)
        while True:
            try:
                plans = steps.send(await self._desk.ask_soon(orders))
                orders = steps.send(await awaited(await asyncio.to_thread(client.search, plans)) if plans else [])
            except StopIteration as stop:
                return list(stop.value)

    def _wanted(self, turn: int | None, documents: Any, after: Any) -> int:
        """The turn to answer in a conversation of its own; 1 too where the caller goes on with one (`documents`)."""
        if documents is None and after is None:
            if turn is not None and turn < 1:
                raise RequestError(f"turn is {turn}; turns are counted from 1.")
            return turn or self._turn
        if turn is not None:
            raise RequestError("documents ask for the turn after the one that found them; leave turn out.")
        return 1

    async def _know(self, retriever: Retriever | None) -> None:
        """Ask the environment, where it must be, without holding up the event loop."""
        if self._voices.must_ask(retriever):
            await asyncio.to_thread(self._voices.of, retriever)

    def _asker(self, asked: Sequence[Question], retriever: Retriever | None) -> Asker:
        return lambda documents, after: self._orders(asked, retriever, documents, after, asked)

    def _orders(
        self, asked: Sequence[Question], retriever: Retriever | None, documents: Any, after: Any, questions: Any
    ) -> list[Order]:
        """What the desk is asked; `questions` as the caller gave them say whether there is one."""
        one = is_one(questions)
        shown = [None] * len(asked) if documents is None else [documents] if one else documents
        before = [None] * len(asked) if after is None else [after] if one else after
        if not len(asked) == len(shown) == len(before):
            raise RequestError(
                f"{len(asked)} questions came with {len(shown)} lists of documents and {len(before)} results of the "
                "turn before; give one of each for every question."
            )
        if after is not None and documents is None:
            raise RequestError("a turn after another one is shown documents; give them (an empty list is none found).")
        voice = self._voices.of(retriever)
        return [
            Order(
                voice,
                question,
                str(next(self._numbers) % _IDS),
                None if found is None else [document_of(document) for document in found],
                result,
            )
            for question, found, result in zip(asked, shown, before, strict=True)
        ]
