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
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Self, TypedDict, Unpack, overload

from ..configs.llm import LlmConfig
from ..data.types import Question
from ..errors import RequestError
from ..rewriters.retriever_info import RetrieverInfo
from ..rollouts.engines.base import Engine
from ..rollouts.tree_sampler import ANSWERED_AT_ONCE
from ..sources import optional_packages
from .batching import DynamicBatcher
from .endpoint import EndpointModel, endpoint_of
from .load import Trained, open_trained
from .requests import History, QuestionLike, is_single, parse_questions
from .results import RewriteResult, SearchResult, TurnOutcome
from .retriever_prompts import Retriever, RewriterPool
from .searching import AsyncSearcher, DefaultSearch, SearchedPlans, Searcher
from .turns import RewriteRequest, TurnLoop, answer

log = logging.getLogger(__name__)

_MAX_IDS = 2**16
"""Question ids wrap around, which bounds per-question caches; ids of concurrent questions still differ."""


class _Options(TypedDict, total=False):
    """Keyword arguments of `Rewriter.rewrite` and `arewrite`."""

    retriever: Retriever | None
    turn: int | None
    history: History | None
    client: Searcher | None


class _AsyncOptions(_Options, total=False):
    client: Searcher | AsyncSearcher | None  # type: ignore[misc]


class _SearchOptions(TypedDict, total=False):
    """Keyword arguments of `Rewriter.search` and `asearch`."""

    turns: int | None
    retriever: Retriever | None
    k: int | None
    history: History | None


