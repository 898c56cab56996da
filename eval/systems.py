"""The systems under comparison: each one grows questions into greedy trees of one path."""

import gc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..configs.schema import RewriterConfig, RunConfig
from ..data.types import Question
from ..logs import progress_bar
from ..rollouts.tree import Tree
from .records import HYDE, METRICS, TRAINED, UNTRAINED, WARM_START

System = Callable[[Sequence[Question]], list[Tree]]
"""Answers questions, in their order, with trees of one path each; a question that cannot be asked has none."""


def policy_systems(
    config: RunConfig, client: Any, checkpoint: Path | None, warm_start: Path | None = None
) -> Mapping[str, System]:
    """The trained policy where a checkpoint is given, that after its warm start where there is one, the untrained one,
    and HyDE by it where `eval.hyde` asks for that; each loads its model when called.

    The trained one answers first, so that a checkpoint that does not fit is told before minutes are spent.
    """
    systems: dict[str, System] = {}
    if checkpoint is not None:
        systems[TRAINED] = PolicySystem(TRAINED, config, client, checkpoint)
    if checkpoint is not None and warm_start is not None:
        systems[WARM_START] = PolicySystem(WARM_START, config, client, warm_start)
    systems[UNTRAINED] = PolicySystem(UNTRAINED, config, client, None)
    if config.eval.hyde and config.rewriter.name != HYDE:
        systems[HYDE] = PolicySystem(HYDE, hyde_config(config), client, None)
    return systems


def hyde_config(config: RunConfig) -> RunConfig:
    """The settings of HyDE at the cost of the run's rewriter: one passage of the tokens that `eval.turns` turns may
    have together, or of as many as the engine takes."""
    rollout, turns = config.rollout, config.eval.turns
    tokens = sum(rollout.new_tokens(turn) for turn in range(1, turns + 1))
    if rollout.engine == "vllm" and rollout.vllm.max_model_len is not None:
        tokens = min(tokens, rollout.vllm.max_model_len - rollout.max_prompt_tokens)
    return config.model_copy(
        update={
            "rewriter": RewriterConfig(name=HYDE),
            "rollout": rollout.model_copy(update={"max_new_tokens": tokens}),
            "eval": config.eval.model_copy(update={"turns": 1}),
        }
    )


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
