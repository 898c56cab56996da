"""One request to several replicas until a deadline: attempts, failover, back-off with full jitter, and their counters.

A usable answer is a 200 to this very request whose body validates. Everything else is a failure that is tried again,
save a 4xx other than 408 and 429: the service calls the request itself wrong, and that is an error at once.
"""

import asyncio
import base64
import logging
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Generic, TypeVar

import httpx
from pydantic import BaseModel, ValidationError
from tenacity import AsyncRetrying, retry_if_exception_type, wait_exception, wait_random_exponential

from ...configs.schema import ClientConfig
from ...errors import ConfigError, RequestError, TokenError
from ..credentials import token_of
from ..schemas import Problem
from .base import ServiceAddress

log = logging.getLogger(__name__)

Answer = TypeVar("Answer", bound=BaseModel)

REST_SECONDS = 5.0
MAX_REST_SECONDS = 60.0
MAX_RETRY_AFTER = 600.0
"""Maximum seconds of a Retry-After: a wrong clock must not exclude a replica for years."""
CONCURRENT_REQUESTS = 16
CONNECT_SECONDS = 5.0
LOOK_SECONDS = 2.0
"""Timeout of reading metrics."""
BACKOFF_SECONDS = 0.25
MAX_BACKOFF_SECONDS = 10.0
LEAST_ATTEMPT_SECONDS = 0.05
"""No attempt starts with less time left: it would time out and hide the previous failure."""
SHOWN_CHARACTERS = 300


@dataclass(slots=True)
class Replica:
    """One URL of the service and its circuit; times are of the monotonic clock."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What every request to it carries: its token."""
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
        self.failures, self.rests_until = 0, 0.0

    def fail(self, retry_after: float) -> None:
        """It gave no usable answer, and asked for a wait of `retry_after` seconds."""
        self.failures += 1
        seconds = min(MAX_REST_SECONDS, REST_SECONDS * 2.0 ** min(self.failures - 1, 16))
        self.rests_until = time.monotonic() + max(seconds, min(retry_after, MAX_RETRY_AFTER))


def to_ask(replicas: Sequence[Replica], turn: int) -> list[Replica]:
    """The replicas that one round of a request asks, in order; never empty."""
    rotated = [*replicas[turn:], *replicas[:turn]]
    half_open = [replica for replica in rotated if replica.state == "half-open" and not replica.trying]
    closed = [replica for replica in rotated if replica.state == "closed"]
    if closed:
        return [*half_open[:1], *closed]
    return half_open or sorted(rotated, key=lambda replica: replica.rests_until)


class UnexpectedAnswerError(Exception):
    """A 200 that holds something else than the answer to the request."""


class OutageError(Exception):
    """No usable answer from any replica in a round of attempts; raised to callers, until the deadline."""

    def __init__(self, failures: "Sequence[RequestFailure]" = ()) -> None:
        super().__init__(str(failures[-1]) if failures else "the deadline passed before the first attempt")
        self.retry_after = min((failure.retry_after for failure in failures), default=0.0)
        """The shortest wait that a replica asked for, in seconds."""


@dataclass(slots=True)
class Call(Generic[Answer]):
    """One request and what makes an answer to it usable."""

    method: str
    path: str
    kind: type[Answer]
    check: Callable[[Answer], None] = lambda answer: None
    """Raises UnexpectedAnswerError for an answer that does not belong to the request."""
    body: str | None = None
    """JSON."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """One attempt without a usable answer."""

    url: str
    reason: str
    retry_after: float = 0.0
    """Seconds that the service asked to wait; 0 where it did not ask."""
    request_id: str = ""
    """The id of the attempt in the service's log."""

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
    """How often the circuit of a replica was opened, after an answer or at its first failure."""
    unscorable: int = 0
    """Steps whose result was None."""
    seconds: float = 0.0
    """Wall-clock seconds spent in calls; calls that overlap add up."""
    last_failure: RequestFailure | None = None