class Rewriter:
    """Rewrites questions with one policy, and searches with the rewrites."""

    def __init__(
        self,
        trained: Trained,
        engine: Engine | EndpointModel | None = None,
        *,
        turn: int | None = None,
    ) -> None:
        """Load the policy, or use an `engine` that has loaded it, or an endpoint that serves it. `turn` as in
        `from_pretrained`.

        Raises ModelError, CheckpointError, MissingPackageError.
        """
        if engine is None:
            with optional_packages("local"):
                from ..rollouts.engines.open import load_engine

                config = trained.config
                engine = load_engine(
                    config.policy, config.rollout, config.seed, trained.checkpoint, trained.base_fingerprint
                )
        self._trained = trained
        self._engine = engine
        self._prompts = RewriterPool(trained, engine)
        self._turn, self._default_search = turn or trained.used.turn, DefaultSearch(trained)
        if trained.turns > 1:
            reason = trained.used.reason if turn is None else "it was asked for"
            log.info("%s: the rewrite of turn %d is used (%s)", trained.name, self._turn, reason)
        base = engine.config if isinstance(engine, EndpointModel) else trained.base
        self._id_counter = itertools.count()
        self._batcher: DynamicBatcher[RewriteRequest, RewriteResult] = DynamicBatcher(
            lambda orders: answer(orders, base, trained.k), ANSWERED_AT_ONCE
        )

    @classmethod
    def from_pretrained(
        cls,
        path_or_id: str | Path,
        *,
        revision: str | None = None,
        checkpoint: str | None = None,
        settings: Sequence[str] = (),
        trust: bool = False,
        turn: int | None = None,
        endpoint: str | LlmConfig | None = None,
        model: str | None = None,
    ) -> Self:
        """The rewriter of an exported folder, a Hub repository, a run folder, or a config (its untrained policy).

        `turn` overrides the turn selected on validation. `endpoint` is the URL of an OpenAI-compatible endpoint that
        serves the policy as `model`, or any other model if `path_or_id` is a config: then no weights are loaded, and
        PyTorch is not needed. The other arguments and errors are those of `open_trained`; it also raises as
        `load_policy` and `endpoint_of`.
        """
        trained = open_trained(
            str(path_or_id), revision=revision, checkpoint=checkpoint, settings=settings, trust=trust
        )
        engine = endpoint_of(endpoint, model, trained.is_trained) if endpoint is not None else None
        return cls(trained, engine, turn=turn)

    def __repr__(self) -> str:
        parts = [repr(self.name), f"retriever={self._prompts.retriever_names!r}", f"turn={self._turn}"]
        if isinstance(self._engine, EndpointModel):
            parts += [f"endpoint={self._engine.url!r}", f"model={self._engine.config.model!r}"]
        return f"Rewriter({', '.join(parts)})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop accepting questions; queued calls raise ClosedError."""
        self._batcher.close()
        self._default_search.close()
        if isinstance(self._engine, EndpointModel):
            self._engine.close()

    def prepare(self, retriever: Retriever | None = None) -> None:
        """Validate a retriever before the first question. Raises ConfigError."""
        self._prompts.select(retriever)

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
    def retrievers(self) -> dict[str, RetrieverInfo]:
        """The retrievers of training, by environment name; {"": …} for a single one.

        Raises as `open_environments` if no file records them and the environment must be asked.
        """
        return {
            name: member.retriever for name, member in self._prompts.members.items() if member.retriever is not None
        }

    @property
    def waiting(self) -> int:
        """Number of queued questions."""
        return self._batcher.waiting

    # "overload-overlap": a text is a sequence of texts, too
    @overload
    def rewrite(self, questions: QuestionLike, **options: Unpack[_Options]) -> RewriteResult: ...  # type: ignore[overload-overlap]
    @overload
    def rewrite(self, questions: Sequence[QuestionLike], **options: Unpack[_Options]) -> list[RewriteResult]: ...
    def rewrite(
        self,
        questions: QuestionLike | Sequence[QuestionLike],
        *,
        retriever: Retriever | None = None,
        turn: int | None = None,
        history: History | None = None,
        client: Searcher | None = None,
    ) -> RewriteResult | list[RewriteResult]:
        """Rewrite one question, or several in one batch, and return the answer of `turn` (default: `self.turn`).

        Before a later turn, `client` is searched with the answer of the previous turn (default: the environment of the
        run). `retriever` selects the retriever of a policy trained for several; for a policy trained for one it is
        compared with that of training, and a difference is logged. `history` is what was said before the question,
        oldest first; of several questions, each Question has its own.

        A failed answer returns the question, with the reason in `failure`. Raises ConfigError for an unknown or
        ambiguous retriever and for a later turn without anything to search, RequestError for an invalid question, such
        as a blank text or None, and the errors of the search.
        """
        loop = self._turn_loop(parse_questions(questions, history), retriever, turn, search_last=False)
        if client is None and loop.turns > 1:
            client = self._default_search.open(self._prompts.select(retriever).member, loop.turns)
        results = [result.rewrite for result in self._run(loop, client)]
        return results[0] if is_single(questions) else results

    @overload
    async def arewrite(self, questions: QuestionLike, **options: Unpack[_AsyncOptions]) -> RewriteResult: ...  # type: ignore[overload-overlap]
    @overload
    async def arewrite(
        self, questions: Sequence[QuestionLike], **options: Unpack[_AsyncOptions]
    ) -> list[RewriteResult]: ...
    async def arewrite(
        self,
        questions: QuestionLike | Sequence[QuestionLike],
        *,
        retriever: Retriever | None = None,
        turn: int | None = None,
        history: History | None = None,
        client: Searcher | AsyncSearcher | None = None,
    ) -> RewriteResult | list[RewriteResult]:
        """`rewrite` for an event loop: concurrent calls share a batch, and cancelled ones still queued are not run."""
        loop = self._turn_loop(parse_questions(questions, history), retriever, turn, search_last=False)
        await self._load_retrievers(retriever)
        if client is None and loop.turns > 1:
            member = self._prompts.select(retriever).member
            client = await asyncio.to_thread(self._default_search.open, member, loop.turns)
        results = [result.rewrite for result in await self._arun(loop, client)]
        return results[0] if is_single(questions) else results

    @overload
    def search(self, questions: QuestionLike, client: Searcher, **options: Unpack[_SearchOptions]) -> SearchResult: ...  # type: ignore[overload-overlap]
    @overload
    def search(
        self, questions: Sequence[QuestionLike], client: Searcher, **options: Unpack[_SearchOptions]
    ) -> list[SearchResult]: ...
    def search(
        self,
        questions: QuestionLike | Sequence[QuestionLike],
        client: Searcher,
        *,
        turns: int | None = None,
        retriever: Retriever | None = None,
        k: int | None = None,
        history: History | None = None,
    ) -> SearchResult | list[SearchResult]:
        """Rewrite and search for `turns` turns (default: `self.turn`), each shown the documents of the previous one.

        If the last answer failed, the question itself is searched. If `retriever` is None, the client's environment
        names it. `k` overrides the number of documents in the last turn. `history` as in `rewrite`. Raises as `rewrite`
        and as the client.
        """
        batch = parse_questions(questions, history)
        if retriever is None and hasattr(client, "info"):
            retriever = client.info().retriever
        results = self._run(self._turn_loop(batch, retriever, turns, k), client)
        return results[0] if is_single(questions) else results

    @overload
    async def asearch(  # type: ignore[overload-overlap]
        self, questions: QuestionLike, client: Searcher | AsyncSearcher, **options: Unpack[_SearchOptions]
    ) -> SearchResult: ...
    @overload
    async def asearch(
        self, questions: Sequence[QuestionLike], client: Searcher | AsyncSearcher, **options: Unpack[_SearchOptions]
    ) -> list[SearchResult]: ...
    async def asearch(
        self,
        questions: QuestionLike | Sequence[QuestionLike],
        client: Searcher | AsyncSearcher,
        *,
        turns: int | None = None,
        retriever: Retriever | None = None,
        k: int | None = None,
        history: History | None = None,
    ) -> SearchResult | list[SearchResult]:
        """`search` for an event loop."""
        batch = parse_questions(questions, history)
        if retriever is None and hasattr(client, "info"):
            retriever = (await asyncio.to_thread(client.info)).retriever
        await self._load_retrievers(retriever)
        results = await self._arun(self._turn_loop(batch, retriever, turns, k), client)
        return results[0] if is_single(questions) else results

    def _run(self, loop: TurnLoop, client: Searcher | None) -> list[SearchResult]:
        """Alternate between answers and searches; `client` is None where there is nothing to search."""
        while not loop.over:
            plans = loop.plans(self._batcher.ask(loop.requests()))
            results = client.search(plans) if client is not None and plans else []
            loop.add([result.ranking for result in results])
        return loop.results()

    async def _arun(self, loop: TurnLoop, client: Searcher | AsyncSearcher | None) -> list[SearchResult]:
        """`_run` for an event loop; the client is called in a thread, since it may be synchronous."""
        while not loop.over:
            plans = loop.plans(await self._batcher.ask_soon(loop.requests()))
            searched: SearchedPlans | Awaitable[SearchedPlans] = []
            if client is not None and plans:
                searched = await asyncio.to_thread(client.search, plans)
            results = await searched if isinstance(searched, Awaitable) else searched
            loop.add([result.ranking for result in results])
        return loop.results()

    async def _load_retrievers(self, retriever: Retriever | None) -> None:
        """Ask the environment for missing descriptions, if needed, without blocking the event loop."""
        if self._prompts.needs_environment(retriever):
            await asyncio.to_thread(self._prompts.select, retriever)

    def _turn_loop(
        self,
        batch: Sequence[Question],
        retriever: Retriever | None,
        turns: int | None,
        k: int | None = None,
        search_last: bool = True,
    ) -> TurnLoop:
        if turns is not None and turns < 1:
            raise RequestError(f"turn is {turns}; turns are counted from 1.")

        def request(question: Question, earlier: TurnOutcome | None) -> RewriteRequest:
            name = str(next(self._id_counter) % _MAX_IDS)
            return RewriteRequest(self._prompts.select(retriever), question, name, earlier)

        return TurnLoop(request, batch, turns or self._turn, k, search_last)
