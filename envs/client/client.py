"""The client of the environment service, asynchronous and synchronous.

An outage is never a reward: a step without an answer at the deadline has the result None, unscorable. A request that
the service calls wrong is an error at once, and so are answers from two different indexes or by two sets of judgements.
"""

import asyncio
import logging
import re
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from ...configs.schema import ClientConfig
from ...data.types import Question
from ...errors import ConfigError, EnvironmentUnavailableError, RequestError
from ..plan import SearchPlan, plan_digest
from ..schemas import (
    MAX_PAGE,
    MAX_WITHOUT,
    PRIMARY_METRIC,
    EnvironmentInfo,
    HitBody,
    Hits,
    Identified,
    Limits,
    QuestionPage,
    SearchRequest,
    SearchResponse,
    Step,
    StepRequest,
    StepResponse,
    StepResult,
)
from .base import ServiceAddress
from .transport import (
    CONCURRENT_REQUESTS,
    Call,
    ClientStats,
    OutageError,
    RequestFailure,
    Transport,
    UnexpectedAnswerError,
)

__all__ = ["ClientStats", "EnvironmentClient", "RequestFailure", "Step", "StepResult", "SyncEnvironmentClient"]

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Part = TypeVar("Part")
Value = TypeVar("Value")

MAX_PLANS_PER_REQUEST = 128
_IDENTITY = {
    "index_hash": (
        "answers from two different indexes",
        "Start every replica with the same index, and do not change it during a run.",
    ),
    "settings_hash": (
        "answers from two different sets of questions, judgements or search settings",
        "Start every replica with the same questions, judgements (qrels), env.gain and env.vectors, and do not change "
        "them during a run.",
    ),
}
"""What every answer must agree in, by field of `Identified`: the problem, its remedy."""
FIRST_CONTACT_SECONDS = 20.0
"""Maximum seconds for which `environment()` tries to reach a service, so that a wrong URL fails early."""


