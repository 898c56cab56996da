"""A mix of environments: whose questions a step has, what is measured of each environment, and what an outage is."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, count
from random import Random

import numpy as np
from numpy.typing import NDArray

from ..configs.schema import MixConfig, RunConfig
from ..data.mixed_ids import split_id
from ..envs.client.base import StepClient
from ..errors import ConfigError, EnvironmentUnavailableError
from .credit import Credit
from .metrics import step_metrics
from .turns import Turns


def mixed_order(mix: MixConfig, question_ids: Sequence[str], steps: int, size: int, seed: int) -> list[str]:
    """The ids of the questions of all steps, `size` to each: a pure function of its arguments, of which a run with more
    steps has the same beginning.

    An environment's share of a step is weight / sum of weights, rounded up or down so that the mean over steps equals
    it (systematic sampling). Its questions come in shuffled passes, none twice in a step unless it has fewer than its
    share.

    Raises ConfigError if an environment has no question.
    """
    weights = {name: member.weight for name, member in mix.environments.items()}
    ids: dict[str, list[str]] = {name: [] for name in weights}
    for question_id in question_ids:
        ids[split_id(question_id)[0]].append(question_id)
    if empty := [name for name, members in ids.items() if not members]:
        raise ConfigError(
            f"no training question of {', '.join(empty)} is left after train.raw_reward. Widen it, add questions to "
            "the train split, or take the environment out of mix.environments."
        )
    names, edges = list(weights), [edge / sum(weights.values()) for edge in accumulate(weights.values())]
    passes = {name: _passes(ids[name], f"{seed}/{name}") for name in names}
    order: list[str] = []
    for step in range(1, steps + 1):
        random = Random(f"{seed}/{step}")
        start = random.random()
        picked = [names[min(bisect_right(edges, (start + slot) / size), len(names) - 1)] for slot in range(size)]
        random.shuffle(picked)
        taken: dict[str, set[str]] = {name: set() for name in names}
        for name in picked:
            if len(taken[name]) == len(ids[name]):
                taken[name].clear()
            question_id = next(question_id for question_id in passes[name] if question_id not in taken[name])
            taken[name].add(question_id)
            order.append(question_id)
    return order


def _passes(ids: Sequence[str], seed: str) -> Iterator[str]:
    for number in count():
        yield from Random(f"{seed}/{number}").sample(ids, len(ids))


def replacements(
    mixed: bool, to_replace: Sequence[str], candidates: Sequence[str], draw: Random
) -> Sequence[str | None]:
    """A new question for each of `to_replace`, in a mix from the same environment; None where none is left."""

    def environment(question_id: str) -> str:
        return split_id(question_id)[0] if mixed else ""

    by_environment: dict[str, list[int]] = {}
    for slot, question_id in enumerate(to_replace):
        by_environment.setdefault(environment(question_id), []).append(slot)
    replacements: list[str | None] = [None] * len(to_replace)
    for name, slots in by_environment.items():
        remaining = [candidate for candidate in candidates if environment(candidate) == name]
        for slot, candidate in zip(slots, draw.sample(remaining, min(len(remaining), len(slots))), strict=False):
            replacements[slot] = candidate
    return replacements


def mix_metrics(turns: Turns, credit: Credit) -> dict[str, float]:
    """Metrics of a step for each environment of a mix, as `reward/turn2/NAME`, and its number of questions."""
    record: dict[str, float] = {}
    for name, trees in _by_environment(turns).items():
        record |= {f"{key}/{name}": value for key, value in step_metrics(turns, credit, trees).items()}
        record[f"questions/{name}"] = int(trees.sum())
    return record


def _by_environment(turns: Turns) -> dict[str, NDArray[np.bool_]]:
    """Which trees are of each environment of a mix, whose name is in the ids of their questions."""
    names = [split_id(question)[0] for question in turns.questions]
    return {name: np.array([its == name for its in names]) for name in dict.fromkeys(names)}


def refuse_outage(turns: Turns, client: StepClient, config: RunConfig, subject: str) -> None:
    """Raise EnvironmentUnavailableError if an environment answered no search of `turns`; `subject` begins the message.

    An outage must not become a reward, and an outage of one environment would silently change the mix. Malformed turns
    are scored without a search, so they are ignored here. Turns that stopped before any search, which only the reader
    answers, count where nothing was searched.
    """
    environments = {"": np.ones(len(turns.questions), bool)} if config.mix is None else _by_environment(turns)
    planned, stopped = turns.figure("planned") == 1, turns.figure("stopped") == 1
    for name, trees in environments.items():
        rows = trees[turns.tree]
        scorable = rows & (planned if planned[rows].any() else stopped)
        if scorable.any() and not turns.scored[scorable].any():
            answering = f"the environment {name}".rstrip() + (" or the reader" * (config.reward.kind == "answer"))
            raise EnvironmentUnavailableError(
                f"{subject} could be scored: {answering} did not answer before its deadline. Last failure: "
                f"{getattr(client, 'last_failure', None)}. Bring the service back and continue with: querylect train "
                "… --resume"
            )
