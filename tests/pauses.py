"""A clock for clients that wait."""

import asyncio

from querylect.envs.client.client import RetryClock


class PausesOnly:
    """A clock that goes on by the pauses of the client alone, which end at once."""

    def __init__(self):
        self.pauses = []
        self.clock = RetryClock(lambda: sum(self.pauses), self.sleep)

    async def sleep(self, seconds):
        self.pauses.append(seconds)
        await asyncio.sleep(0)
