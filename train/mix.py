"""Steps that a curriculum fills, on one environment or several: which question stands in which slot of a step.

TRL's sampler deals out slots, 0 to questions_per_step − 1; the curriculum fills them when the step begins. Its progress
belongs to a number of finished steps: what an unfinished step drew and saw is forgotten with it, so a checkpoint of
whatever step holds exactly what a resumed run needs.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from ..configs.mix import environments
from ..configs.schema import RunConfig
from ..data.mixed_ids import split_id
from ..data.types import Question
from ..errors import CheckpointError, ConfigError
from ..rollouts.chat import Chat
from ..rollouts.tree import Node, Tree
from .credit import Credit
from .curriculum import Curriculum, Progress
from .metrics import step_metrics
from .run_folder import CURRICULUM_FILE, MIX_FILE, write_atomically


class Mixture:
    """Fills the slots of every step, and keeps the curriculum's progress by finished steps.

    Of a mix of environments by `mix.curriculum`, of one environment by `train.curriculum`.
    """

    def __init__(self, config: RunConfig, questions: Sequence[Question]) -> None:
        """`questions` have mixed ids where the run mixes environments. Raises ConfigError where one has none."""
        self._slots, self._metric, self._mixed = config.train.questions_per_step, config.reward.metric, bool(config.mix)
        members = config.mix.environments if config.mix is not None else {}
        weights = {name: member.weight for name, member in members.items()} or {"": 1.0}
        ids: dict[str, list[str]] = {name: [] for name in weights}
        for question in questions:
            ids[split_id(question.id)[0] if self._mixed else ""].append(question.id)
        empty = [name for name, its in ids.items() if not its]
        if empty:
            raise ConfigError(
                f"no training question of {', '.join(empty)} is left after train.raw_reward {config.train.raw_reward}. "
                "Widen it, add questions to the train split, or take the environment out of mix.environments."
            )
        settings = config.mix.curriculum if config.mix is not None else config.train.curriculum
        self._curriculum = Curriculum(weights, ids, settings, config.seed)
        self._finished = Progress()
        self._ahead: tuple[int, Progress] | None = None
        self._drawn = Progress()
        self.shares: dict[str, float] = {}
        """Share of each environment in the step under way."""

    @property
    def slots(self) -> list[str]:
        """What stands in the prompt column for the questions to come."""
        return [str(slot) for slot in range(self._slots)]

    def fill(self, rows: Sequence[Mapping[str, Any]], finished: int) -> list[dict[str, Any]]:
        """The rows of the step after `finished` ones, the slot in their prompt replaced by the id of a question."""
        progress = self.progress(finished)
        drawn, self._drawn = self._curriculum.draw(progress, finished + 1, self._slots)
        self.shares = self._curriculum.shares(progress)
        return [{**row, "prompt": drawn[int(row["prompt"])]} for row in rows]

    def learn(self, trees: Sequence[Tree], finished: int) -> None:
        """Take in what all trees of that step succeeded at."""
        outcomes = [(tree.question.id, value) for tree in trees if (value := success(tree, self._metric)) is not None]
        self._ahead = finished + 1, self._curriculum.learn(self._drawn, outcomes)

    def progress(self, finished: int) -> Progress:
        """The progress after that many finished steps: the newest ones."""
        if self._ahead is not None and self._ahead[0] <= finished:
            self._finished, self._ahead = self._ahead[1], None
        return self._finished

    def save(self, checkpoint: Path, finished: int) -> None:
        """Write the progress into a checkpoint that is being written."""
        write_atomically(self._file(checkpoint), json.dumps(asdict(self.progress(finished))) + "\n")

    def load(self, checkpoint: Path) -> None:
        """Go on from a checkpoint. Raises CheckpointError where its progress cannot be read."""
        path = self._file(checkpoint)
        try:
            self._finished = Progress.from_plain(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{path} does not say how far the curriculum was ({error!r:.200}). Remove {checkpoint} to go on from "
                "the checkpoint before it, or start a new run."
            ) from error

    def _file(self, checkpoint: Path) -> Path:
        return checkpoint / (MIX_FILE if self._mixed else CURRICULUM_FILE)

    def metrics(self, trees: Sequence[Tree], credit: Credit, chat: Chat) -> dict[str, float]:
        """The figures of a step for each environment by itself, as `reward/turn2/NAME`, and its share and success.

        Of a run on one environment, whose other figures are those of the run: its `success`.
        """
        record: dict[str, float] = {}
        seen = self._ahead[1].environments if self._ahead is not None else {}
        if not self._mixed:
            return {"success": seen[""]} if seen else {}
        for name, share in self.shares.items():
            record[f"share/{name}"] = share
            if name in seen:
                record[f"success/{name}"] = seen[name]
        for name, mine in by_environment(trees).items():
            nodes = {id(node) for tree in mine for node in tree.walk()}
            groups = [group for group in credit.groups if all(id(member) in nodes for member in group.members)]
            figures = step_metrics(mine, Credit(credit.advantages, groups), chat)
            record |= {f"{key}/{name}": value for key, value in figures.items()}
            record[f"questions/{name}"] = len(mine)
        return record


def by_environment(trees: Sequence[Tree]) -> dict[str, list[Tree]]:
    """Trees of questions with mixed ids, by the name of their environment."""
    found: dict[str, list[Tree]] = {}
    for tree in trees:
        found.setdefault(split_id(tree.question.id)[0], []).append(tree)
    return found


def success(tree: Tree, metric: str) -> float | None:
    """Mean metric of the scored last turns, in [0, 1]; None where none was scored."""
    last = [path[-1] for path in tree.paths()]
    scored = [node.metrics[metric] for node in last if node.reward is not None]
    return fmean(scored) if scored else None


def unanswered(config: RunConfig, trees: Sequence[Tree]) -> tuple[str, float] | None:
    """The first environment, in words, that answered no search of a whole step, and its deadline; None where all did.

    An outage is never a reward, and one environment's outage would quietly turn the mix into another one. Turns that
    failed the format are scored without a search; they do not hide an outage.
    """
    settings = environments(config)
    for name, mine in by_environment(trees).items() if config.mix is not None else [("", trees)]:
        searched: list[Node] = [node for tree in mine for node in tree.walk() if node.rewrite.plan is not None]
        if searched and all(node.reward is None for node in searched):
            return f"the environment {name}".rstrip(), settings[name].client.deadline
    return None
