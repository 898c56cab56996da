"""A mix of environments: whose questions a step has, what is measured of each environment, and what an outage is."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, count
from random import Random

from ..configs.schema import RewardConfig
from ..data.mixed_ids import split_id
from ..envs.client.base import StepClient
from ..errors import ConfigError, EnvironmentUnavailableError
from ..rollouts.chat import Chat
from ..rollouts.tree import Node, Tree
from .credit import Credit
from .metrics import step_metrics


def mixed_order(
    weights: Mapping[str, float], question_ids: Sequence[str], steps: int, size: int, seed: int
) -> list[str]:
    """The ids of the questions of all steps, `size` to each: a pure function of its arguments, of which a run with more
    steps has the same beginning.

    An environment's share of a step is weight / sum of weights, rounded up or down so that the mean over steps equals
    it (systematic sampling). Its questions come in shuffled passes, none twice in a step unless it has fewer than its
    share.

    Raises ConfigError if an environment has no question.
    """
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


def mix_metrics(trees: Sequence[Tree], credit: Credit, chat: Chat) -> dict[str, float]:
    """Metrics of a step for each environment of a mix, as `reward/turn2/NAME`, and its number of questions."""
    record: dict[str, float] = {}
    for name, env_trees in by_environment(trees).items():
        nodes = {id(node) for tree in env_trees for node in tree.walk()}
        groups = [group for group in credit.groups if all(id(member) in nodes for member in group.members)]
        figures = step_metrics(env_trees, Credit(credit.advantages, groups), chat)
        record |= {f"{key}/{name}": value for key, value in figures.items()}
        record[f"questions/{name}"] = len(env_trees)
    return record


def by_environment(trees: Sequence[Tree]) -> dict[str, list[Tree]]:
    """Trees of questions with mixed ids, by the name of their environment."""
    groups: dict[str, list[Tree]] = {}
    for tree in trees:
        groups.setdefault(split_id(tree.question.id)[0], []).append(tree)
    return groups


def refuse_outage(
    trees: Sequence[Tree],
    client: StepClient,
    deadlines: Mapping[str, float],
    reward: RewardConfig,
    subject: str,
    remedy: str,
) -> None:
    """Raise EnvironmentUnavailableError if an environment answered no search of `trees`; `subject` begins the message.

    `deadlines`: seconds of `client.deadline` by environment, {"": …} without a mix.
    An outage must not become a reward, and an outage of one environment would silently change the mix. Malformed turns
    are scored without a search, so they are ignored here. Turns that stopped before any search, which only the reader
    answers, count where nothing was searched.
    """
    answers = reward.kind == "answer"
    or_reader = " or the reader" if answers else ""
    deadline = f"; the reader's is {reward.answer.reader.deadline:g} s" if answers else ""
    for name, env_trees in by_environment(trees).items() if "" not in deadlines else [("", trees)]:
        nodes: list[Node] = [node for tree in env_trees for node in tree.walk()]
        searched = [node for node in nodes if node.rewrite.plan is not None]
        scorable = searched or [node for node in nodes if node.rewrite.unsearched]
        if scorable and all(node.reward is None for node in scorable):
            raise EnvironmentUnavailableError(
                f"{subject} could be scored: {f'the environment {name}'.rstrip()}{or_reader} did not answer before "
                f"client.deadline ({deadlines[name]:g} s{deadline}). "
                f"Last failure: {getattr(client, 'last_failure', None)}. {remedy}"
            )