class EnvironmentClient:
    """Asks the environment; use it inside one event loop and close it there (`async with`)."""

    def __init__(self, config: ClientConfig, urls: Sequence[str | ServiceAddress] | None = None) -> None:
        """`urls` replaces `config.urls` and must be given where that is `local`.

        Raises ConfigError for an unusable URL or token.
        """
        if urls is None:
            if config.urls == "local":
                message = "client.urls is 'local': start the service with local_service and give its URL."
                raise ConfigError(message)
            urls = config.urls
        self._config = config
        self._transport = Transport(config, urls)
        self._slots = asyncio.Semaphore(CONCURRENT_REQUESTS)
        self._info: EnvironmentInfo | None = None
        self.stats = self._transport.stats

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._transport.urls})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    @property
    def last_failure(self) -> RequestFailure | None:
        """The last attempt that failed: which URL and why."""
        return self.stats.last_failure

    async def environment(self) -> EnvironmentInfo:
        """What the service serves, asked of every replica.

        Raises EnvironmentUnavailableError where no replica answers, ConfigError where two replicas serve different
        indexes or judgements, RequestError where the service refuses (a wrong token).
        """
        with self._calling():
            return await self._discover(time.monotonic() + min(self._config.deadline, FIRST_CONTACT_SECONDS))

    async def questions(self, split: str) -> list[Question]:
        """All questions of a split, in their fixed order.

        Raises RequestError for an unknown split and EnvironmentUnavailableError where no replica answers in time.
        """
        deadline = time.monotonic() + self._config.deadline
        received: list[Question] = []

        def check(page: QuestionPage) -> None:
            _expect(page.split == split and page.offset == len(received), "another page than the one asked for")
            _expect(bool(page.questions) or page.total <= len(received), "an empty page before the end of the split")

        with self._calling():
            while True:
                query = httpx.QueryParams({"split": split, "offset": len(received), "limit": MAX_PAGE})
                page = await self._transport.ask(Call("GET", f"/v1/questions?{query}", QuestionPage, check), deadline)
                received += [body.question for body in page.questions]
                if len(received) >= page.total:
                    return received

    async def search(
        self, plans: Sequence[SearchPlan], with_text: bool = True, without: Sequence[str] = ()
    ) -> list[Hits]:
        """Rank every plan, without the documents of the ids `without`.

        Raises EnvironmentUnavailableError where any of them has no ranking at the deadline, and RequestError for a plan
        that the service refuses.
        """

        async def send(part: Sequence[SearchPlan], deadline: float) -> list[Hits]:
            def check(answer: SearchResponse) -> None:
                _expect(len(answer.rankings) == len(part), f"{len(answer.rankings)} rankings for {len(part)} plans")
                _expect(answer.plan_digests == list(map(plan_digest, part)), "rankings of other plans")
                for plan, ranking in zip(part, answer.rankings, strict=True):
                    _check_ranking(plan, ranking, with_text)
                    _expect(left_out.isdisjoint(hit.id for hit in ranking), "a document that is to be left out")
                self._check_identity(answer, self._info)

            body = _json(SearchRequest(plans=list(part), with_text=with_text, without=sorted(left_out)), empty)
            answer = await self._transport.ask(Call("POST", "/v1/search", SearchResponse, check, body), deadline)
            rankings = [Hits(ranking) for ranking in answer.rankings]
            for ranking, truncated in zip(rankings, answer.truncated, strict=False):  # an older service sends none
                ranking.truncated = truncated
            return rankings

        if len(left_out := set(without)) > MAX_WITHOUT:
            raise RequestError(
                f"without holds {len(left_out)} ids; a search leaves out at most {MAX_WITHOUT}. Give fewer."
            )
        empty = () if left_out else ("without",)  # which an older service does not know
        rankings: list[Hits] = []
        with self._calling():
            for outcome in await self._in_parts(plans, plans, send):
                if isinstance(outcome, OutageError):
                    raise outcome
                rankings.append(outcome)
        return rankings

    async def step(
        self, steps: Sequence[Step], with_text: bool = False, metrics: Sequence[str] = ()
    ) -> list[StepResult | None]:
        """Rank and score every step; None for a step without an answer at the deadline: unscorable, not worth 0.

        Raises RequestError for a step that the service refuses (unknown question, malformed plan, wrong token).
        """
        required = {PRIMARY_METRIC, *metrics}

        async def send(part: Sequence[Step], deadline: float) -> list[StepResult]:
            def check(answer: StepResponse) -> None:
                _expect(len(answer.results) == len(part), f"{len(answer.results)} results for {len(part)} steps")
                for step, result in zip(part, answer.results, strict=True):
                    _expect(result.question_id == step.question_id, f"a result of question {result.question_id!r}")
                    _expect(result.plan_digest == plan_digest(step.plan), "a result of another plan")
                    _expect(required <= result.metrics.keys(), f"only the metrics {sorted(result.metrics)}")
                    value = result.metrics[PRIMARY_METRIC]
                    _expect(result.reward == value, f"the reward {result.reward} and {PRIMARY_METRIC} {value}")
                    _check_ranking(step.plan, result.ranking, with_text)
                self._check_identity(answer, self._info)

            body = _json(StepRequest(steps=list(part), with_text=with_text, metrics=list(metrics)))
            answer = await self._transport.ask(Call("POST", "/v1/step", StepResponse, check, body), deadline)
            return answer.results

        with self._calling():
            outcomes = await self._in_parts(steps, [step.plan for step in steps], send)
        results = [None if isinstance(outcome, OutageError) else outcome for outcome in outcomes]
        missing = results.count(None)
        if missing:
            self.stats.unscorable += missing
            log.warning("%d of %d steps are unscorable; last failure: %s", missing, len(results), self.last_failure)
        return results

    async def plan_outcomes(self) -> dict[str, float] | None:
        """Plans of all clients to all replicas, by outcome (searched, joined, cached, refused), without zero counts;
        None where a replica does not report them. Never raises."""
        totals: dict[str, float] = {}
        for replica in self._transport.replicas:
            text = await self._transport.text(replica, "/metrics")
            counts = re.findall(r'^querylect_plans_total\{outcome="(\w+)"\} (\S+)$', text or "", flags=re.M)
            if text is None:
                return None
            for outcome, count in counts:
                totals[outcome] = totals.get(outcome, 0.0) + float(count)
        return totals

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """Time a call, and raise EnvironmentUnavailableError for an outage."""
        started = time.perf_counter()
        try:
            yield
        except OutageError as outage:
            raise EnvironmentUnavailableError(
                f"no environment service answers at {self._transport.urls}; the last error was {outage}. "
                "Start it with `querylect serve`, correct client.urls, or set client.urls to local."
            ) from outage
        finally:
            self.stats.seconds += time.perf_counter() - started

    async def _discover(self, deadline: float) -> EnvironmentInfo:
        """Ask all replicas for /v1/environment until at least one answers."""
        outcomes = await self._transport.ask_all(Call("GET", "/v1/environment", EnvironmentInfo), deadline)
        infos = [outcome for outcome in outcomes if isinstance(outcome, EnvironmentInfo)]
        for info in infos:
            self._check_identity(info, self._info or infos[0])
        self._info = self._info or infos[0]
        return infos[0]

    async def _in_parts(
        self,
        items: Sequence[Item],
        plans: Sequence[SearchPlan],
        send: Callable[[Sequence[Item], float], Awaitable[list[Part]]],
    ) -> list[Part | OutageError]:
        """Send items, of one plan each, in concurrent requests within the service's limits; the outcome of an item
        without an answer in time is an OutageError."""
        if not items:
            return []
        deadline = time.monotonic() + self._config.deadline

        async def deliver(part: Sequence[Item]) -> list[Part | OutageError]:
            try:
                async with asyncio.timeout(deadline - time.monotonic()), self._slots:
                    return [*await send(part, deadline)]
            except TimeoutError:
                return [OutageError([self.last_failure] if self.last_failure else [])] * len(part)
            except OutageError as outage:
                return [outage] * len(part)

        try:
            info = self._info or await self._discover(deadline)
        except OutageError as outage:
            return [outage] * len(items)
        bounds = _parts(plans, info.limits)
        tasks = [asyncio.create_task(deliver(items[start:end])) for start, end in bounds]
        try:
            return [outcome for part in await asyncio.gather(*tasks) for outcome in part]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _check_identity(self, answer: Identified, first: Identified | None) -> None:
        """Raise ConfigError where two answers differ in what every ranking and reward depends on."""
        for field, (problem, remedy) in _IDENTITY.items():
            expected, actual = getattr(first or answer, field), getattr(answer, field)
            if actual != expected:
                raise ConfigError(
                    f"the service at {self._transport.urls} {problem} ({field} {expected} and {actual}), so rewards "
                    f"would not be comparable. {remedy}"
                )


