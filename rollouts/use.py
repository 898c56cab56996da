"""Using a policy outside of training and evaluation: questions in, rewrites and plans out."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..configs.schema import RunConfig
from ..data.types import Question
from ..envs.connect import open_environment
from ..errors import UserError
from ..rewriters.card import RetrieverCard
from ..rewriters.registry import make_rewriter
from .checkpoints import find_checkpoint
from .engine import Sampling
from .grow import Grower
from .policy import load_policy
from .shared_prefix import longest_sequence
from .transformers_engine import TransformersEngine


def make_grower(
    config: RunConfig, client: Any, model: nn.Module, tokenizer: Any, extra_metrics: Sequence[str] = ()
) -> Grower:
    """Engine and rewriter of `config` around a loaded model; the environment says which retriever it is."""
    engine = TransformersEngine(model, tokenizer, config.rollout.micro_batch, longest_sequence(config.rollout))
    card = RetrieverCard.from_service(client.environment().retriever)
    rewriter = make_rewriter(config.rewriter, card, k=max(10, config.rollout.documents))
    return Grower(engine, rewriter, client, config.rollout, config.reward, extra_metrics)


def load_grower(config: RunConfig, client: Any, checkpoint: Path | None, extra_metrics: Sequence[str] = ()) -> Grower:
    """A grower around the policy of a checkpoint; None is the untrained policy."""
    model, tokenizer = load_policy(config.policy, checkpoint)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    return make_grower(config, client, model, tokenizer, extra_metrics)


def rewrite_lines(config: RunConfig, run: Path | None, lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    """First-turn greedy rewrites of `lines` as plain data: question, rewrites, think, plan (None: format failure).

    The environment is asked only which retriever it is. Raises UserError where there is no question.
    """
    if not lines:
        raise UserError("no question to rewrite: give --question TEXT, or one question per line on standard input.")
    checkpoint = find_checkpoint(run) if run is not None else None
    with open_environment(config) as client:
        grower = load_grower(config, client, checkpoint)
        chat = grower.chat
        questions = [Question(f"line-{number}", chat.plain(line)) for number, line in enumerate(lines, start=1)]
        prompts = [chat.first(grower.rewriter.first(question), grower.rewriter.opening) for question in questions]
        grower.check_length(prompts)
        sampling = Sampling(temperature=0.0, max_new_tokens=config.rollout.new_tokens(1))
        for question, line, samples in zip(questions, lines, grower.engine.generate(prompts, 1, sampling), strict=True):
            rewrite = grower.rewriter.parse(question, chat.text(samples[0].ids), 1)
            plan = rewrite.plan.model_dump(mode="json") if rewrite.plan is not None else None
            yield {"question": line, "rewrites": list(rewrite.rewrites), "think": rewrite.think, "plan": plan}
