"""Several environments behind one client; a question's id names the one that ranks and scores it (data/mixed_ids.py).

Every environment has its own client, replicas and deadline. A search that one of them fails to answer is a failed
search; the results of the others are returned.
"""

from collections.abc import Mapping, Sequence

from ...data.mixed_ids import join_id, joined, split_id
from ...data.types import Question
from ...errors import ConfigError
from ..plan import SearchPlan
from ..schemas import EnvironmentInfo, PlanResult, Step, StepResult
from .client import EnvironmentClient


class MixedClient:
    """Asks the environments by name; the caller closes the clients. Raises as they do."""

    def __init__(self, clients: Mapping[str, EnvironmentClient]) -> None:
        self.clients = dict(clients)

    @property
    def last_failure(self) -> str | None:
        """The last attempt that failed, for every environment that had one."""
        failures = [f"{name}: {client.last_failure}" for name, client in self.clients.items() if client.last_failure]
        return "; ".join(failures) or None

    def give_up_soon(self) -> None:
        """As `EnvironmentClient.give_up_soon`, for all of them."""
        for client in self.clients.values():
            client.give_up_soon()

    def infos(self) -> dict[str, EnvironmentInfo]:
        """What each of them serves."""
        return {name: client.info() for name, client in self.clients.items()}

    def info(self) -> EnvironmentInfo:
        """All environments as one: sizes summed up, retrievers by name, hashes joined."""
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
        """The questions of that split in all environments, one after the other, under mixed ids."""
        return [question for name, client in self.clients.items() for question in joined(name, client.questions(split))]

    def search(self, plans: Sequence[SearchPlan], *, with_text: bool = True) -> list[PlanResult]:
        """Refused: only a question says which environment is meant."""
        raise ConfigError(f"a plan without a question names none of {', '.join(self.clients)}. Search one of them.")

    def step(
        self, steps: Sequence[Step], *, with_text: bool = False, metrics: Sequence[str] = ()
    ) -> list[StepResult | None]:
        """Rank and score every step where it belongs, all environments side by side; results in the order of `steps`.

        Where one of them raises, the searches of the others are cancelled.
        """
        parts: dict[str, dict[int, Step]] = {}
        for index, step in enumerate(steps):
            name, question_id = split_id(step.question_id)
            parts.setdefault(name, {})[index] = step.model_copy(update={"question_id": question_id})
        futures = {
            name: self.clients[name].start_step(list(part.values()), with_text=with_text, metrics=metrics)
            for name, part in parts.items()
        }
        results: list[StepResult | None] = [None] * len(steps)
        try:
            for name, part in parts.items():
                for index, result in zip(part, futures[name].result(), strict=True):
                    if result is not None:
                        mixed_id = join_id(name, result.question_id)
                        results[index] = result.model_copy(update={"question_id": mixed_id})
        finally:
            for future in futures.values():
                future.cancel()
        return results
