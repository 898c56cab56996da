"""The client of the environment service, asynchronous and synchronous.

A failed search is never a reward: a step without an answer at the deadline has the result None. A request goes to the
replicas in turn, with growing pauses between rounds, until one gives a usable answer. Anything but a 200 that
validates is a failed attempt, save a 4xx other than 408 and 429: the service calls the request itself wrong, and that
is an error at once, and so are answers from two different indexes or by two sets of judgements.
"""

import asyncio
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from ...configs.schema import ClientConfig
from ...data.types import Question
from ...errors import ConfigError, EnvironmentUnavailableError, RequestError, TokenError
from ..credentials import token_of
from ..plan import SearchPlan
from ..schemas import (
    MAX_CHARACTERS,
    MAX_PAGE,
    MAX_TEXTS,
    MAX_WITHOUT,
    EnvironmentInfo,
    Hits,
    Identified,
    Problem,
    QuestionPage,
    SearchRequest,
    SearchResponse,
    Step,
    StepRequest,
    StepResponse,
    StepResult,
)
from .base import ServiceAddress

__all__ = ["AsyncEnvironmentClient", "EnvironmentClient", "RetryClock", "Step", "StepResult"]

log = logging.getLogger(__name__)

Answer = TypeVar("Answer", bound=BaseModel)
Item = TypeVar("Item")
Part = TypeVar("Part")
Value = TypeVar("Value")

MAX_PLANS_PER_REQUEST = 128
CONCURRENT_REQUESTS = 16
CONNECT_SECONDS = 5.0
ATTEMPTS = 4
"""An attempt takes at most this part of the deadline."""
FIRST_CONTACT_SECONDS = 20.0
"""Maximum seconds for which `environment()` tries to reach a service, so that a wrong URL fails early."""
BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.25, 10.0
"""Longest pause before the second round of attempts, which doubles with each round, and its limit."""


