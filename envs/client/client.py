"""The client of the environment service.

An outage is never a reward: a step without an answer at the deadline has the result None, a failed search. A request
goes to the replicas in turn, with growing pauses between rounds, until one gives a usable answer. Anything but a 200
that validates is a failed attempt, save a 4xx other than 408 and 429: the service calls the request itself wrong, and
that is an error at once, and so are answers from two different indexes or by two sets of judgements.
"""

import asyncio
import logging
import random
import re
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from ...configs.schema import ClientConfig
from ...data.types import Question
from ...errors import ConfigError, EnvironmentUnavailableError, RequestError, TokenError, in_one_line
from ..plan import SearchPlan
from ..schemas import (
    MAX_PAGE,
    MAX_WORK,
    EnvironmentInfo,
    Identified,
    PlanResult,
    Problem,
    QuestionPage,
    Result,
    ResultsResponse,
    SearchRequest,
    SearchResponse,
    Step,
    StepRequest,
    StepResponse,
    StepResult,
)
from .base import ServiceAddress, is_loopback, token_of

__all__ = ["EnvironmentClient", "RetryClock", "Step", "StepResult"]

log = logging.getLogger(__name__)

Answer = TypeVar("Answer", bound=BaseModel)
Value = TypeVar("Value")

MAX_PLANS_PER_REQUEST = 128
CONCURRENT_REQUESTS = 16
CONNECT_SECONDS = 5.0
ATTEMPTS = 4
"""An attempt takes at most this part of the deadline."""
FIRST_CONTACT_SECONDS = 20.0
"""Maximum seconds for which `info()` tries to reach a service, so that a wrong URL fails early."""
BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.25, 10.0
"""Longest pause before the second round of attempts, which doubles with each round, and its limit."""


