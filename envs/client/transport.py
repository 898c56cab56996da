"""One request to several replicas until a deadline: attempts, failover, back-off with full jitter, and their counters.

A usable answer is a 200 whose body validates. Everything else is a failure that is tried again, save a 4xx other than
408 and 429: the service calls the request itself wrong, and that is an error at once.
"""

import asyncio
import math
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from random import Random
from typing import TypeVar

import httpx
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from ...configs.schema import ClientConfig
from ...errors import ConfigError, RequestError, TokenError
from ..server.auth import token_of
from ..server.schemas import Problem

REST_SECONDS = 5.0
MAX_REST_SECONDS = 60.0


@dataclass(slots=True)
class Replica:
    """One URL of the service and its circuit; times are of the monotonic clock."""

    url: str
    failures: int = 0
    """Failures since the last success."""
    rests_until: float = 0.0
    trying: bool = False
    """Whether a request is probing it, half-open."""

    @property
    def state(self) -> str:
        """closed, open or half-open."""
        if not self.failures:
            return "closed"
        return "open" if time.monotonic() < self.rests_until else "half-open"

    def begin(self) -> None:
        """A request goes there."""
        self.trying = self.trying or bool(self.failures)

    def end(self) -> None:
        """That request came to an end; cancelled, it says nothing about the replica."""
        self.trying = False

    def succeed(self) -> None:
        """It gave a usable answer."""
        self.failures, self.rests_until, self.trying = 0, 0.0, False

    def fail(self, retry_after: float) -> None:
        """It gave no usable answer; it asked to wait `retry_after` seconds."""
        self.failures, self.trying = self.failures + 1, False
        seconds = min(MAX_REST_SECONDS, REST_SECONDS * 2.0 ** min(self.failures - 1, 16))
        self.rests_until = time.monotonic() + max(seconds, retry_after)


def to_ask(replicas: Sequence[Replica], turn: int) -> list[Replica]:
    """The replicas that one round of a request asks, in order; never empty."""
    rotated = [*replicas[turn:], *replicas[:turn]]
    half_open = [replica for replica in rotated if replica.state == "half-open" and not replica.trying]
    closed = [replica for replica in rotated if replica.state == "closed"]
    if closed:
        return [*half_open[:1], *closed]
    return half_open or sorted(rotated, key=lambda replica: replica.rests_until)


Answer = TypeVar("Answer", bound=BaseModel)

CONCURRENT_REQUESTS = 16
CONNECT_SECONDS = 5.0
LOOK_SECONDS = 2.0
"""Timeout of reading metrics."""
BACKOFF_SECONDS = 0.25
MAX_BACKOFF_SECONDS = 10.0
LEAST_ATTEMPT_SECONDS = 0.05
"""No attempt starts with less time left: it would time out and hide the previous failure."""
SHOWN_CHARACTERS = 300


class OutageError(Exception):
    """No usable answer before the deadline."""

    def __init__(self, failure: "RequestFailure | None") -> None:
        super().__init__(str(failure) if failure else "the deadline passed before the first attempt")
        self.failure = failure


class UnexpectedAnswerError(Exception):
    """A 200 that holds something else than the answer to the request."""


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """One attempt without a usable answer."""

    url: str
    reason: str
    retry_after: float = 0.0
    """Seconds that the service asked to wait; 0 where it did not ask."""
    request_id: str = ""
    """What the service's log calls the attempt."""

    def __str__(self) -> str:
        return f"{self.url}: {self.reason}" + (f" (request {self.request_id})" if self.request_id else "")


@dataclass(slots=True)
class ClientStats:
    """Counters since the client was made."""

    requests: int = 0
    attempts: int = 0
    retries: int = 0
    """Attempts after the first one of a request."""
    failures: int = 0
    opened: int = 0
    """Times that a replica which had answered before (or was new) was given a rest."""
    unscorable: int = 0
    """Steps whose result was None."""
    seconds: float = 0.0
    """Wall-clock seconds spent in calls; calls that overlap add up."""
    last_failure: RequestFailure | None = None

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the time of the block to `seconds`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started


