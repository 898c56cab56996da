"""One circuit breaker per replica: a URL that failed rests, longer each time, and comes back through one request.

closed: asked in turn. open: not asked while another replica is closed. half-open, once it has rested: one request at a
time tries it; success closes the circuit, failure opens it again. With no closed replica the one that has rested
longest is asked all the same: back-off and deadline bound that, and a service that returns is found at once.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

REST_SECONDS = 5.0
MAX_REST_SECONDS = 60.0


@dataclass(slots=True)
class Replica:
    """One URL of the service and its circuit; times are of the monotonic clock."""

    url: str
    failures: int = 0
    """Failures since the last success."""
    rests_until: float = 0.0
    trying: bool = False
    """Whether a request tries it, half-open."""

    @property
    def state(self) -> str:
        """closed, open or half-open."""
        if not self.failures:
            return "closed"
        return "open" if time.monotonic() < self.rests_until else "half-open"

    def begin(self) -> None:
        """A request goes there."""
        self.trying = self.trying or bool(self.failures)

    def end(self) -> None:
        """That request came to an end; cancelled, it says nothing about the replica."""
        self.trying = False

    def succeed(self) -> None:
        """It gave a usable answer."""
        self.failures, self.rests_until, self.trying = 0, 0.0, False

    def fail(self, retry_after: float) -> None:
        """It gave none; `retry_after` seconds were asked for."""
        self.failures, self.trying = self.failures + 1, False
        rest = min(MAX_REST_SECONDS, REST_SECONDS * 2.0 ** min(self.failures - 1, 16))
        self.rests_until = time.monotonic() + max(rest, retry_after)


def to_ask(replicas: Sequence[Replica], turn: int) -> list[Replica]:
    """Whom one round of a request asks, in order; never nobody."""
    turned = [*replicas[turn:], *replicas[:turn]]
    half_open = [replica for replica in turned if replica.state == "half-open" and not replica.trying]
    closed = [replica for replica in turned if replica.state == "closed"]
    if closed:
        return [*half_open[:1], *closed]
    return half_open or sorted(turned, key=lambda replica: replica.rests_until)
