"""A rewriter behind the routes of a service: which requests are taken, what is searched between turns, how they end."""

import asyncio
import math
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from fastapi import HTTPException, Request

from ..envs.plan import SearchPlan
from ..envs.schemas import HitBody
from ..envs.server.batching import GOING_DOWN, OverloadedError
from ..envs.server.middleware import note
from ..envs.server.service import ServiceState, while_connected
from ..envs.wire import read_hits
from ..errors import EnvironmentUnavailableError, QuerylectError, RequestError
from .batching import ClosedError
from .rewriter import Rewriter

MAX_WAITING = 256
"""Number of queued questions from which on new requests are refused."""

Value = TypeVar("Value")


class ServedRewriter:
    """One rewriter and the service whose routes it answers; the rewriter is closed when the service gives up."""

    def __init__(self, service: ServiceState, rewriter: Rewriter) -> None:
        self.service, self.rewriter = service, rewriter
        service.when_given_up(rewriter.close)

    def admit(self, request: Request, questions: int) -> None:
        """Log how many questions a request asks. Raises OverloadedError if the queue is full."""
        note(request.scope, questions=questions)
        pending = self.rewriter.waiting
        if pending >= MAX_WAITING:
            wait = math.ceil(pending * self.rewriter.seconds_per_question)
            raise OverloadedError(
                f"{pending} questions already wait, and more are taken while fewer than {MAX_WAITING} do; ask again "
                "later, or start another replica",
                retry_after=min(max(wait, 1), 30),
            )

    def searcher(self, request: Request) -> "_ServiceSearcher":
        """The service's own batched search, with texts, on behalf of one request."""
        return _ServiceSearcher(self.service, request)

    async def finish(self, request: Request, work: Awaitable[Value]) -> Value:
        """The result of `work`, which is cancelled, with a ClientDisconnect, if the client disconnects first.

        Raises OverloadedError if the service shuts down first, also while the model is running, HTTPException 500 if
        the rewriter fails, and the errors of a search.
        """
        try:
            return await while_connected(request, work, self.service.given_up)
        except ClosedError as error:
            raise OverloadedError(GOING_DOWN) from error
        except (RequestError, EnvironmentUnavailableError):
            raise
        except QuerylectError as error:
            raise HTTPException(500, f"the rewriter failed: {error}") from error


class _ServiceSearcher:
    def __init__(self, service: ServiceState, request: Request) -> None:
        self._service, self._request = service, request

    async def search(self, plans: Sequence[SearchPlan]) -> list[list[HitBody]]:
        self._service.admit(self._request, plans)
        _, rankings = await self._service.rank(self._request, plans)
        return await asyncio.to_thread(read_hits, self._service.environment, rankings)
