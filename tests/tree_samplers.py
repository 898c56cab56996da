"""Engines and tree_samplers as training and evaluation open them, by the sections of a config."""

from querylect.rollouts.engines.open import load_engine, open_engine
from querylect.rollouts.tree_sampler import make_tree_sampler, rewriter_for


def engine_of(config, checkpoint=None):
    """The engine with the policy of a checkpoint, or with the untrained one."""
    return load_engine(config.policy, config.rollout, config.seed, checkpoint)


def engine_around(config, model, tokenizer):
    """The engine around a loaded policy, and what keeps it at the weights of that."""
    return open_engine(config.policy, config.rollout, config.seed, model, tokenizer)


def tree_sampler_of(config, client, engine):
    """What grows the trees of a run with this engine."""
    rewriter = rewriter_for(config.rewriter, config.mix, client, config.search_depth)
    return make_tree_sampler(engine, rewriter, client, config.rollout, config.reward)