class SyncEnvironmentClient:
    """The same client for synchronous callers: an event loop in a separate thread. Close it (`with`)."""

    def __init__(self, config: ClientConfig, urls: Sequence[str | ServiceAddress] | None = None) -> None:
        """As EnvironmentClient."""
        self._client = EnvironmentClient(config, urls)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="querylect-client", daemon=True)
        self._thread.start()
        self.stats = self._client.stats

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._client._transport.urls})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and end the thread; a second call does nothing."""
        if self._thread.is_alive():
            self._wait(self._client.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    @property
    def last_failure(self) -> RequestFailure | None:
        """The last attempt that failed: which URL and why."""
        return self.stats.last_failure

    def environment(self) -> EnvironmentInfo:
        """As EnvironmentClient.environment."""
        return self._wait(self._client.environment())

    def questions(self, split: str) -> list[Question]:
        """As EnvironmentClient.questions."""
        return self._wait(self._client.questions(split))

    def search(self, plans: Sequence[SearchPlan], with_text: bool = True, without: Sequence[str] = ()) -> list[Hits]:
        """As EnvironmentClient.search."""
        return self._wait(self._client.search(plans, with_text, without))

    def step(
        self, steps: Sequence[Step], with_text: bool = False, metrics: Sequence[str] = ()
    ) -> list[StepResult | None]:
        """As EnvironmentClient.step."""
        return self._wait(self._client.step(steps, with_text, metrics))

    def plan_outcomes(self) -> dict[str, float] | None:
        """As EnvironmentClient.plan_outcomes."""
        return self._wait(self._client.plan_outcomes())

    def step_soon(
        self, steps: Sequence[Step], with_text: bool = False, metrics: Sequence[str] = ()
    ) -> Future[list[StepResult | None]]:
        """`step` without waiting for it: take the future's result, or cancel it."""
        return asyncio.run_coroutine_threadsafe(self._client.step(steps, with_text, metrics), self._loop)

    def _wait(self, call: Coroutine[Any, Any, Value]) -> Value:
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


def _parts(plans: Sequence[SearchPlan], limits: Limits) -> list[tuple[int, int]]:
    """Start and end of each request's plans."""
    at_most = (min(MAX_PLANS_PER_REQUEST, limits.max_plans), limits.max_request_terms, limits.max_request_characters)
    starts, totals = [0], (0, 0, 0)
    for i, plan in enumerate(plans):
        size = (1, len(plan.texts), plan.characters)
        totals = (totals[0] + size[0], totals[1] + size[1], totals[2] + size[2])
        if i > starts[-1] and any(total > limit for total, limit in zip(totals, at_most, strict=True)):
            starts.append(i)
            totals = size
    return list(pairwise([*starts, len(plans)]))


def _json(request: BaseModel, exclude: Collection[str] = ()) -> str:
    try:
        return request.model_dump_json(exclude=set(exclude))
    except PydanticSerializationError as error:
        raise RequestError(f"the request is no valid Unicode text ({error}).") from error


def _expect(condition: bool, actual: str) -> None:
    if not condition:
        raise UnexpectedAnswerError(actual)


def _check_ranking(plan: SearchPlan, ranking: Sequence[HitBody], with_text: bool) -> None:
    _expect(len(ranking) <= plan.k, f"{len(ranking)} hits for k={plan.k}")
    _expect(len({hit.id for hit in ranking}) == len(ranking), "a ranking that holds a document twice")
    scores = [hit.score for hit in ranking]
    _expect(scores == sorted(scores, reverse=True), "a ranking whose scores rise")
    if with_text:
        _expect(all(hit.title is not None and hit.text is not None for hit in ranking), "hits without their text")
