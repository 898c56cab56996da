"""Bounds on request bodies, checked while they arrive and before a parser has built anything from them.

Parsing builds an object for every entry of a JSON list or object, a hundred bytes and more for each two bytes of the
body, and a validator adds as much again. So entries are counted in the bytes: whatever a body holds, at most
`max_entries` of them are ever built. All requests together hold at most OPEN_REQUESTS times what the largest may hold:
its body, and what is built from it.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from fastapi import HTTPException
from starlette.types import Message, Receive

OPEN_REQUESTS = 8
"""All requests that are not answered yet may together hold so many times the bytes of the largest."""
ENTRY_BYTES = 200
"""What an entry takes once it is built: a term of a plan has three, and takes 600 bytes."""
SMALL_BYTES = 65_536
"""A longer body is parsed alone in its pass of the event loop, so that other calls are answered in between."""
CLOSE = {"Connection": "close"}


class EntryCounter:
    """Counts the entries of all lists and objects of a UTF-8 JSON text that arrives in pieces.

    Outside of strings, every entry follows a bracket or a comma. For bytes that are no JSON the count holds as far as a
    parser reads them.
    """

    def __init__(self) -> None:
        self.entries = 0
        self._in_string = False
        self._rest = b""
        """A backslash at the end of the last piece, which escapes the first character of the next."""

    def feed(self, piece: bytes) -> None:
        """Count the entries of the next piece."""
        text = self._rest + piece
        end = len(text) - (len(text) - len(text.rstrip(b"\\"))) % 2
        text, self._rest = text[:end], text[end:]
        if b"\\" in text:
            text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = text.split(b'"')
        outside = b"".join(parts[self._in_string :: 2])
        self.entries += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        self._in_string ^= len(parts) % 2 == 0


@dataclass(slots=True, kw_only=True)
class BodyLimits:
    """The bounds, and the bytes that all requests hold now: their bodies, and what is built from them."""

    max_bytes: int
    max_entries: int
    read_seconds: float
    open_bytes: int = 0
    _parsing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def max_open_bytes(self) -> int:
        """Most bytes that all requests hold together."""
        return OPEN_REQUESTS * (self.max_bytes + ENTRY_BYTES * self.max_entries)

    @asynccontextmanager
    async def limited(self, receive: Receive) -> AsyncIterator[Receive]:
        """A `receive` that raises HTTPException: 413 for a body that grows too large or has too many entries, 400 for
        one that is not UTF-8, 408 for one that arrives too slowly, 503 where the requests in work hold too many bytes.
        The request holds its bytes until the block ends."""
        deadline, counter = time.monotonic() + self.read_seconds, EntryCounter()
        size, held, complete = 0, 0, False

        async def limited() -> Message:
            nonlocal size, held, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(
                    408,
                    f"the body did not arrive within {self.read_seconds:g} s ({size} bytes did). "
                    "Send it faster, or fewer plans in one request.",
                    CLOSE,
                ) from None
            piece = message.get("body", b"")
            size += len(piece)
            self.check_size(size)
            if b"\0" in piece:  # other encodings would be counted wrong
                raise HTTPException(400, "the body holds a byte 0, so it is no JSON in UTF-8; encode it so.", CLOSE)
            counter.feed(piece)
            if counter.entries > self.max_entries:
                raise HTTPException(
                    413,
                    f"the lists and objects of the body have more than {self.max_entries} entries; no request within "
                    "the limits of GET /v1/environment needs as many. Send fewer plans or texts in one request.",
                    CLOSE,
                )
            self.open_bytes -= held
            held = size + ENTRY_BYTES * counter.entries
            self.open_bytes += held
            if self.open_bytes > self.max_open_bytes:
                raise HTTPException(
                    503,
                    f"the requests in work hold {self.open_bytes} bytes, and at most {self.max_open_bytes} are held; "
                    "ask again later, or send fewer plans in one request.",
                    {"Retry-After": "1", **CLOSE},
                )
            complete = not message.get("more_body", False)
            if complete and size > SMALL_BYTES:
                async with self._parsing:
                    await asyncio.sleep(0)
            return message

        try:
            yield limited
        finally:
            self.open_bytes -= held

    def check_size(self, size: int) -> None:
        """HTTPException 413 for a body of at least `size` bytes that is too large."""
        if size > self.max_bytes:
            raise HTTPException(
                413,
                f"the body has at least {size} bytes; at most {self.max_bytes} are taken. "
                "Send fewer plans in one request.",
                CLOSE,
            )
