"""The Python API of a trained rewriter.

    rewriter = Rewriter.from_pretrained("runs/demo")
    result = rewriter.rewrite("pinky finger bent inwards")
    print(result.text, result.plan, result.failure)

Answers are greedy and take the same steps as in `querylect eval`, so a question gets the same ids. The answer is that
of the turn selected on validation; if it is a later turn, the rewriter searches between turns. A rewriter may be shared
by threads and tasks; their questions are batched together.
"""

import asyncio
import itertools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, cast, overload

from ..data.types import Question
from ..errors import ConfigError, RequestError
from ..rewriters.card import RetrieverCard
from ..rollouts.engines.base import Engine
from ..rollouts.grow import ANSWERED_AT_ONCE
from .batching import DynamicBatcher
from .load import Trained, open_trained
from .requests import Asked, Shown, checked, document_of, is_one, like
from .results import RewriteResult, SearchResult
from .retriever_prompts import Retriever, RewriterPool
from .searching import AsyncSearcher, DefaultSearch, Searcher, awaited
from .turns import Asker, Order, TurnSteps, answer, conversation

log = logging.getLogger(__name__)

_MAX_IDS = 2**16
"""Question ids wrap around, which bounds per-question caches; ids of concurrent questions still differ."""

Documents = Sequence[Shown] | Sequence[Sequence[Shown]]
"""Of one question, or of each of several."""
Earlier = RewriteResult | Sequence[RewriteResult]
"""The results of the previous turn, likewise."""