@dataclass(frozen=True, slots=True)
class RetryClock:
    """What deadlines and pauses are measured with."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep


class OutageError(Exception):
    """No usable answer from any replica before the deadline."""


class FailedAttemptError(Exception):
    """One attempt without a usable answer, with the seconds that the service asked to wait."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class AsyncEnvironmentClient:
    """Asks the environment; use it inside one event loop and close it there (`async with`)."""

    def __init__(
        self, config: ClientConfig, urls: Sequence[str | ServiceAddress] | None = None, clock: RetryClock | None = None
    ) -> None:
        """`urls` replaces `config.urls` and must be given where that is `local`.

        Raises ConfigError for an unusable URL or token.
        """
        if not (urls := config.urls if urls is None else urls) or urls == "local":
            raise ConfigError(f"client.urls is {urls!r}; give at least one URL such as http://127.0.0.1:8080.")
        self._replicas = [_replica(url, config.token_env) for url in urls]
        self._config = config
        self._clock = clock or RetryClock()
        self._turn = 0
        self._slots = asyncio.Semaphore(CONCURRENT_REQUESTS)
        self._identity: Identified | None = None
        self.last_failure: str | None = None
        """The last attempt that failed: which URL and why."""
        loopback = all(httpx.URL(url).host in ("127.0.0.1", "::1", "localhost") for url, _ in self._replicas)
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=CONCURRENT_REQUESTS),
            trust_env=not (loopback or config.urls == "local"),  # a service of this run: no proxy in between
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.urls})"

    @property
    def urls(self) -> str:
        """All URLs, for messages."""
        return ", ".join(url for url, _ in self._replicas)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def info(self) -> EnvironmentInfo:
        """What the service serves.

        Raises EnvironmentUnavailableError where no replica answers, RequestError where the service refuses (a wrong
        token).
        """
        deadline = self._clock.now() + min(self._config.deadline, FIRST_CONTACT_SECONDS)
        try:
            return await self._ask("GET", "/v1/environment", EnvironmentInfo, deadline)
        except OutageError as outage:
            raise self._unavailable() from outage

    async def questions(self, split: str) -> list[Question]:
        """All questions of a split, in their fixed order.

        Raises RequestError for an unknown split and EnvironmentUnavailableError where no replica answers in time.
        """
        deadline = self._clock.now() + self._config.deadline
        received: list[Question] = []
        while True:
            query = httpx.QueryParams({"split": split, "offset": len(received), "limit": MAX_PAGE})
            try:
                page = await self._ask("GET", f"/v1/questions?{query}", QuestionPage, deadline)
            except OutageError as outage:
                raise self._unavailable() from outage
            received += page.questions
            if len(received) >= page.total or not page.questions:
                return received

    async def search(
        self, plans: Sequence[SearchPlan], with_text: bool = True, without: Sequence[str] = ()
    ) -> list[Hits]:
        """Rank every plan, without the documents of the ids `without`.

        Raises EnvironmentUnavailableError where any of them has no ranking at the deadline, and RequestError for a plan
        that the service refuses.
        """
        left_out = sorted(set(without))
        if len(left_out) > MAX_WITHOUT:
            raise RequestError(f"without holds {len(left_out)} ids; a search leaves out at most {MAX_WITHOUT}.")

        async def send(part: Sequence[SearchPlan], deadline: float) -> list[Hits]:
            body = _json(SearchRequest(plans=list(part), with_text=with_text, without=left_out))
            answer = await self._ask("POST", "/v1/search", SearchResponse, deadline, body)
            return [
                Hits.of(ranking, truncated)
                for ranking, truncated in zip(answer.rankings, answer.truncated, strict=True)
            ]

        outcomes = await self._in_parts(plans, plans, send)
        rankings = [outcome for outcome in outcomes if outcome is not None]
        if len(rankings) < len(plans):
            raise self._unavailable()
        return rankings

    async def step(
        self, steps: Sequence[Step], with_text: bool = False, metrics: Sequence[str] = ()
    ) -> list[StepResult | None]:
        """Rank and score every step; None for a step without an answer at the deadline: a failed search, not worth 0.

        Raises RequestError for a step that the service refuses (unknown question, malformed plan, wrong token).
        """

        async def send(part: Sequence[Step], deadline: float) -> list[StepResult]:
            body = _json(StepRequest(steps=list(part), with_text=with_text, metrics=list(metrics)))
            return (await self._ask("POST", "/v1/step", StepResponse, deadline, body)).results

        results = await self._in_parts(steps, [step.plan for step in steps], send)
        if missing := results.count(None):
            log.warning("%d of %d searches failed; last failure: %s", missing, len(results), self.last_failure)
        return results

    async def _in_parts(
        self,
        items: Sequence[Item],
        plans: Sequence[SearchPlan],
        send: Callable[[Sequence[Item], float], Awaitable[list[Part]]],
    ) -> list[Part | None]:
        """Send items, of one plan each, in concurrent requests within the service's limits; the outcome of an item
        without an answer in time is None."""
        deadline = self._clock.now() + self._config.deadline

        async def deliver(part: Sequence[Item]) -> Sequence[Part | None]:
            try:
                async with self._slots:
                    outcomes = await send(part, deadline)
            except OutageError:
                return [None] * len(part)
            if len(outcomes) != len(part):
                raise EnvironmentUnavailableError(f"{self.urls} sent {len(outcomes)} results for {len(part)} plans.")
            return outcomes

        tasks = [asyncio.create_task(deliver(items[start:end])) for start, end in _parts(plans)]
        try:
            return [outcome for part in await asyncio.gather(*tasks) for outcome in part]
        finally:
            for task in tasks:
                task.cancel()

    async def _ask(
        self,
        method: str,
        path: str,
        kind: type[Answer],
        deadline: float,
        body: str | None = None,
    ) -> Answer:
        """The first usable answer. `deadline` is a time of the clock.

        Raises OutageError at the deadline, RequestError where a replica refuses the request, TokenError where one wants
        another token, ConfigError where the answer is from another index.
        """
        self._turn += 1
        start = self._turn % len(self._replicas)
        replicas = [*self._replicas[start:], *self._replicas[:start]]
        backoff, failures = BACKOFF_SECONDS, ["the deadline passed before the first attempt"]
        while True:
            pauses = []
            for url, token in replicas:
                if (seconds := min(self._config.deadline / ATTEMPTS, deadline - self._clock.now())) <= 0:
                    raise OutageError(failures[-1])
                try:
                    answer = await self._attempt(method, url + path, token, kind, seconds, body)
                except FailedAttemptError as failure:
                    self.last_failure = f"{url}: {failure}"
                    failures.append(self.last_failure)
                    pauses.append(failure.retry_after)
                else:
                    if isinstance(answer, Identified):
                        self._check_identity(answer)
                    return answer
            pause = min(pauses) + random.uniform(0, backoff)
            if self._clock.now() + pause >= deadline:
                raise OutageError(failures[-1])
            await self._clock.sleep(pause)
            backoff = min(2 * backoff, MAX_BACKOFF_SECONDS)

    async def _attempt(
        self, method: str, url: str, token: str, kind: type[Answer], seconds: float, body: str | None = None
    ) -> Answer:
        """Ask one replica once, for at most `seconds`. Raises FailedAttemptError, RequestError and TokenError."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        try:
            async with asyncio.timeout(seconds):
                response = await self._http.request(method, url, content=body, headers=headers)
            status = response.status_code
            if status == 200:
                return kind.model_validate_json(response.content, strict=True)
        except TimeoutError:
            raise FailedAttemptError(f"no answer within {seconds:.3g} s") from None
        except httpx.HTTPError as error:
            raise FailedAttemptError(f"{type(error).__name__}: {error}".rstrip(": ")) from error
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "body"
            raise FailedAttemptError(f"not the environment's answer: {where}: {first['msg']}") from error
        if 400 <= status < 500 and status not in (408, 429):
            refusal = TokenError if status in (401, 403) else RequestError
            raise refusal(f"{method} {url} was refused with {status}: {_detail(response)}")
        header = response.headers.get("retry-after", "")
        raise FailedAttemptError(f"HTTP {status}: {_detail(response)}", float(header) if header.isdecimal() else 0.0)

    def _check_identity(self, answer: Identified) -> None:
        """Raise ConfigError where two answers differ in what every ranking and reward depends on."""
        first = self._identity = self._identity or answer
        for field in ("index_hash", "settings_hash"):
            expected, actual = getattr(first, field), getattr(answer, field)
            if actual != expected:
                raise ConfigError(
                    f"the answers of {self.urls} differ in {field} ({expected} and {actual}), so rewards would not be "
                    "comparable. Start every replica with the same index, questions, and judgements, and do "
                    "not change them during a run."
                )

    def _unavailable(self) -> EnvironmentUnavailableError:
        return EnvironmentUnavailableError(
            f"no environment service answers at {self.urls}; the last error was {self.last_failure}. "
            "Start it with `querylect serve`, correct client.urls, or set client.urls to local."
        )


class EnvironmentClient:
    """The same client for synchronous callers: an event loop in a separate thread. Close it (`with`)."""

    def __init__(
        self, config: ClientConfig, urls: Sequence[str | ServiceAddress] | None = None, clock: RetryClock | None = None
    ) -> None:
        """As AsyncEnvironmentClient."""
        self._client = AsyncEnvironmentClient(config, urls, clock)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="querylect-client", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._client.urls})"

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
    def last_failure(self) -> str | None:
        """The last attempt that failed: which URL and why."""
        return self._client.last_failure

    def info(self) -> EnvironmentInfo:
        """As AsyncEnvironmentClient.info."""
        return self._wait(self._client.info())

    def questions(self, split: str) -> list[Question]:
        """As AsyncEnvironmentClient.questions."""
        return self._wait(self._client.questions(split))

    def search(self, plans: Sequence[SearchPlan], with_text: bool = True, without: Sequence[str] = ()) -> list[Hits]:
        """As AsyncEnvironmentClient.search."""
        return self._wait(self._client.search(plans, with_text, without))

    def step(
        self, steps: Sequence[Step], with_text: bool = False, metrics: Sequence[str] = ()
    ) -> list[StepResult | None]:
        """As AsyncEnvironmentClient.step."""
        return self._wait(self._client.step(steps, with_text, metrics))

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


def _parts(plans: Sequence[SearchPlan]) -> list[tuple[int, int]]:
    """Start and end of each request's plans."""
    at_most = (MAX_PLANS_PER_REQUEST, MAX_TEXTS, MAX_CHARACTERS)
    starts, totals = [0], (0, 0, 0)
    for i, plan in enumerate(plans):
        size = (1, len(plan.texts), sum(map(len, plan.texts)))
        totals = (totals[0] + size[0], totals[1] + size[1], totals[2] + size[2])
        if i > starts[-1] and any(total > limit for total, limit in zip(totals, at_most, strict=True)):
            starts.append(i)
            totals = size
    return list(pairwise([*starts, len(plans)])) if plans else []


def _json(request: BaseModel) -> str:
    try:
        return request.model_dump_json()
    except PydanticSerializationError as error:
        raise RequestError(f"the request is no valid Unicode text ({error}).") from error


def _replica(service: str | ServiceAddress, token_env: str) -> tuple[str, str]:
    """URL and token of a replica. Raises ConfigError for what is no URL of a service."""
    address = ServiceAddress(service) if isinstance(service, str) else service
    if not address.url.startswith(("http://", "https://")):
        raise ConfigError(f"client.urls: {address.url!r} is no URL; expected http://HOST:PORT or https://HOST.")
    return address.url.rstrip("/"), token_of(token_env) if address.token is None else address.token


def _detail(response: httpx.Response) -> str:
    """What an error answer says, in one line."""
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        return " ".join(response.text.split())[:300] or response.reason_phrase
    return " ".join([problem.detail, *(f"{where}: {what}." for where, what in problem.invalid.items())])
