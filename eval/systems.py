"""The systems under comparison: each one grows questions into greedy trees of one path."""

import gc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..configs.schema import RunConfig
from ..data.types import Question
from ..logs import progress_bar
from ..rollouts.tree import Tree
from .records import METRICS, TRAINED, UNTRAINED

System = Callable[[Sequence[Question]], list[Tree]]
"""Answers questions, in their order, with trees of one path each; a question that cannot be asked has none."""


def policy_systems(config: RunConfig, client: Any, checkpoint: Path | None) -> Mapping[str, System]:
    """The trained policy where a checkpoint is given, and the untrained one; each loads its model when called.

    The trained one answers first, so that a checkpoint that does not fit is told before minutes are spent.
    """
    systems: dict[str, System] = {}
    if checkpoint is not None:
        systems[TRAINED] = PolicySystem(TRAINED, config, client, checkpoint)
    systems[UNTRAINED] = PolicySystem(UNTRAINED, config, client, None)
    return systems


class PolicySystem:
    """A language model that rewrites greedily. The model is held only while it answers: two never share the memory."""

    def __init__(self, name: str, config: RunConfig, client: Any, checkpoint: Path | None) -> None:
        self.name, self.config, self.client, self.checkpoint = name, config, client, checkpoint
        self.seconds: list[float] = []
        """Of the questions answered last, by turn: the mean over all of them."""

    def __call__(self, questions: Sequence[Question]) -> list[Tree]:
        """Grow one greedy path for each question; one whose first stage gave nothing has no tree.

        Raises ModelError or CheckpointError for an unusable policy, and as `rewriters.stages.ask_first_stage`.
        """
        from ..rewriters.stages import ask_first_stage
        from ..rollouts.engines import load_engine
        from ..rollouts.grow import ANSWERED_AT_ONCE
        from ..rollouts.use import rewriter_for
        from .answering import Asking, answers, batches

        asking = Asking(self.config.eval.turns, METRICS)
        rewriter = rewriter_for(self.config, self.client)
        questions = ask_first_stage(rewriter, questions, self.config.policy)
        engine = load_engine(self.config, self.checkpoint)
        parts = batches(questions, ANSWERED_AT_ONCE)
        trees: dict[str, Tree] = {}
        spent = [0.0] * asking.turns
        with progress_bar(f"{self.name} policy") as advance:
            advance(0, len(questions))
            for answered in answers(parts, asking, engine, self.client, rewriter, self.config.rollout):
                trees |= {tree.question.id: tree for tree in answered.trees}
                spent = [
                    total + len(answered.trees) * part for total, part in zip(spent, answered.seconds, strict=True)
                ]
                advance(len(trees), len(questions))
        self.seconds = [total / max(1, len(questions)) for total in spent]
        del engine
        gc.collect()
        return [trees[question.id] for question in questions]
