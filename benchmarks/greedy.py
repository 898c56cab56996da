"""Greedy answers of a run's policy, for the benchmarks that compare policies."""

import gc
from collections.abc import Sequence
from pathlib import Path

from querylect.configs.schema import RunConfig
from querylect.data.types import Question
from querylect.envs.client.base import EnvironmentApi
from querylect.eval.answering import DecodeOptions, answer, batches
from querylect.eval.records import METRICS
from querylect.rollouts.checkpoints import with_prompt
from querylect.rollouts.engines.open import load_engine
from querylect.rollouts.llms import FirstStages, answered, policy_llm
from querylect.rollouts.tree import Tree
from querylect.rollouts.tree_sampler import ANSWERED_AT_ONCE, PolicyConversation, rewriter_for


def greedy_trees(
    config: RunConfig, client: EnvironmentApi, checkpoint: Path | None, questions: Sequence[Question]
) -> list[Tree]:
    """One greedy path of `eval.turns` turns per question, by the policy of a run (`checkpoint` None: untrained).

    A question whose first stage gave nothing has no tree. Raises ModelError or CheckpointError for an unusable policy,
    and ConfigError where none is left.
    """
    prompted = with_prompt(config, checkpoint)
    rewriter = rewriter_for(prompted.rewriter, prompted.mix, client, prompted.search_depth)
    with FirstStages(rewriter, policy_llm(config.policy), config.rollout.history_tokens) as stages:
        first_stage = answered(stages.ask(questions))
    engine = load_engine(config.policy, config.rollout, config.seed, checkpoint)
    options = DecodeOptions(config.eval.turns, METRICS)
    parts = batches(first_stage, ANSWERED_AT_ONCE)
    conversation = PolicyConversation(engine, rewriter, config.rollout)
    trees = {tree.question.id: tree for part in parts for tree in answer(conversation, part, options, client)[0]}
    del engine, conversation
    gc.collect()
    return [trees[question.id] for question in first_stage]
