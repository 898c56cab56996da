"""Senders that never come to an end, for soak.py: heads and bodies that stop or drip, while a client asks beside."""

import asyncio
import time
from collections import Counter

from soak_judge import Asker, Row
from soak_processes import Service

EACH = 20
PATIENCE = 60.0


def hold_up(row: Row, service: Service, asker: Asker, token: str, read_seconds: float) -> None:
    """Let slow senders loose on the service; every one must be let go of, and the client answered meanwhile."""
    before = service.connections()
    ends = asyncio.run(_together(row, service.url, asker, token, read_seconds))
    row.check(ends["held"] == 0, f"{ends['held']} slow senders were still held after {read_seconds + PATIENCE:g} s")
    row.check(ends["408"] == 2 * EACH, f"{ends['408']} of {2 * EACH} slow bodies were answered 408")
    row.check(row.unscorable == 0, "slow senders kept the client from being answered")
    until = time.monotonic() + PATIENCE
    while service.connections() > before and time.monotonic() < until:
        time.sleep(0.2)
    row.check(service.connections() <= before, f"{service.connections()} connections stayed open, {before} before")
    row.notes.append(f"{ends['408']} slow bodies answered 408, {ends['closed']} slow heads closed")


async def _together(row: Row, url: str, asker: Asker, token: str, read_seconds: float) -> Counter:
    host, port = url.removeprefix("http://").split(":")
    head = f"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n".encode()
    body = head + b'Content-Type: application/json\r\nContent-Length: 900\r\n\r\n{"plans": ['
    ends: Counter = Counter()

    async def send(said: bytes, drip: bytes) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(said)
        answer, until = asyncio.ensure_future(reader.read(65536)), time.monotonic() + read_seconds + PATIENCE
        while not answer.done() and time.monotonic() < until:
            await asyncio.wait([answer], timeout=0.5)
            if not answer.done():
                writer.write(drip)
        if not answer.done():
            ends["held"] += 1
            answer.cancel()
        elif answer.exception() is not None or not answer.result():
            ends["closed"] += 1
        else:
            ends[answer.result()[9:12].decode("latin-1")] += 1
        writer.close()

    async def ask() -> None:
        async with asker.client() as client:
            while ends.total() < 5 * EACH:
                await asker.step(row, client, 8)

    kinds = [(body, b""), (body, b" "), (head, b""), (head, b"X"), (b"GET /hea", b"")]
    await asyncio.gather(ask(), *(send(*kind) for kind in kinds for _ in range(EACH)))
    return ends