@dataclass(frozen=True, slots=True)
class RetryClock:
    """What deadlines and pauses are measured with."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep


class FailedAttemptError(Exception):
    """One attempt without a usable answer, with the seconds that the service asked to wait."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class EnvironmentClient:
    """Asks the service from an event loop in a thread of its own; thread-safe. Close it (`with`)."""

    def __init__(
        self, config: ClientConfig, urls: Sequence[str | ServiceAddress] | None = None, clock: RetryClock | None = None
    ) -> None:
        """`urls` replaces `config.urls` and must be given where that is `local`.

        Raises ConfigError for an unusable URL or token.
        """
        if not (urls := config.urls if urls is None else urls) or urls == "local":
            raise ConfigError(f"client.urls is {urls!r}; give at least one URL such as http://127.0.0.1:8080.")
        self._replicas = [_replica(url, config.token_env) for url in urls]
        self._deadline = config.deadline
        self._clock = clock or RetryClock()
        self._turn = 0
        self._gives_up = False
        self._slots = asyncio.Semaphore(CONCURRENT_REQUESTS)
        self._identity: Identified | None = None
        self.last_failure: str | None = None
        """The last attempt that failed: which URL and why."""
        near = all(is_loopback(replica.url) for replica in self._replicas)
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=CONCURRENT_REQUESTS),
            trust_env=not (near or config.urls == "local"),  # a service of this run: no proxy in between
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="querylect-client", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._urls})"

    @property
    def _urls(self) -> str:
        return ", ".join(_without_password(replica.url) for replica in self._replicas)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and end the thread; a second call does nothing. Calls of other threads that wait for
        an answer are cancelled."""
        if self._thread.is_alive():
            self._wait(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def give_up_soon(self) -> None:
        """From now on one round of attempts decides, not the deadline: the caller is about to end, and what it has
        finished must be saved before it is killed."""
        self._gives_up = True

    async def _end(self) -> None:
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._http.aclose()

    def info(self) -> EnvironmentInfo:
        """What the service serves.

        Raises EnvironmentUnavailableError where no replica answers, RequestError where the service refuses (a wrong
        token).
        """
        deadline = self._clock.now() + min(self._deadline, FIRST_CONTACT_SECONDS)
        return self._wait(self._ask("GET", "/v1/environment", EnvironmentInfo, deadline))

    def questions(self, split: str) -> list[Question]:
        """All questions of a split, in their fixed order. Raises as `info`, RequestError also for an unknown split."""
        deadline = self._clock.now() + self._deadline
        received: list[Question] = []
        while True:
            query = httpx.QueryParams({"split": split, "offset": len(received), "limit": MAX_PAGE})
            page = self._wait(self._ask("GET", f"/v1/questions?{query}", QuestionPage, deadline))
            received += page.questions
            if len(received) >= page.total or not page.questions:
                return received

    def search(self, plans: Sequence[SearchPlan], *, with_text: bool | int = True) -> list[PlanResult]:
        """One result for each plan.

        Raises EnvironmentUnavailableError where any of them has none at the deadline, and RequestError for a plan that
        the service refuses.
        """

        def request(start: int, end: int) -> SearchRequest:
            return SearchRequest(plans=list(plans[start:end]), with_text=with_text)

        outcomes = self._wait(self._send("/v1/search", plans, with_text, request, SearchResponse))
        results = [result for result in outcomes if result is not None]
        if len(results) < len(plans):
            raise self._unavailable()
        return results

    def step(
        self, steps: Sequence[Step], *, with_text: bool | int = False, metrics: Sequence[str] = ()
    ) -> list[StepResult | None]:
        """Rank and score every step; None for a step without an answer at the deadline: a failed search, not worth 0.

        Raises RequestError for a step that the service refuses (unknown question, malformed plan, wrong token).
        """
        return _result(self.start_step(steps, with_text=with_text, metrics=metrics))

    def start_step(
        self, steps: Sequence[Step], *, with_text: bool | int = False, metrics: Sequence[str] = ()
    ) -> Future[list[StepResult | None]]:
        """`step` without waiting for it: take the future's result, or cancel it."""

        def request(start: int, end: int) -> StepRequest:
            return StepRequest(steps=list(steps[start:end]), with_text=with_text, metrics=list(metrics))

        plans = [step.plan for step in steps]
        sending = self._send("/v1/step", plans, with_text, request, StepResponse)
        return asyncio.run_coroutine_threadsafe(sending, self._loop)

    def _wait(self, call: Coroutine[Any, Any, Value]) -> Value:
        return _result(asyncio.run_coroutine_threadsafe(call, self._loop))

    async def _send(
        self,
        path: str,
        plans: Sequence[SearchPlan],
        with_text: bool | int,
        request: Callable[[int, int], BaseModel],
        kind: type[ResultsResponse[Result]],
    ) -> list[Result | None]:
        """The result of each plan, None without an answer in time; `request` is that of the plans from start to end."""
        deadline = self._clock.now() + self._deadline

        async def deliver(start: int, end: int) -> Sequence[Result | None]:
            count, body = end - start, request(start, end).model_dump_json()
            try:
                async with self._slots:
                    results = (await self._ask("POST", path, kind, deadline, body)).results
            except EnvironmentUnavailableError:
                log.warning("%d searches failed; last failure: %s", count, self.last_failure)
                return [None] * count
            if len(results) != count:
                raise EnvironmentUnavailableError(f"{self._urls} sent {len(results)} results for {count} plans.")
            return results

        tasks = [asyncio.create_task(deliver(*part)) for part in _parts(plans, with_text)]
        try:
            return [result for part in await asyncio.gather(*tasks) for result in part]
        finally:
            for task in tasks:
                task.cancel()

    async def _ask(
        self, method: str, path: str, kind: type[Answer], deadline: float, body: str | None = None
    ) -> Answer:
        """The first usable answer. `deadline` is a time of the clock.

        Raises EnvironmentUnavailableError at the deadline, RequestError where a replica refuses the request, TokenError
        where one wants another token, ConfigError where the answer is from another index.
        """
        self._turn += 1
        first, backoff = self._turn % len(self._replicas), BACKOFF_SECONDS
        while True:
            pauses = []
            for replica in [*self._replicas[first:], *self._replicas[:first]]:
                if (seconds := min(self._deadline / ATTEMPTS, deadline - self._clock.now())) <= 0:
                    raise self._unavailable()
                try:
                    answer = await self._attempt(method, replica, path, kind, seconds, body)
                except FailedAttemptError as failure:
                    self.last_failure = f"{_without_password(replica.url)}: {failure}"
                    pauses.append(failure.retry_after)
                else:
                    if isinstance(answer, Identified):
                        self._check_identity(answer)
                    return answer
            pause = min(pauses) + random.uniform(0, backoff)
            if self._gives_up or self._clock.now() + pause >= deadline:
                raise self._unavailable()
            await self._clock.sleep(pause)
            backoff = min(2 * backoff, MAX_BACKOFF_SECONDS)

    async def _attempt(
        self, method: str, replica: ServiceAddress, path: str, kind: type[Answer], seconds: float, body: str | None
    ) -> Answer:
        """Ask one replica once, for at most `seconds`. Raises FailedAttemptError, RequestError and TokenError."""
        url, headers = replica.url + path, {"Content-Type": "application/json", **replica.headers}
        try:
            async with asyncio.timeout(seconds):
                response = await self._http.request(method, url, content=body, headers=headers)
            if response.status_code == 200:
                return kind.model_validate_json(response.content, strict=True)
        except TimeoutError:
            raise FailedAttemptError(f"no answer within {seconds:.3g} s") from None
        except httpx.HTTPError as error:
            raise FailedAttemptError(f"{type(error).__name__}: {error}".rstrip(": ")) from error
        except ValidationError as error:
            raise FailedAttemptError(f"not the environment's answer: {in_one_line(error)}") from error
        status = response.status_code
        try:
            detail = Problem.model_validate_json(response.content).detail
        except ValidationError:  # no answer of the service, such as a proxy's
            detail = " ".join(response.text.split())[:300] or response.reason_phrase
        if 400 <= status < 500 and status not in (408, 429):
            refusal = TokenError if status in (401, 403) else RequestError
            raise refusal(f"{method} {_without_password(url)} was refused with {status}: {detail}")
        pause = response.headers.get("retry-after", "")
        raise FailedAttemptError(f"HTTP {status}: {detail}", float(pause) if pause.isdecimal() else 0.0)

    def _check_identity(self, answer: Identified) -> None:
        """Raise ConfigError where two answers differ in what every ranking and reward depends on."""
        first = self._identity = self._identity or answer
        for field in ("index_hash", "settings_hash"):
            expected, actual = getattr(first, field), getattr(answer, field)
            if actual != expected:
                raise ConfigError(
                    f"the answers of {self._urls} differ in {field} ({expected} and {actual}), so rewards would not be "
                    "comparable. Start every replica with the same index, questions, and judgements, and do "
                    "not change them during a run."
                )

    def _unavailable(self) -> EnvironmentUnavailableError:
        return EnvironmentUnavailableError(
            f"no environment service answers at {self._urls}; the last error was {self.last_failure}. "
            "Start it with `querylect serve`, correct client.urls, or set client.urls to local."
        )


