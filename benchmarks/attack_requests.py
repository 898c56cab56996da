"""Requests that a service should never get: malformed, oversized, slow, half-open, pipelined and replayed.

What a good request is, the service says itself: one of its own questions, searched and scored. A client asks that over
and over meanwhile; its answers must stay the same to the byte, and how long it waits is reported.
"""

import asyncio
import random
import socket
import statistics
import struct
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx
from attack_tally import Tally
from querylect.envs.plan import SearchPlan
from querylect.tests.malformed import Sent, send_damaged, send_drawn, send_raw

MEANS = "no 500, no undeclared answer, none held for ever, and a good request beside and after it is answered the same"
SHARES = {
    "drawn": 0.1,
    "raw bytes": 0.03,
    "oversized": 0.04,
    "half-open": 0.04,
    "pipelined": 0.04,
    "replayed": 0.04,
    "slow": 0.02,
}
"""Of all tries; the rest are valid requests that were damaged."""
PATIENCE = 60.0
"""Seconds beyond env.read_seconds after which a slow sender counts as held for ever."""
PAUSE = 0.05
"""Seconds between two requests of the client beside."""


def attack(url: str, token: str | None, read_seconds: float, tries: int, seed: int) -> Tally:
    """Send so many, a seeded share of each kind. RuntimeError where the service does not answer a good request."""
    tally, draw = Tally("requests", MEANS), random.Random(seed)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    good = GoodRequest.from_service(url, headers)
    counts = {kind: max(1, round(share * tries)) for kind, share in SHARES.items()}
    damaged = max(1, tries - sum(counts.values()))
    statuses: Counter = Counter()
    with Witness(good) as witness:
        witness.wait_for(30)
        before = witness.take()
        slow: list[str] = []
        senders = threading.Thread(target=lambda: slow.extend(asyncio.run(_slow(good, counts["slow"], read_seconds))))
        senders.start()
        for sent in (
            send_drawn(url, counts["drawn"], seed, headers, overload=True),
            send_damaged(url, damaged, seed, headers, overload=True),
            send_raw(url, counts["raw bytes"], seed),
        ):
            _count(tally, sent, statuses)
        for kind, send in SENDERS.items():
            for _ in range(counts[kind]):
                try:
                    broken = send(good, draw)
                except (OSError, ValueError) as error:
                    broken = [f"{type(error).__name__}: {error}"]
                tally.tried += 1
                tally.lost += [f"{kind}: {what}" for what in broken[:1]]
        senders.join()
        tally.tried += len(slow)
        tally.lost += [f"slow: {end}" for end in slow if end not in ("408", "closed")]
        during = witness.take()
    tally.tried += 1
    tally.lost += [f"beside: {what}" for what in witness.wrong[:1]]
    tally.notes.append(f"sent: {damaged} damaged, " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
    answers = ", ".join(f"{number} × {status}" for status, number in sorted(statuses.items(), key=str))
    tally.notes.append(f"answers to damaged and drawn requests and raw bytes: {answers}")
    tally.notes.append(f"slow senders: {dict(Counter(slow))}")
    tally.notes.append(f"the client beside waited before: {_latency(before)}; meanwhile: {_latency(during)}")
    return tally


@dataclass
class GoodRequest:
    """A request that the service answers, and its answer."""

    url: str
    headers: dict[str, str]
    path: str
    body: bytes
    answer: bytes = b""

    @classmethod
    def from_service(cls, url: str, headers: dict[str, str]) -> "GoodRequest":
        """One question of the first split that the service names, as a plan to search and score."""
        with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=60) as http:
            splits = http.get("/v1/environment").raise_for_status().json()["splits"]
            response = http.get("/v1/questions", params={"split": next(iter(splits)), "limit": 1})
            question = response.raise_for_status().json()["questions"][0]
            plan = SearchPlan.of(question["text"]).model_dump(mode="json")
            request = httpx.Request("POST", url, json={"steps": [{"question_id": question["id"], "plan": plan}]})
        good = cls(url.rstrip("/"), headers, "/v1/step", request.read())
        status, good.answer = good.ask()
        if status != 200:
            raise RuntimeError(f"{url} answers a good request with {status}: {good.answer[:300]!r}")
        return good

    def ask(self) -> tuple[int, bytes]:
        """Status and body of the answer now."""
        headers = {**self.headers, "Content-Type": "application/json"}
        with httpx.Client(trust_env=False, timeout=60) as http:
            answer = http.post(self.url + self.path, content=self.body, headers=headers)
        return answer.status_code, answer.content

    def raw(self, *more: str, length: int | None = None) -> bytes:
        """The request as bytes, with more header lines."""
        lines = [f"POST {self.path} HTTP/1.1", f"Host: {urlsplit(self.url).netloc}", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        lines += [f"Content-Length: {len(self.body) if length is None else length}", *more, "", ""]
        return "\r\n".join(lines).encode()

    def connect(self) -> socket.socket:
        address = urlsplit(self.url)
        return socket.create_connection((address.hostname, address.port or 80), timeout=60)


@dataclass
class Witness:
    """A client that sends the good request over and over in a thread of its own."""

    good: GoodRequest
    wrong: list[str] = field(default_factory=list)
    _seconds: list[float] = field(default_factory=list)

    def __enter__(self) -> "Witness":
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def wait_for(self, answers: int) -> None:
        """Until so many were answered since `take`."""
        while len(self._seconds) < answers and not self.wrong:
            time.sleep(PAUSE)

    def take(self) -> list[float]:
        """The seconds of every answer so far, which are forgotten."""
        taken, self._seconds = self._seconds, []
        return taken

    def _ask(self) -> None:
        while not self._over.wait(PAUSE):
            started = time.perf_counter()
            try:
                status, body = self.good.ask()
            except httpx.HTTPError as error:
                self.wrong.append(f"{type(error).__name__}: {error}")
                continue
            self._seconds.append(time.perf_counter() - started)
            if status != 503 and (status, body) != (200, self.good.answer):
                self.wrong.append(f"answered {status} {body[:200]!r}, before {self.good.answer[:200]!r}")


def _count(tally: Tally, sent: Sent, statuses: Counter) -> None:
    statuses += sent.statuses
    tally.tried += sent.requests
    tally.lost += sent.wrong


def _oversized(good: GoodRequest, draw: random.Random) -> list[str]:
    """A body or a head of which no service should keep more than its limit."""
    kind = draw.choice(["declared", "sent", "head", "chunks"])
    size = draw.choice([70_000, 200_000, 1_000_000])
    if kind == "declared":
        request = good.raw("Expect: 100-continue", length=draw.choice([2**31, 2**40, 10**18]))
    elif kind == "sent":
        request = good.raw(length=40_000_000) + b" " * 40_000_000
    elif kind == "head":
        request = good.raw(f"X-Pad: {'a' * size}") + good.body
    else:
        head = good.raw("Transfer-Encoding: chunked").replace(b"Content-Length", b"X-Length")
        request = head + (b"10000\r\n" + b" " * 65536 + b"\r\n") * 600 + b"0\r\n\r\n"
    status = _status(_exchange(good, request))
    if status in ("closed", "400", "408", "413", "414", "431"):
        return []
    return [f"{kind} of {size if kind == 'head' else 'far too many'} bytes was answered {status}"]


def _half_open(good: GoodRequest, draw: random.Random) -> list[str]:
    """A part of a request, and then the client is gone, with or without a word."""
    request = good.raw() + good.body
    connection = good.connect()
    connection.sendall(request[: draw.randrange(len(request) + 1)])
    if draw.random() < 0.5:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    connection.close()
    return _still_right(good)


def _pipelined(good: GoodRequest, draw: random.Random) -> list[str]:
    """Several requests in one write: as many answers, in order."""
    several = draw.randint(2, 8)
    requests = (good.raw() + good.body) * (several - 1) + good.raw("Connection: close") + good.body
    answers = _answers(_exchange(good, requests, until_closed=True))
    statuses = [status for status, _ in answers]
    right = [answer == ("200", good.answer) or answer[0] == "503" for answer in answers]
    if len(answers) != several or not all(right):
        return [f"{several} pipelined requests were answered {statuses}, {right.count(False)} of them wrong"]
    return []


def _replayed(good: GoodRequest, draw: random.Random) -> list[str]:
    """The same bytes again and again, request id and all."""
    request = good.raw(f"X-Request-ID: replay-{draw.randrange(10)}", "Connection: close") + good.body
    rounds = [_answers(_exchange(good, request, until_closed=True)) for _ in range(3)]
    expected = [("200", good.answer)]
    wrong = [answers for answers in rounds if answers != expected and [status for status, _ in answers] != ["503"]]
    return [f"one of three was answered {wrong[0]}"] if wrong else []


def _still_right(good: GoodRequest) -> list[str]:
    status, body = good.ask()
    if status == 503 or (status, body) == (200, good.answer):
        return []
    return [f"a good request after it was answered {status} {body[:200]!r}"]


def _exchange(good: GoodRequest, request: bytes, until_closed: bool = False) -> bytes:
    """What comes back: the first bytes, or all of them."""
    answer = b""
    with good.connect() as connection:
        with suppress(ConnectionError):  # refused before all of it was sent; why, may be there to read
            connection.sendall(request)
        with suppress(ConnectionError):
            while (more := connection.recv(65536)) and (answer := answer + more) and until_closed:
                pass
    return answer


def _status(answer: bytes) -> str:
    return answer[9:12].decode("latin-1") if answer else "closed"


def _answers(received: bytes) -> list[tuple[str, bytes]]:
    """Status and body of each answer in what was read."""
    answers = []
    while received:
        head, _, remaining = received.partition(b"\r\n\r\n")
        lengths = [line.split(b":")[1] for line in head.lower().splitlines() if line.startswith(b"content-length:")]
        length = int(lengths[0]) if lengths else len(remaining)
        answers.append((_status(head), remaining[:length]))
        received = remaining[length:]
    return answers


SENDERS = {"oversized": _oversized, "half-open": _half_open, "pipelined": _pipelined, "replayed": _replayed}


async def _slow(good: GoodRequest, number: int, read_seconds: float) -> list[str]:
    """How each of some senders ended that stop or drip in the head or the body."""
    address = urlsplit(good.url)
    head = good.raw(length=900)[:-2]
    body = good.raw(length=900) + b'{"steps": ['
    kinds = [(body, b""), (body, b" "), (head, b""), (head, b"X"), (b"GET /hea", b"")]

    async def send(request: bytes, drip: bytes) -> str:
        reader, writer = await asyncio.open_connection(address.hostname, address.port or 80)
        writer.write(request)
        answer, until = asyncio.ensure_future(reader.read(65536)), time.monotonic() + read_seconds + PATIENCE
        while not answer.done() and time.monotonic() < until:
            await asyncio.wait([answer], timeout=0.5)
            if not answer.done():
                writer.write(drip)
        writer.close()
        if not answer.done():
            answer.cancel()
            return f"still held after {read_seconds + PATIENCE:g} s"
        return "closed" if answer.exception() is not None else _status(answer.result())

    return await asyncio.gather(*(send(*kinds[number % len(kinds)]) for number in range(number)))


def _latency(seconds: Sequence[float]) -> str:
    if len(seconds) < 2:
        return f"for {len(seconds)} answers"
    cuts = [1000 * cut for cut in statistics.quantiles(seconds, n=20)]
    longest = 1000 * max(seconds)
    return f"{cuts[9]:.0f} ms (median), {cuts[18]:.0f} ms (95 %), {longest:.0f} ms (most) in {len(seconds)} requests"
