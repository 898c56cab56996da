"""A run in Weights & Biases: offline unless asked for, and offline from the moment that online does not work.

An offline run is a file in the run folder that `querylect sync` uploads later. What an online run could not send is in
such a file too: `querylect sync --include-online`.
"""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from ..configs.schema import TrackingConfig
from .tracking import Started, in_one_line

log = logging.getLogger(__name__)

Mode = Literal["online", "offline", "disabled"]

OPENING_SECONDS = 30.0
"""How long a server may take to answer before the run is tracked offline."""

SENDING_SECONDS = 8.0
"""How long the end of a run waits for a server to take the rest. W&B's client waits as long again when the process
ends, so this is below the time that a signal leaves (tracking.STOPPING_SECONDS)."""


_NO_ANSWER = re.compile(
    r"Failed to execute API request|did not respond|dial tcp|connection (refused|reset)|no such host"
    r"|time(d )?-?out|deadline exceeded|HTTP 5\d\d|An error occurred while checking",
    re.IGNORECASE,
)


def wandb_mode(settings: TrackingConfig) -> Mode:
    """What the settings mean: `auto` is WANDB_MODE where that is set, and else offline."""
    if settings.wandb != "auto":
        return settings.wandb
    said = os.environ.get("WANDB_MODE", "offline")
    return said if said in ("online", "disabled") else "offline"  # type: ignore[return-value]


class WandbRun:
    """The W&B run of a run folder; every method may raise, except that a server's refusal ends in an offline run."""

    name = "Weights & Biases"

    def __init__(self, started: Started) -> None:
        self.started = started
        self.online = wandb_mode(started.config.tracking) == "online"
        if self.online and not logged_in():
            log.warning(
                "tracking.wandb is online and nobody is logged in to Weights & Biases (`wandb login`); this run is "
                "tracked offline, and %s uploads it later", self._sync,
            )  # fmt: skip
            self.online = False
        self._run = self._open_online() if self.online else self._open("offline", started.joined)

    @property
    def _sync(self) -> str:
        return f"`querylect sync {self.started.folder}`"

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Log the figures of a step."""
        self._safely(lambda run: run.log(dict(figures), step=step))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        """Log sampled trees as the table `rollouts`."""
        import wandb

        table = wandb.Table(columns=list(columns), data=[list(row) for row in rows])
        self._safely(lambda run: run.log({"rollouts": table}, step=step))

    def close(self) -> None:
        """Send the rest, where this is online."""
        problem = login_problem() if self.online else ""
        try:
            self._run.finish()
        except TimeoutError:
            problem = problem or f"it had not taken everything after {SENDING_SECONDS:g} s"
        if problem:
            log.warning(
                "Weights & Biases has not got all of this run (%s); it lies in %s, and where you are logged in "
                "`querylect sync %s --include-online` uploads it",
                problem, self.started.folder / "wandb", self.started.folder,
            )  # fmt: skip

    def _safely(self, job: Any) -> None:
        import wandb

        try:
            job(self._run)
        except wandb.Error as error:
            if not self.online:
                raise
            log.warning(
                "Weights & Biases refused this run (%s); it goes on offline, and after `wandb login` "
                "`querylect sync %s --include-online` uploads it", in_one_line(error), self.started.folder,
            )  # fmt: skip
            with suppress(TimeoutError):
                self._run.finish()
            self._run = self._offline_instead(joined=True)
            job(self._run)

    def _open_online(self) -> Any:
        import wandb

        try:
            return self._open("online", self.started.joined)
        except wandb.Error as error:
            log.warning(
                "Weights & Biases cannot be used online (%s); this run is tracked offline, and %s uploads it later",
                in_one_line(error), self._sync,
            )  # fmt: skip
            return self._offline_instead(self.started.joined)

    def _offline_instead(self, joined: bool) -> Any:
        import wandb

        self.online = False
        wandb.teardown()  # or its service still holds the run that was refused: one of an id at a time
        return self._open("offline", joined)

    def _open(self, mode: Literal["online", "offline"], joined: bool) -> Any:
        import wandb

        started = self.started
        return wandb.init(
            project=started.config.tracking.project,
            name=started.config.name,
            id=started.id,
            resume="allow" if joined else None,
            reinit="create_new",
            dir=str(started.folder),
            mode=mode,
            config={**started.config.model_dump(mode="json"), "provenance": dict(started.provenance)},
            settings=wandb.Settings(
                silent=True,
                console="off",
                init_timeout=OPENING_SECONDS,
                finish_timeout=SENDING_SECONDS,
                finish_timeout_raises=True,
            ),
        )


def logged_in() -> bool:
    """Whether W&B's own client finds a key, without asking the network or the user."""
    return credentials() is not None


def credentials() -> Any:
    """What W&B's client would log in with; None where there is nothing, or nothing usable."""
    import wandb
    from wandb.sdk.lib import wbauth

    try:
        return wbauth.authenticate_session(
            host=wandb.setup().settings.base_url, source="querylect", prompt=False, update_session=False
        )
    except wandb.Error as error:
        log.debug("the login of Weights & Biases is of no use: %s", error)
        return None


def is_refusal(problem: str) -> bool:
    """Whether `problem` is the server's answer to a login, and not that it gave none: W&B's client calls both by the
    same error and begins both with the same words."""
    return _NO_ANSWER.search(problem) is None


def login_problem() -> str:
    """What keeps the server from taking the login, no answer included; "" where it takes it, or where there is none."""
    import wandb

    found = credentials()
    try:
        if found is not None:
            found.verify()
    except wandb.Error as error:
        return in_one_line(error)
    return ""
