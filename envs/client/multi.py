"""Several environments behind one client; a question's id names the one that ranks and scores it (data/mixed_ids.py).

Every environment has its own client, replicas and deadline. A search that one of them fails to answer has no result;
those of the others are returned.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from ...data.mixed_ids import join_id, joined, split_id
from ...data.types import Question
from ..schemas import EnvironmentInfo, Step, StepResult
from .client import EnvironmentClient


class MixedClient:
    """Asks the environments by name; the caller closes the clients."""

    def __init__(self, clients: Mapping[str, EnvironmentClient]) -> None:
        self.clients = dict(clients)

    @property
    def last_failure(self) -> str | None:
        """The last attempt that failed, for every environment that had one."""
        failures = [f"{name}: {client.last_failure}" for name, client in self.clients.items() if client.last_failure]
        return "; ".join(failures) or None

    def infos(self) -> dict[str, EnvironmentInfo]:
        """What each of them serves. Raises as EnvironmentClient.info."""
        return {name: client.info() for name, client in self.clients.items()}

    def info(self) -> EnvironmentInfo:
        """All environments as one: sizes summed up, retrievers by name, hashes joined.

        Raises as EnvironmentClient.info.
        """
        infos = self.infos()

        def combined(field: str) -> str:
            return ", ".join(f"{name}: {getattr(info, field)}" for name, info in infos.items())

        splits = sorted({split for info in infos.values() for split in info.splits})
        return EnvironmentInfo(
            name=" + ".join(infos),
            retriever={name: info.retriever for name, info in infos.items()},
            corpus_size=sum(info.corpus_size for info in infos.values()),
            corpus_hash=combined("corpus_hash"),
            index_hash=combined("index_hash"),
            settings_hash=combined("settings_hash"),
            splits={split: sum(info.splits.get(split, 0) for info in infos.values()) for split in splits},
            judged=all(info.judged for info in infos.values()),
        )

    def questions(self, split: str) -> list[Question]:
        """The questions of that split in all environments, one after the other, under mixed ids.

        Raises as EnvironmentClient.questions.
        """
        return [question for name, client in self.clients.items() for question in joined(name, client.questions(split))]

    def step(
        self, steps: Sequence[Step], *, with_text: bool = False, metrics: Sequence[str] = ()
    ) -> list[StepResult | None]:
        """Rank and score every step where it belongs, all environments side by side; results in the order of `steps`.

        Raises as EnvironmentClient.step, and then cancels the searches of the other environments.
        """
        indices_by_name: dict[str, list[int]] = {}
        for index, step in enumerate(steps):
            indices_by_name.setdefault(split_id(step.question_id)[0], []).append(index)
        futures: dict[str, Future[list[StepResult | None]]] = {}
        results: list[StepResult | None] = [None] * len(steps)
        try:
            for name, indices in indices_by_name.items():
                part = [Step(question_id=split_id(steps[i].question_id)[1], plan=steps[i].plan) for i in indices]
                futures[name] = self.clients[name].step_soon(part, with_text, metrics)
            for name, indices in indices_by_name.items():
                for index, result in zip(indices, futures[name].result(), strict=True):
                    if result is not None:
                        mixed_id = join_id(name, result.question_id)
                        results[index] = result.model_copy(update={"question_id": mixed_id})
        finally:
            for future in futures.values():
                future.cancel()
        return results
