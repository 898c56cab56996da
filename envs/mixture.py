"""Several environments behind one client: a question's id says which of them ranks and scores it (data/mixed_ids.py).

Every environment keeps a client, replicas, a deadline and an outage of its own. What one of them does not answer is
unscorable, as it is with that environment alone, and never keeps back what the others answered.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from ..data.mixed_ids import join_id, joined, split_id
from ..data.types import Question
from .client import SyncEnvironmentClient
from .wire import EnvironmentInfo, Limits, Step, StepResult


class MixedClient:
    """Asks the environments by name; the clients are closed by whoever opened them."""

    def __init__(self, clients: Mapping[str, SyncEnvironmentClient]) -> None:
        self.clients = dict(clients)

    @property
    def last_failure(self) -> str | None:
        """The last attempt that failed, for every environment that had one."""
        failures = [f"{name}: {client.last_failure}" for name, client in self.clients.items() if client.last_failure]
        return "; ".join(failures) or None

    def environments(self) -> dict[str, EnvironmentInfo]:
        """What each of them serves. Raises as SyncEnvironmentClient.environment."""
        return {name: client.environment() for name, client in self.clients.items()}

    def environment(self) -> EnvironmentInfo:
        """All of them as one: sizes added up, cards by name, hashes that change where one of theirs does.

        Raises as SyncEnvironmentClient.environment.
        """
        infos = self.environments()

        def each(field: str) -> str:
            return ", ".join(f"{name}: {getattr(info, field)}" for name, info in infos.items())

        limits = [info.limits.model_dump() for info in infos.values()]
        splits = sorted({split for info in infos.values() for split in info.splits})
        return EnvironmentInfo(
            name=" + ".join(infos),
            retriever={name: info.retriever for name, info in infos.items()},
            corpus_size=sum(info.corpus_size for info in infos.values()),
            corpus_hash=each("corpus_hash"),
            index_hash=each("index_hash"),
            gain=each("gain"),
            splits={split: sum(info.splits.get(split, 0) for info in infos.values()) for split in splits},
            limits=Limits(**{name: min(limit[name] for limit in limits) for name in limits[0]}),
        )

    def questions(self, split: str) -> list[Question]:
        """The questions of that split in all environments, one after the other, under mixed ids.

        Raises as SyncEnvironmentClient.questions.
        """
        return [each for name, client in self.clients.items() for each in joined(name, client.questions(split))]

    def step(
        self, steps: Sequence[Step], *, with_text: bool = False, metrics: Sequence[str] = ()
    ) -> list[StepResult | None]:
        """Rank and score every step where it belongs, all environments side by side; results in the order of `steps`.

        Raises as SyncEnvironmentClient.step; the searches of the other environments are given up then.
        """
        places: dict[str, list[int]] = {}
        for place, step in enumerate(steps):
            places.setdefault(split_id(step.question_id)[0], []).append(place)
        asked: dict[str, Future[list[StepResult | None]]] = {}
        results: list[StepResult | None] = [None] * len(steps)
        try:
            for name, mine in places.items():
                part = [Step(question_id=split_id(steps[at].question_id)[1], plan=steps[at].plan) for at in mine]
                asked[name] = self.clients[name].step_soon(part, with_text, metrics)
            for name, mine in places.items():
                for place, result in zip(mine, asked[name].result(), strict=True):
                    if result is not None:
                        whole_id = join_id(name, result.question_id)
                        results[place] = result.model_copy(update={"question_id": whole_id})
        finally:
            for future in asked.values():
                future.cancel()
        return results
