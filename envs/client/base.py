"""The protocol of an environment, which callers can also implement themselves, and how a service is addressed. No HTTP
library is imported here.

`Environment` is the protocol in this process, `EnvironmentClient` over HTTP, `MixedClient` for several at once.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable
from urllib.parse import urlsplit

from ...data.types import Question
from ...errors import ConfigError
from ..plan import SearchPlan
from ..schemas import EnvironmentInfo, PlanResult, Step, StepResult


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


def is_loopback(url: str) -> bool:
    """Whether the URL names this machine: nothing there is reached through a proxy."""
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")


def token_of(variable: str) -> str:
    """The token in $VARIABLE, else in the file named by $VARIABLE_FILE; empty where neither is set.

    A batch system stores the environment of a job, and a file can be kept from everybody else. Raises ConfigError where
    the file cannot be read, or the token is nothing that a header can carry.
    """
    token, file = os.environ.get(variable, ""), os.environ.get(f"{variable}_FILE", "")
    if not token and file:
        try:
            token = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the token file {file}, named by {variable}_FILE, cannot be read ({error}).") from error
    if not ((token := token.strip()).isascii() and token.isprintable()):
        raise ConfigError(f"{variable} holds no token that a header can carry; use printable ASCII, or unset it.")
    return token


class StepClient(Protocol):
    """Scores searches: all that rollouts need. While trees are streamed, threads call it at the same time."""

    def step(
        self, steps: Sequence[Step], *, with_text: bool | int = False, metrics: Sequence[str] = ()
    ) -> Sequence[StepResult | None]:
        """Rank and score every step; None = no answer before the deadline: a failed search, which has no reward.

        `with_text` says which hits carry their texts: all, none, or the first so many.
        """


@runtime_checkable
class ReadingClient(StepClient, Protocol):
    """Scores searches by what a reader answers from them, and also what it answers without documents."""

    def step_and_read(
        self,
        steps: Sequence[Step],
        unsearched: Sequence[str],
        *,
        with_text: bool | int = False,
        metrics: Sequence[str] = (),
    ) -> list[StepResult | None]:
        """The results of `steps`, with the texts that are read, too, then one for each question id of `unsearched`,
        without a ranking."""


class EnvironmentApi(StepClient, Protocol):
    """An environment: what it is, its questions, searches and scored searches."""

    @property
    def last_failure(self) -> object:
        """The last attempt that failed, to be shown in a message; None without one."""

    def info(self) -> EnvironmentInfo:
        """What is searched, by which retriever, and which questions there are."""

    def questions(self, split: str) -> list[Question]:
        """All questions of a split, in their fixed order."""

    def search(self, plans: Sequence[SearchPlan], *, with_text: bool | int = True) -> list[PlanResult]:
        """One result for each plan, which belongs to no question of the environment."""
