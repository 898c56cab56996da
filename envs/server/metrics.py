"""The metrics of `GET /metrics`, in Prometheus' text format. No label contains text that a client chooses freely.

Several worker processes write into one folder (SHARED_FOLDER, set before a worker imports this), so that each of them
can report all metrics. Otherwise every app has its own registry.
"""

import os
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
PLANS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable by which prometheus_client knows the folder."""


class Metrics:
    """The figures of one service."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        total = partial(Gauge, registry=registry, multiprocess_mode="livesum")
        self.requests = counter("querylect_requests", "Requests answered, by route and status.", ["route", "status"])
        self.seconds = histogram("querylect_request_seconds", "Seconds of a request.", ["route"], buckets=SECONDS)
        self.plans = counter("querylect_plans", "Plans asked for, by where their rankings came from.", ["outcome"])
        self.truncated = counter("querylect_truncated_texts", "Texts of plans that were read only in part.")
        self.queue = total("querylect_queue_plans", "Plans that wait or are searched.")
        self.batches = histogram("querylect_batch_plans", "Plans searched together.", buckets=PLANS)
        self.search_seconds = histogram("querylect_search_seconds", "Seconds of one batch's search.", buckets=SECONDS)

    def text(self) -> bytes:
        """All figures, those of the other workers included."""
        if SHARED_FOLDER not in os.environ:
            return generate_latest(self._registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)
        return generate_latest(together)