class Transport:
    """Sends requests to the replicas of one service, each in turn, the healthy first."""

    def __init__(self, config: ClientConfig, urls: Sequence[str], random: Random | None = None) -> None:
        if not urls:
            raise ConfigError("client.urls is empty; give at least one URL such as http://127.0.0.1:8080, or local.")
        self.replicas = [Replica(_base_url(url)) for url in urls]
        self.stats = ClientStats()
        self._timeout = config.timeout
        self._random = random or Random()
        self._turn = 0
        loopback = all(httpx.URL(replica.url).host in ("127.0.0.1", "::1", "localhost") for replica in self.replicas)
        direct = loopback or config.urls == "local"  # started, or handed over, for this run: no proxy stands between
        self._http = httpx.AsyncClient(
            headers=_authorization(config.token_env),
            timeout=httpx.Timeout(None, connect=min(CONNECT_SECONDS, config.timeout)),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=CONCURRENT_REQUESTS),
            trust_env=not direct,
        )

    @property
    def urls(self) -> str:
        """All URLs, for messages."""
        return ", ".join(replica.url for replica in self.replicas)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        body: BaseModel | None,
        kind: type[Answer],
        deadline: float,
        check: Callable[[Answer], None],
    ) -> Answer:
        """The answer of the first replica that gives a usable one. `deadline` is a deadline on the monotonic clock.

        `check` raises UnexpectedAnswerError for an answer that does not belong to the request. Raises OutageError at
        the deadline, RequestError where a replica refuses the request or the request cannot be written as JSON.
        """
        try:
            content = None if body is None else body.model_dump_json()
        except PydanticSerializationError as error:
            raise RequestError(f"{method} {path}: the request is no valid Unicode text ({error}).") from error
        request_id = uuid.uuid4().hex
        self.stats.requests += 1
        tries = round_ = 0
        while True:
            failures: list[RequestFailure] = []
            for replica in self._replica_order():
                tries += 1
                self.stats.retries += tries > 1
                name = f"{request_id}-{tries}"
                outcome = await self.attempt(replica, method, path, content, kind, deadline, check, name)
                if not isinstance(outcome, RequestFailure):
                    return outcome
                failures.append(outcome)
                if time.monotonic() >= deadline:
                    raise OutageError(outcome)
            await self.pause(failures, round_, deadline)
            round_ += 1

    async def attempt(
        self,
        replica: Replica,
        method: str,
        path: str,
        content: str | None,
        kind: type[Answer],
        deadline: float,
        check: Callable[[Answer], None],
        request_id: str,
    ) -> Answer | RequestFailure:
        """Ask one replica once.

        RequestError where it calls the request wrong, TokenError where it wants another token.
        """
        seconds = max(0.0, min(self._timeout, deadline - time.monotonic()))
        headers = {"X-Request-ID": request_id}
        if content is not None:
            headers["Content-Type"] = "application/json"
        self.stats.attempts += 1
        retry_after = 0.0
        replica.begin()
        try:
            async with asyncio.timeout(seconds):
                response = await self._http.request(method, replica.url + path, content=content, headers=headers)
            if response.status_code == 200:
                answer = kind.model_validate_json(response.content)
                check(answer)
                replica.succeed()
                return answer
            status, detail = response.status_code, _detail(response)
            if 400 <= status < 500 and status not in (408, 429):
                replica.succeed()
                kind_of_error = TokenError if status in (401, 403) else RequestError
                raise kind_of_error(f"{method} {replica.url}{path} was refused with {status}: {detail}")
            reason = f"HTTP {status}: {detail}"
            retry_after = retry_after_seconds(response.headers.get("retry-after"))
        except TimeoutError:
            reason = f"no answer within {seconds:.3g} s"
        except httpx.HTTPError as error:
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
        except (ValidationError, UnexpectedAnswerError) as error:
            reason = f"HTTP 200 with a body that is not the environment's answer: {_invalid(error)}"
        finally:
            replica.end()
        failure = RequestFailure(replica.url, reason, retry_after, request_id)
        self.stats.opened += replica.state == "closed"
        replica.fail(retry_after)
        self.stats.failures += 1
        self.stats.last_failure = failure
        return failure

    async def text(self, replica: Replica, path: str) -> str | None:
        """What one replica answers to a GET, without a second try; None where it does not answer 200 at once."""
        try:
            response = await self._http.get(replica.url + path, timeout=min(self._timeout, LOOK_SECONDS))
        except httpx.HTTPError:
            return None
        return response.text if response.status_code == 200 else None

    async def pause(self, failures: Sequence[RequestFailure], round_: int, deadline: float) -> None:
        """Back off with full jitter, at least as long as the most willing replica asked for.

        Raises OutageError where that leaves no time for another attempt.
        """
        retry_after = min(failure.retry_after for failure in failures)
        jitter = self._random.uniform(0.0, min(MAX_BACKOFF_SECONDS, BACKOFF_SECONDS * 2.0 ** min(round_, 16)))
        left = deadline - time.monotonic()
        if retry_after < left:
            await asyncio.sleep(min(retry_after + jitter, left))
        if retry_after >= left or deadline - time.monotonic() < LEAST_ATTEMPT_SECONDS:
            raise OutageError(failures[-1])

    def _replica_order(self) -> list[Replica]:
        self._turn = (self._turn + 1) % len(self.replicas)
        return to_ask(self.replicas, self._turn)


def retry_after_seconds(header: str | None) -> float:
    """Seconds of a Retry-After header (RFC 9110, 10.2.3: a number or a date); 0 where it is absent or unreadable."""
    if header is None:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except ValueError:
            return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


def _base_url(text: str) -> str:
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, TypeError) as error:
        raise ConfigError(f"client.urls: {text!r} is no URL ({error}); expected http://HOST:PORT.") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"client.urls: {text!r} is no service URL; expected http://HOST:PORT or https://HOST.")
    return str(url).rstrip("/")


def _authorization(variable: str) -> dict[str, str]:
    token = token_of(variable)
    return {"Authorization": f"Bearer {token}"} if token else {}


def _detail(response: httpx.Response) -> str:
    """What an error answer says, in one line."""
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        return " ".join(response.text.split())[:SHOWN_CHARACTERS] or response.reason_phrase
    return " ".join([problem.detail, *(f"{field.where}: {field.what}." for field in problem.invalid)])


def _invalid(error: ValidationError | UnexpectedAnswerError) -> str:
    if isinstance(error, UnexpectedAnswerError):
        return str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'body'}: {first['msg']}"