class Transport:
    """Sends requests to the replicas of one service, each in turn, the healthy first."""

    def __init__(self, config: ClientConfig, urls: Sequence[str | ServiceAddress]) -> None:
        if not urls:
            message = "client.urls is empty; give at least one URL such as http://127.0.0.1:8080, or local."
            raise ConfigError(message)
        services = [ServiceAddress(url) if isinstance(url, str) else url for url in urls]
        if any(service.token is None for service in services):
            token = token_of(config.token_env)
            services = [replace(service, token=token) if service.token is None else service for service in services]
        self.replicas = [_replica(service) for service in services]
        self.stats = ClientStats()
        self._timeout = config.timeout
        self._turn = 0
        loopback = all(httpx.URL(replica.url).host in ("127.0.0.1", "::1", "localhost") for replica in self.replicas)
        direct = loopback or config.urls == "local"  # a service started for this run: no proxy in between
        self._http = httpx.AsyncClient(
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

    async def ask(self, call: Call[Answer], deadline: float) -> Answer:
        """The answer of the first replica that gives a usable one. `deadline` is a time of the monotonic clock.

        Raises OutageError at the deadline, RequestError where a replica refuses the request, TokenError where one wants
        another token.
        """
        return await self._retrying(deadline)(self._ask_in_turn, call, deadline)

    async def ask_all(self, call: Call[Answer], deadline: float) -> list[Answer | RequestFailure]:
        """What each replica says when all are asked at once, in rounds until one of them gives a usable answer.

        Raises as `ask`.
        """
        return await self._retrying(deadline)(self._ask_together, call, deadline)

    def _retrying(self, deadline: float) -> AsyncRetrying:
        """Rounds of one request, until one is no OutageError."""
        self.stats.requests += 1
        jitter = wait_random_exponential(multiplier=BACKOFF_SECONDS, max=MAX_BACKOFF_SECONDS)
        return AsyncRetrying(
            retry=retry_if_exception_type(OutageError),
            wait=wait_exception(lambda error: getattr(error, "retry_after", 0.0)) + jitter,
            stop=lambda state: time.monotonic() + state.upcoming_sleep > deadline - LEAST_ATTEMPT_SECONDS,
            sleep=asyncio.sleep,
            reraise=True,
        )

    async def text(self, replica: Replica, path: str) -> str | None:
        """What one replica answers to a GET, without a second try; None where it does not answer 200 at once."""
        try:
            seconds = min(self._timeout, LOOK_SECONDS)
            response = await self._http.get(replica.url + path, headers=replica.headers, timeout=seconds)
        except httpx.HTTPError:
            return None
        return response.text if response.status_code == 200 else None

    async def _ask_in_turn(self, call: Call[Answer], deadline: float) -> Answer:
        """Ask one replica after the other. OutageError where none gives a usable answer."""
        self._turn = (self._turn + 1) % len(self.replicas)
        failures = []
        for replica in to_ask(self.replicas, self._turn):
            outcome = await self._attempt(replica, call, deadline)
            if not isinstance(outcome, RequestFailure):
                return outcome
            failures.append(outcome)
            if time.monotonic() >= deadline:
                break
        raise OutageError(failures)

    async def _ask_together(self, call: Call[Answer], deadline: float) -> list[Answer | RequestFailure]:
        """Ask all replicas at once. OutageError where none gives a usable answer soon."""
        soon = min(deadline, time.monotonic() + CONNECT_SECONDS)
        outcomes = await asyncio.gather(*(self._attempt(replica, call, soon) for replica in self.replicas))
        failures = [outcome for outcome in outcomes if isinstance(outcome, RequestFailure)]
        for failure in failures:
            log.warning("no answer from %s", failure)
        if len(failures) == len(outcomes):
            raise OutageError(failures)
        return outcomes

    async def _attempt(self, replica: Replica, call: Call[Answer], deadline: float) -> Answer | RequestFailure:
        """Ask one replica once."""
        call.attempts += 1
        self.stats.attempts += 1
        self.stats.retries += call.attempts > 1
        seconds = max(0.0, min(self._timeout, deadline - time.monotonic()))
        request_id = f"{call.id}-{call.attempts}"
        headers = {"X-Request-ID": request_id, "Content-Type": "application/json", **replica.headers}
        retry_after = 0.0
        replica.begin()
        try:
            async with asyncio.timeout(seconds):
                url = replica.url + call.path
                response = await self._http.request(call.method, url, content=call.body, headers=headers)
            status = response.status_code
            if status == 200:
                answer = _read(response, call, request_id)
                replica.succeed()
                return answer
            if 400 <= status < 500 and status not in (408, 429):
                replica.succeed()
                kind = TokenError if status in (401, 403) else RequestError
                raise kind(f"{call.method} {url} was refused with {status}: {_detail(response)}")
            reason = f"HTTP {status}: {_detail(response)}"
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


def _read(response: httpx.Response, call: Call[Answer], request_id: str) -> Answer:
    """The answer in a 200. Raises ValidationError or UnexpectedAnswerError where it is none to this request."""
    answer = call.kind.model_validate_json(response.content, strict=True)
    echoed = response.headers.get("x-request-id")
    if echoed != request_id:
        raise UnexpectedAnswerError(
            f"the header X-Request-ID is {echoed!r}, not the request's; a proxy in between must keep it"
        )
    call.check(answer)
    return answer


def retry_after_seconds(header: str | None) -> float:
    """Seconds of a Retry-After header (RFC 9110, 10.2.3: a number or a date); 0 where it is absent or unreadable."""
    if header is None:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, OverflowError):  # the latter for a year of many digits
            return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


def _replica(service: ServiceAddress) -> Replica:
    """The replica at an address. User and password of its URL become a header: no message and no repr shows them.

    Raises ConfigError for what is no URL of a service.
    """
    try:
        url = httpx.URL(service.url)
    except (httpx.InvalidURL, TypeError):
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not url.host:
        message = f"client.urls: {service.url!r} is no service URL; expected http://HOST:PORT or https://HOST."
        raise ConfigError(message)
    headers = service.headers
    if url.userinfo:
        login = base64.b64encode(f"{url.username}:{url.password}".encode()).decode()
        headers = {"Authorization": f"Basic {login}"}
    return Replica(str(url.copy_with(userinfo=b"")).rstrip("/"), headers)


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
