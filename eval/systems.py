"""The systems under comparison: each one grows questions into greedy trees of one path."""

import gc
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..configs.schema import RunConfig
from ..data.types import Question
from ..errors import CheckpointError
from ..logs import progress_bar
from ..rollouts.tree import Tree
from .records import METRICS, TRAINED, UNTRAINED

System = Callable[[Sequence[Question]], list[Tree]]
"""Answers questions, in their order, with trees of one path each."""

CHUNK = 64
"""Questions grown at once: the step of the progress bar."""


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

    def __call__(self, questions: Sequence[Question]) -> list[Tree]:
        """Grow one greedy path for each question. Raises ModelError or CheckpointError for an unusable policy."""
        grower = load_grower(self.config, self.client, self.checkpoint)
        branching = [1] * self.config.eval.turns
        trees: list[Tree] = []
        with progress_bar(f"{self.name} policy") as advance:
            for start in range(0, len(questions), CHUNK):
                advance(start, len(questions))
                trees += grower.grow(questions[start : start + CHUNK], branching, greedy=True)
            advance(len(questions), len(questions))
        del grower
        gc.collect()
        return trees


def load_grower(config: RunConfig, client: Any, checkpoint: Path | None) -> Any:
    """The one place where an evaluation loads a model: policy, engine and rewriter as training uses them."""
    import torch

    from ..rewriters.card import RetrieverCard
    from ..rewriters.registry import make_rewriter
    from ..rollouts.grow import Grower
    from ..rollouts.policy import load_policy
    from ..rollouts.transformers_engine import TransformersEngine

    model, tokenizer = load_policy(config.policy, checkpoint)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    engine = TransformersEngine(model, tokenizer, micro_batch=config.rollout.micro_batch)
    card = RetrieverCard.from_service(client.environment().retriever)
    rewriter = make_rewriter(config.rewriter, card, k=max(10, config.rollout.documents))
    extra = tuple(name for name in METRICS if name != config.reward.metric)
    return Grower(engine, rewriter, client, config.rollout, config.reward, extra_metrics=extra)


def find_checkpoint(run: Path) -> Path:
    """The policy of a run: `best` where training marked one, else `final`, else the checkpoint of the highest step.

    Raises CheckpointError where the folder holds no complete checkpoint.
    """
    found = [folder for base in (run, run / "checkpoints") if base.is_dir() for folder in base.iterdir()]
    complete = {folder.name: folder for folder in found if _is_policy(folder)}
    for name in ("best", "final"):
        if name in complete:
            return complete[name]
    numbered = {int(match[1]): folder for name, folder in complete.items() if (match := re.search(r"-(\d+)$", name))}
    if not numbered:
        raise CheckpointError(
            f"run folder {run} holds no checkpoint with adapter_config.json or config.json and safetensors. "
            "Train first (`querylect train`), or give the folder of a run that saved one."
        )
    return numbered[max(numbered)]


def _is_policy(folder: Path) -> bool:
    """Whether a folder holds a configuration and weights; an interrupted save has only one of them."""
    configured = any((folder / name).is_file() for name in ("adapter_config.json", "config.json"))
    return configured and any(folder.glob("*.safetensors"))
