"""Work for a client that is still there: whoever closes the connection gives up what was asked."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from .batching import GOING_DOWN, OverloadedError

Value = TypeVar("Value")


async def while_connected(request: Request, work: Awaitable[Value], given_up: asyncio.Event) -> Value:
    """The result of `work`, to be awaited after the body has been read.

    It is cancelled, with a ClientDisconnect, once the client has closed the connection, and with an OverloadedError
    once `given_up` is set.
    """
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(given_up.wait())
    tasks = (working, stopping, asyncio.ensure_future(_disconnected(request)))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise OverloadedError(GOING_DOWN) if stopping.done() else ClientDisconnect
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
