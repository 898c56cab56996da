"""Using a policy outside of training and evaluation: questions in, rewrites and plans out."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..configs.mix import environments
from ..configs.schema import RunConfig
from ..data.types import Question
from ..envs.connect import open_environment
from ..envs.mixture import MixedClient
from ..errors import UserError
from ..rewriters.base import Rewriter
from ..rewriters.card import RetrieverCard
from ..rewriters.mixed import MixedRewriter
from ..rewriters.registry import make_rewriter
from ..rewriters.stages import ask_first_stage
from .checkpoints import find_checkpoint
from .engine import Engine, Sampling
from .engines import load_engine
from .grow import Grower

log = logging.getLogger(__name__)


def make_grower(
    config: RunConfig,
    client: Any,
    engine: Engine,
    extra_metrics: Sequence[str] = (),
    rewriter: Rewriter | None = None,
) -> Grower:
    """The rewriter of `config`, unless it is given, around an engine; the environment says which retriever it is."""
    return Grower(
        engine, rewriter or rewriter_for(config, client), client, config.rollout, config.reward, extra_metrics
    )


def rewriter_for(config: RunConfig, client: Any) -> Rewriter:
    """The rewriter of `config`; the environment says which retriever it speaks to, each question's own in a mix."""
    k = config.search_depth
    if not isinstance(client, MixedClient):
        return make_rewriter(config.rewriter, RetrieverCard.from_service(client.environment().retriever), k)
    settings = environments(config)
    cards = {name: info.retriever for name, info in client.environments().items()}
    mixed = MixedRewriter(
        {
            name: make_rewriter(settings[name].rewriter, RetrieverCard.from_service(card), k)
            for name, card in cards.items()
        }
    )
    if alike := mixed.alike(cards):
        log.warning(
            "the prompts for %s read like those of an environment with another retriever: the policy cannot tell which "
            "one will search. rewriter.name explore and direct name it, and so does a few-shot prompt with {retriever}",
            ", ".join(alike),
        )
    return mixed


def load_grower(config: RunConfig, client: Any, checkpoint: Path | None, extra_metrics: Sequence[str] = ()) -> Grower:
    """A grower around the policy of a checkpoint; None is the untrained policy."""
    return make_grower(config, client, load_engine(config, checkpoint), extra_metrics)


def rewrite_lines(config: RunConfig, run: Path | None, lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    """First-turn greedy rewrites of `lines` as plain data: question, rewrites, think, plan.

    The plan is None for a format failure, and where the rewriter's first stage gave nothing. The environment is asked
    only which retriever it is. Raises UserError where there is no question.
    """
    if not lines:
        raise UserError("no question to rewrite: give --question TEXT, or one question per line on standard input.")
    checkpoint = find_checkpoint(run) if run is not None else None
    with open_environment(config) as client:
        grower = load_grower(config, client, checkpoint)
        chat = grower.chat
        questions = [Question(f"line-{number}", line) for number, line in enumerate(lines, start=1)]
        kept = ask_first_stage(grower.rewriter, questions, config.policy)
        prompts = [
            chat.first(grower.rewriter.first(chat.plain_question(question)), grower.rewriter.opening)
            for question in kept
        ]
        grower.check_length(prompts)
        sampling = Sampling(temperature=0.0, max_new_tokens=config.rollout.new_tokens(1))
        answered = dict(zip(kept, grower.engine.generate(prompts, 1, sampling), strict=True))
        for question in questions:
            if question not in answered:
                yield {"question": question.text, "rewrites": [], "think": "", "plan": None}
                continue
            samples = answered[question]
            rewrite = grower.rewriter.parse(question, chat.text(samples[0].ids), 1)
            plan = rewrite.plan.model_dump(mode="json") if rewrite.plan is not None else None
            yield {"question": question.text, "rewrites": list(rewrite.rewrites), "think": rewrite.think, "plan": plan}
