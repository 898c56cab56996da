"""A trained rewriter in a program of one's own.

    rewriter = Rewriter.from_pretrained("runs/demo")
    result = rewriter.rewrite("pinky finger bent inwards")
    print(result.text, result.plan, result.failure)

Answers are greedy and made of the same steps as those of `querylect eval`: the same ids for the same question. One
object may be asked by many threads and tasks at once; their questions are put together.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Generator, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar, overload

from ..data.types import Document, Question
from ..envs.plan import SearchPlan, is_unicode
from ..envs.wire import HitBody
from ..errors import RequestError
from ..rewriters.card import RetrieverCard
from ..rollouts.engine import Engine
from ..rollouts.grow import ANSWERED_AT_ONCE
from .desk import Desk
from .results import FoundTurn, RewriteResult, SearchResult
from .trained import Trained, open_trained
from .turns import Order, answer
from .voices import Retriever, Voices

Asked = str | Question
Shown = Document | HitBody | str
"""A document that a later turn is shown: of a ranking, or a plain text."""
Result = TypeVar("Result")

_IDS = 2**16
"""Question ids go round: what a rewriter remembers of questions stays bounded, and no two under way are the same."""


class Searcher(Protocol):
    """What `Rewriter.search` asks: `SyncEnvironmentClient` is one."""

    def search(self, plans: Sequence[SearchPlan]) -> Sequence[Sequence[HitBody]]:
        """One ranking with texts for each plan."""
        ...


class AsyncSearcher(Protocol):
    """What `Rewriter.asearch` asks: `EnvironmentClient` is one."""

    def search(self, plans: Sequence[SearchPlan]) -> Awaitable[Sequence[Sequence[HitBody]]]:
        """One ranking with texts for each plan."""
        ...


class Rewriter:
    """Rewrites questions, and searches with them, with one policy."""

    def __init__(self, trained: Trained, engine: Engine | None = None) -> None:
        """Load the policy, or take an `engine` that already holds it. Raises ModelError, CheckpointError."""
        if engine is None:
            from ..rollouts.engines import load_engine

            engine = load_engine(trained.config, trained.checkpoint, trained.base_fingerprint)
        self._trained = trained
        self._voices = Voices(trained, engine)
        self._numbers = itertools.count()
        self._desk: Desk[Order, RewriteResult] = Desk(lambda orders: answer(orders, trained.base), ANSWERED_AT_ONCE)

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
    ) -> Self:
        """The rewriter of an exported folder, a Hub repository, a run folder, or a config (its untrained policy).

        Arguments and errors are those of `open_trained`; and it raises as `load_policy`.
        """
        trained = open_trained(
            str(path_or_id),
            revision=revision,
            token=token,
            checkpoint=checkpoint,
            settings=settings,
            trust_remote_code=trust_remote_code,
        )
        return cls(trained)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Work on nothing more; calls that wait for their turn raise ClosedError."""
        self._desk.close()

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
    ) -> RewriteResult: ...

    @overload
    def rewrite(
        self,
        questions: Sequence[Asked],
        *,
        retriever: Retriever | None = None,
        documents: Sequence[Sequence[Shown]] | None = None,
        after: Sequence[RewriteResult] | None = None,
    ) -> list[RewriteResult]: ...

    def rewrite(
        self, questions: Any, *, retriever: Retriever | None = None, documents: Any = None, after: Any = None
    ) -> Any:
        """Rewrite one question, or several in one batch.

        `retriever` says which one of a policy for several is meant; for a policy of one it is compared with the card
        that it was trained for, and a difference is told in the log. `documents` asks for the turn after the one that
        found them: a list for one question, a list of lists for several. It goes on from `after`, the result of the
        turn before; without it the first turn is answered again.

        A failed answer is a result whose `failure` says why. Raises ConfigError for an unknown retriever, where one
        must be named, and where `rollout.max_prompt_tokens` leaves no room for any question; RequestError for a text
        that is no Unicode.
        """
        return _like(questions, self._desk.ask(self._orders(questions, retriever, documents, after)))

    @overload
    async def arewrite(  # type: ignore[overload-overlap]
        self,
        questions: Asked,
        *,
        retriever: Retriever | None = None,
        documents: Sequence[Shown] | None = None,
        after: RewriteResult | None = None,
    ) -> RewriteResult: ...

    @overload
    async def arewrite(
        self,
        questions: Sequence[Asked],
        *,
        retriever: Retriever | None = None,
        documents: Sequence[Sequence[Shown]] | None = None,
        after: Sequence[RewriteResult] | None = None,
    ) -> list[RewriteResult]: ...

    async def arewrite(
        self, questions: Any, *, retriever: Retriever | None = None, documents: Any = None, after: Any = None
    ) -> Any:
        """`rewrite` for an event loop: concurrent calls stand in one batch, and a cancelled one costs nothing more."""
        await self._know(retriever)
        return _like(questions, await self._desk.ask_soon(self._orders(questions, retriever, documents, after)))

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

        `turns` is as many as the policy was trained on where it is None. Where `retriever` is None, the client's
        environment says which one it is. `k` asks for another number of documents in the last turn. Raises as
        `rewrite` and as the client does.
        """
        if retriever is None and hasattr(client, "environment"):
            retriever = client.environment().retriever
        steps = self._conversation(questions, retriever, turns, k)
        orders = next(steps)
        while True:
            plans = steps.send(self._desk.ask(orders))
            try:
                orders = steps.send(client.search(plans) if plans else [])
            except StopIteration as stop:
                return _like(questions, stop.value)

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
        if retriever is None and hasattr(client, "environment"):
            retriever = (await client.environment()).retriever
        await self._know(retriever)
        steps = self._conversation(questions, retriever, turns, k)
        orders = next(steps)
        while True:
            plans = steps.send(await self._desk.ask_soon(orders))
            try:
                orders = steps.send(await client.search(plans) if plans else [])
            except StopIteration as stop:
                return _like(questions, stop.value)

    async def _know(self, retriever: Retriever | None) -> None:
        """Ask the environment, where it must be, without holding up the event loop."""
        if self._voices.must_ask(retriever):
            await asyncio.to_thread(self._voices.of, retriever)

    def _orders(self, questions: Any, retriever: Retriever | None, documents: Any, after: Any) -> list[Order]:
        one = isinstance(questions, (str, Question))
        asked: Sequence[Asked] = [questions] if one else questions
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
                _question(question),
                str(next(self._numbers) % _IDS),
                None if found is None else [_document(document) for document in found],
                result,
            )
            for question, found, result in zip(asked, shown, before, strict=True)
        ]

    def _conversation(
        self, questions: Any, retriever: Retriever | None, turns: int | None, k: int | None
    ) -> Generator[Any, Any, list[SearchResult]]:
        """Yields orders and is sent results, then yields plans and is sent rankings; so it goes on for every turn."""
        turns = turns or self.turns
        asked = [questions] if isinstance(questions, (str, Question)) else list(questions)
        orders = self._orders(asked, retriever, None, None)
        found: list[list[FoundTurn]] = [[] for _ in orders]
        for turn in range(1, turns + 1):
            results: list[RewriteResult] = yield orders
            plans = [result.plan for result in results if result.plan is not None]
            if turn == turns and k is not None:
                plans = [plan.model_copy(update={"k": k}) for plan in plans]
            rankings = iter((yield plans))
            for result, mine in zip(results, found, strict=True):
                mine.append(FoundTurn(result, None if result.plan is None else tuple(next(rankings))))
            shown = [mine[-1].ranking or () for mine in found]
            if turn < turns:
                orders = self._orders(asked, retriever, shown, results)
        return [SearchResult(_question(one), tuple(mine)) for one, mine in zip(asked, found, strict=True)]


def _question(asked: Asked) -> Question:
    question = asked if isinstance(asked, Question) else Question("", asked)
    if not all(map(is_unicode, (question.text, *question.options))):
        raise RequestError(f"the question {question.text!r} holds half of a surrogate pair, which is no text.")
    return question


def _document(shown: Shown) -> Document:
    if isinstance(shown, HitBody):
        return shown.document
    return shown if isinstance(shown, Document) else Document("", "", shown)


def _like(questions: Any, results: list[Result]) -> Any:
    """One result for one question, a list for several."""
    return results[0] if isinstance(questions, (str, Question)) else results
