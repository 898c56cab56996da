"""The protocols of an environment client, which callers can also implement themselves, and the address of a service.
No HTTP library is imported here.

`EnvironmentClient` is all of them. `MixedClient` has no `search`: only a question says which environment is meant.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ...data.types import Question
from ..plan import SearchPlan
from ..schemas import EnvironmentInfo, HitBody, Step, StepResult


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """A service that was started for a run, with the token that it was started with."""

    url: str
    token: str | None = field(default=None, repr=False)
    """None: the token of `client.token_env`."""

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request to it."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


class StepClient(Protocol):
    """Scores searches: all that rollouts need. While trees are streamed (rollouts/streaming.py), threads call it at the
    same time."""

    def step(
        self, steps: Sequence[Step], *, with_text: bool = False, metrics: Sequence[str] = ()
    ) -> list[StepResult | None]:
        """Rank and score every step; None = no answer before the deadline."""


@runtime_checkable
class ReadingClient(StepClient, Protocol):
    """Scores searches by what a reader answers from them, and also what it answers without documents."""

    def step_and_read(
        self, steps: Sequence[Step], unsearched: Sequence[str], *, metrics: Sequence[str] = ()
    ) -> list[StepResult | None]:
        """The results of `steps`, with texts, then one for each question id of `unsearched`, without a ranking."""


class EnvironmentApi(StepClient, Protocol):
    """Also says what it serves, and gives the questions of a split."""

    @property
    def last_failure(self) -> object:
        """The last attempt that failed, to be shown in a message; None without one."""

    def info(self) -> EnvironmentInfo:
        """What the service serves."""

    def questions(self, split: str) -> list[Question]:
        """All questions of a split, in their fixed order."""


class SearchClient(Protocol):
    """Ranks plans that belong to no question of the environment."""

    def search(self, plans: Sequence[SearchPlan], with_text: bool = True) -> Sequence[Sequence[HitBody]]:
        """A ranking for each plan; `Hits` where the service says how many texts it read only in part."""