def _result(future: Future[Value]) -> Value:
    """The future's result; it is cancelled where this thread is interrupted."""
    try:
        return future.result()
    finally:
        future.cancel()


def _parts(plans: Sequence[SearchPlan], with_text: bool | int) -> Iterator[tuple[int, int]]:
    """Start and end of each request's plans; an answer with texts has its own limit of the service."""
    limit = MAX_WORK // 8 if with_text else MAX_WORK
    start = work = 0
    for i, plan in enumerate(plans):
        work += plan.work
        if i > start and (i - start == MAX_PLANS_PER_REQUEST or work > limit):
            yield start, i
            start, work = i, plan.work
    if plans:
        yield start, len(plans)


def _without_password(url: str) -> str:
    return re.sub("//[^/@]*@", "//", url)


def _replica(service: str | ServiceAddress, token_env: str) -> ServiceAddress:
    """A replica with the token that it is asked with. Raises ConfigError for what is no URL of a service."""
    address = ServiceAddress(service) if isinstance(service, str) else service
    try:
        url = httpx.URL(address.url)
        usable = url.scheme in ("http", "https") and url.host != ""
    except httpx.InvalidURL:
        usable = False
    if not usable:
        raise ConfigError(f"client.urls: {address.url!r} is no URL; expected http://HOST:PORT or https://HOST.")
    token = token_of(token_env) if address.token is None else address.token
    return ServiceAddress(address.url.rstrip("/"), token)
