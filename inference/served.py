"""A rewriter behind the routes of a service: which requests are taken, what is searched between turns, how they end."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from fastapi import HTTPException

from ..envs.plan import SearchPlan
from ..envs.schemas import HitBody
from ..envs.server.batching import GOING_DOWN, OverloadedError
from ..envs.server.service import ServiceState, check_plans
from ..envs.wire import read_hits
from ..errors import EnvironmentUnavailableError, QuerylectError, RequestError
from .batching import ClosedError
from .rewriter import Rewriter

MAX_WAITING = 256
"""Number of queued questions from which on new requests are refused."""

Value = TypeVar("Value")


class ServedRewriter:
    """One rewriter and the service whose routes it answers and whose batched search it uses between turns; it is closed
    when the service ends."""

    def __init__(self, service: ServiceState, rewriter: Rewriter) -> None:
        self.service, self.rewriter = service, rewriter
        service.closers.append(rewriter.close)

    def admit(self) -> None:
        """Raises OverloadedError if the queue is full."""
        pending = self.rewriter.waiting
        if pending >= MAX_WAITING:
            raise OverloadedError(
                f"{pending} questions already wait, and more are taken while fewer than {MAX_WAITING} do; ask again "
                "later, or start another replica"
            )

    async def search(self, plans: Sequence[SearchPlan]) -> list[list[HitBody]]:
        """One ranking with texts for each plan."""
        check_plans(plans)
        rankings = await self.service.rank(plans)
        return await asyncio.to_thread(read_hits, self.service.environment, rankings)

    async def finish(self, work: Awaitable[Value]) -> Value:
        """The result of `work`.

        Raises OverloadedError if the service ends first, HTTPException 500 if the rewriter fails, and the errors of a
        search.
        """
        try:
            return await work
        except ClosedError as error:
            raise OverloadedError(GOING_DOWN) from error
        except (RequestError, EnvironmentUnavailableError):
            raise
        except QuerylectError as error:
            raise HTTPException(500, f"the rewriter failed: {error}") from error
