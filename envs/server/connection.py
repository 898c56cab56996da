"""Work for a client that is still there: whoever closes the connection gives up what was asked."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

Value = TypeVar("Value")


class ClientGoneError(Exception):
    """The client closed the connection before its answer."""


async def while_connected(request: Request, work: Coroutine[Any, Any, Value]) -> Value:
    """The result of `work`, which is cancelled with a ClientGoneError once the client has closed the connection.

    To be awaited after the body has been read.
    """
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(disconnected(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def disconnected(request: Request) -> None:
    """Return when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
