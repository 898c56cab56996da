"""Assign questions to the slots of a step by a curriculum, on one environment or several.

TRL's sampler yields slots, 0 to questions_per_step − 1; the curriculum fills them when the step begins. Its progress is
tied to the number of finished steps: draws and outcomes of an unfinished step are discarded, so every checkpoint holds
exactly the state that a resumed run needs.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from ..configs.schema import MixConfig, RewardConfig, TrainConfig
from ..data.mixed_ids import split_id
from ..data.types import Question
from ..envs.client.base import StepClient
from ..errors import CheckpointError, ConfigError, EnvironmentUnavailableError
from ..rollouts.chat import Chat
from ..rollouts.tree import Node, Tree
from ..storage import parse_json
from .credit import Credit
from .curriculum import Curriculum, Progress
from .metrics import step_metrics
from .run_folder import CURRICULUM_FILE, MIX_FILE

Row = dict[str, str]
"""A row of the training dataset: its `prompt` is the id of a question, or a slot for one."""


class Mixture:
    """Fills the slots of every step and tracks the curriculum's progress by finished steps.

    Settings: `mix.curriculum` for a mix of environments, `train.curriculum` for one environment.
    """

    def __init__(
        self, settings: TrainConfig, mix: MixConfig | None, metric: str, seed: int, questions: Sequence[Question]
    ) -> None:
        """`metric` is the one by which a tree succeeds; `questions` have mixed ids if the run mixes environments.

        Raises ConfigError if an environment has none.
        """
        self._slots, self._metric, self._mixed = settings.questions_per_step, metric, mix is not None
        members = mix.environments if mix is not None else {}
        weights = {name: member.weight for name, member in members.items()} or {"": 1.0}
        ids: dict[str, list[str]] = {name: [] for name in weights}
        for question in questions:
            ids[split_id(question.id)[0] if self._mixed else ""].append(question.id)
        empty = [name for name, question_ids in ids.items() if not question_ids]
        if empty:
            raise ConfigError(
                f"no training question of {', '.join(empty)} is left after train.raw_reward {settings.raw_reward}. "
                "Widen it, add questions to the train split, or take the environment out of mix.environments."
            )
        curriculum = mix.curriculum if mix is not None else settings.curriculum
        self._curriculum = Curriculum(weights, ids, curriculum, seed)
        self._finished = Progress()
        self._pending: tuple[int, Progress] | None = None
        self._drawn = Progress()
        self.shares: dict[str, float] = {}
        """Share of each environment in the current step."""

    @property
    def slots(self) -> list[str]:
        """Placeholder prompts, which `fill` replaces by question ids."""
        return [str(slot) for slot in range(self._slots)]

    def fill(self, rows: Sequence[Row], finished: int) -> list[Row]:
        """The rows of step `finished` + 1, with the slot in each prompt replaced by a question id."""
        progress = self.progress(finished)
        drawn, self._drawn = self._curriculum.draw(progress, finished + 1, self._slots)
        self.shares = self._curriculum.shares(progress)
        return [{**row, "prompt": drawn[int(row["prompt"])]} for row in rows]

    def learn(self, trees: Sequence[Tree], finished: int) -> None:
        """Update the progress with the success of all trees of step `finished` + 1."""
        outcomes = [(tree.question.id, value) for tree in trees if (value := success(tree, self._metric)) is not None]
        self._pending = finished + 1, self._curriculum.learn(self._drawn, outcomes)

    def progress(self, finished: int) -> Progress:
        """The progress after `finished` steps, which must not be lower than in earlier calls."""
        if self._pending is not None and self._pending[0] <= finished:
            self._finished, self._pending = self._pending[1], None
        return self._finished

    def save(self, checkpoint: Path, finished: int) -> None:
        """Write the progress into a checkpoint folder."""
        self._file(checkpoint).write_text(json.dumps(asdict(self.progress(finished))) + "\n", encoding="utf-8")

    def load(self, checkpoint: Path) -> None:
        """Restore the progress of a checkpoint. Raises CheckpointError where it cannot be read."""
        path = self._file(checkpoint)
        try:
            self._finished = Progress.from_plain(parse_json(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{path} does not say how far the curriculum was ({error!r:.200}). Remove {checkpoint} to go on from "
                "the checkpoint before it, or start a new run."
            ) from error

    def _file(self, checkpoint: Path) -> Path:
        return checkpoint / (MIX_FILE if self._mixed else CURRICULUM_FILE)

    def metrics(self, trees: Sequence[Tree], credit: Credit, chat: Chat) -> dict[str, float]:
        """Metrics of a step for each environment of a mix, as `reward/turn2/NAME`, with its share and success.

        For a run on one environment only `success`; its other metrics are those of the run.
        """
        record: dict[str, float] = {}
        successes = self._pending[1].environments if self._pending is not None else {}
        if not self._mixed:
            return {"success": successes[""]} if successes else {}
        for name, share in self.shares.items():
            record[f"share/{name}"] = share
            if name in successes:
                record[f"success/{name}"] = successes[name]
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


def success(tree: Tree, metric: str) -> float | None:
    """Mean metric of the scored last turns, in [0, 1]; None where none was scored."""
    last = [path[-1] for path in tree.paths()]
    scored = [node.metrics[metric] for node in last if node.reward is not None]
    return fmean(scored) if scored else None


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