class Rewriter:
    """Rewrites questions with one policy, and searches with the rewrites."""

    def __init__(
        self,
        trained: Trained,
        engine: Engine | None = None,
        *,
        turn: int | None = None,
        client: Searcher | None = None,
    ) -> None:
        """Load the policy, or use an `engine` that has loaded it. `turn` and `client` as in `from_pretrained`.

        Raises ConfigError for a turn below 1, ModelError, CheckpointError.
        """
        if turn is not None and turn < 1:
            raise ConfigError(f"turn is {turn}; turns are counted from 1.")
        if engine is None:
            from ..rollouts.engines.open import load_engine

            engine = load_engine(trained.config, trained.checkpoint, trained.base_fingerprint)
        self._trained = trained
        self._engine = engine
        self._prompts = RewriterPool(trained, engine)
        self._turn, self._client, self._default_search = turn or trained.used.turn, client, DefaultSearch(trained)
        if trained.turns > 1:
            reason = trained.used.reason if turn is None else "it was asked for"
            log.info("%s: the rewrite of turn %d is used (%s)", trained.name, self._turn, reason)
        self._id_counter = itertools.count()
        self._batcher: DynamicBatcher[Order, RewriteResult] = DynamicBatcher(
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

        `turn` overrides the turn selected on validation. `client` is searched between turns; None is the environment of
        the run. The other arguments and errors are those of `open_trained`; it also raises as `load_policy`.
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
        names = [member.card.name if member.card else name for name, member in self._prompts.static_members.items()]
        checkpoint = self._trained.checkpoint
        parts = [repr(self.name), f"retriever={'/'.join(names) or 'unknown'!r}", f"turn={self._turn}"]
        parts += [f"checkpoint={checkpoint.name!r}"] if checkpoint is not None else []
        model: Any = getattr(self._engine, "model", None)  # None for a remote engine
        parts += [f"device={str(next(model.parameters()).device)!r}"] if hasattr(model, "parameters") else []
        return f"Rewriter({', '.join(parts)})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop accepting questions; queued calls raise ClosedError."""
        self._batcher.close()
        self._default_search.close()

    def prepare(self, retriever: Retriever | None = None) -> None:
        """Validate a retriever before the first question. Raises ConfigError."""
        self._prompts.of(retriever)

    @property
    def name(self) -> str:
        """The path, id or config name that the user passed."""
        return self._trained.name

    @property
    def turns(self) -> int:
        """Number of turns in training."""
        return self._trained.turns

    @property
    def turn(self) -> int:
        """The turn whose rewrite is used."""
        return self._turn

    @property
    def retrievers(self) -> dict[str, RetrieverCard]:
        """The retrievers of training, by environment name; {"": …} for a single one.

        Raises as `open_environments` if no file records them and the environment must be asked.
        """
        return {name: member.card for name, member in self._prompts.members.items() if member.card is not None}

    @property
    def waiting(self) -> int:
        """Number of queued questions."""
        return self._batcher.waiting

    @property
    def seconds_per_question(self) -> float:
        """Moving average over the last batches; 0 before the first."""
        return self._batcher.seconds_per_item

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
        questions: Asked | Sequence[Asked],
        *,
        retriever: Retriever | None = None,
        documents: Documents | None = None,
        after: Earlier | None = None,
        turn: int | None = None,
        client: Searcher | None = None,
    ) -> RewriteResult | list[RewriteResult]:
        """Rewrite one question, or several in one batch, and return the answer of `turn` (default: `self.turn`).

        Before a later turn, `client` is searched with the answer of the previous turn (default: the rewriter's client).

        `retriever` selects the retriever of a policy trained for several. For a policy trained for one it is compared
        with the card of training, and a difference is logged. `documents` replaces the search: the answer is that of
        the turn after the one that retrieved them. Pass a list for one question, a list of lists for several. `after`
        is the result of the previous turn; without it the first turn is generated again.

        A failed answer returns the question, with the reason in `failure`. Raises ConfigError for an unknown or
        ambiguous retriever, for a later turn without anything to search, and if `rollout.max_prompt_tokens` is too
        small for any question; RequestError for an invalid question, such as a blank text or None; and the errors of
        the search.
        """
        batch = checked(questions)
        target = self._target_turn(turn, documents, after)
        if target == 1:
            return like(questions, self._batcher.ask(self._orders(batch, retriever, documents, after, questions)))
        searcher = client or self._client or self._default_search.of(self._prompts.of(retriever).member, target)
        steps = conversation(self._order_maker(batch, retriever), batch, target, None, searched=False)
        results = self._converse(steps, searcher)
        return like(questions, [result.rewrite for result in results])

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
        questions: Asked | Sequence[Asked],
        *,
        retriever: Retriever | None = None,
        documents: Documents | None = None,
        after: Earlier | None = None,
        turn: int | None = None,
        client: Searcher | AsyncSearcher | None = None,
    ) -> RewriteResult | list[RewriteResult]:
        """`rewrite` for an event loop: concurrent calls share a batch, and cancelled ones still queued are not run."""
        batch = checked(questions)
        target = self._target_turn(turn, documents, after)
        await self._load_cards(retriever)
        if target == 1:
            orders = self._orders(batch, retriever, documents, after, questions)
            return like(questions, await self._batcher.ask_soon(orders))
        searcher = client or self._client
        if searcher is None:
            member = self._prompts.of(retriever).member
            searcher = await asyncio.to_thread(self._default_search.of, member, target)
        steps = conversation(self._order_maker(batch, retriever), batch, target, None, searched=False)
        return like(questions, [result.rewrite for result in await self._aconverse(steps, searcher)])

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
        questions: Asked | Sequence[Asked],
        client: Searcher,
        *,
        turns: int | None = None,
        retriever: Retriever | None = None,
        k: int | None = None,
    ) -> SearchResult | list[SearchResult]:
        """Rewrite and search for `turns` turns (default: `self.turn`), each shown the documents of the previous one.

        If the last answer failed, the question itself is searched. If `retriever` is None, the client's environment
        names it. `k` overrides the number of documents in the last turn. Raises as `rewrite` and as the client.
        """
        batch = checked(questions)
        if retriever is None and hasattr(client, "environment"):
            retriever = client.environment().retriever
        steps = conversation(self._order_maker(batch, retriever), batch, turns or self._turn, k, searched=True)
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
        questions: Asked | Sequence[Asked],
        client: AsyncSearcher,
        *,
        turns: int | None = None,
        retriever: Retriever | None = None,
        k: int | None = None,
    ) -> SearchResult | list[SearchResult]:
        """`search` for an event loop."""
        batch = checked(questions)
        if retriever is None and hasattr(client, "environment"):
            retriever = (await client.environment()).retriever
        await self._load_cards(retriever)
        steps = conversation(self._order_maker(batch, retriever), batch, turns or self._turn, k, searched=True)
        return like(questions, await self._aconverse(steps, client))

    def _converse(self, steps: TurnSteps, client: Searcher) -> list[SearchResult]:
        """Run the conversation to its end, alternating between answers and searches."""
        orders = next(steps)
        while True:
            try:
                plans = steps.send(self._batcher.ask(orders))
                orders = steps.send(client.search(plans) if plans else [])
            except StopIteration as stop:
                return list(stop.value)

    async def _aconverse(self, steps: TurnSteps, client: Searcher | AsyncSearcher) -> list[SearchResult]:
        """`_converse` for an event loop; the client is called in a thread, since it may be synchronous."""
        orders = next(steps)
        while True:
            try:
                plans = steps.send(await self._batcher.ask_soon(orders))
                orders = steps.send(await awaited(await asyncio.to_thread(client.search, plans)) if plans else [])
            except StopIteration as stop:
                return list(stop.value)

    def _target_turn(self, turn: int | None, documents: Documents | None, after: Earlier | None) -> int:
        """The last turn to answer; 1 if the caller passes `documents`, because a single turn is then run."""
        if documents is None and after is None:
            if turn is not None and turn < 1:
                raise RequestError(f"turn is {turn}; turns are counted from 1.")
            return turn or self._turn
        if turn is not None:
            raise RequestError("documents ask for the turn after the one that found them; leave turn out.")
        return 1

    async def _load_cards(self, retriever: Retriever | None) -> None:
        """Ask the environment for missing cards, if needed, without blocking the event loop."""
        if self._prompts.must_ask(retriever):
            await asyncio.to_thread(self._prompts.of, retriever)

    def _order_maker(self, questions: Sequence[Question], retriever: Retriever | None) -> Asker:
        return lambda documents, after: self._orders(questions, retriever, documents, after, questions)

    def _orders(
        self,
        batch: Sequence[Question],
        retriever: Retriever | None,
        documents: Documents | None,
        after: Earlier | None,
        questions: object,
    ) -> list[Order]:
        """The orders of one turn; `questions`, as the caller passed them, tell a single question from a list."""
        single = is_one(questions)
        document_lists: Sequence[Sequence[Shown] | None] = [None] * len(batch)
        if documents is not None:
            document_lists = cast("Sequence[Sequence[Shown]]", [documents] if single else documents)
        previous: Sequence[RewriteResult | None] = [None] * len(batch)
        if after is not None:
            previous = cast("Sequence[RewriteResult]", [after] if single else after)
        if not len(batch) == len(document_lists) == len(previous):
            raise RequestError(
                f"{len(batch)} questions came with {len(document_lists)} lists of documents and {len(previous)} "
                "results of the turn before; give one of each for every question."
            )
        if after is not None and documents is None:
            raise RequestError("a turn after another one is shown documents; give them (an empty list is none found).")
        prompts = self._prompts.of(retriever)
        return [
            Order(
                prompts,
                question,
                str(next(self._id_counter) % _MAX_IDS),
                None if hits is None else [document_of(document) for document in hits],
                result,
            )
            for question, hits, result in zip(batch, document_lists, previous, strict=True)
        ]
