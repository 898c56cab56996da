"""From a run's settings to what grows its trees: the rewriter for the retriever that will search, and the grower."""

import logging

from ..configs.mix import environments
from ..configs.schema import RunConfig
from ..envs.client.base import EnvironmentApi
from ..envs.client.multi import MixedClient
from ..rewriters.base import RewritingStrategy
from ..rewriters.card import RetrieverCard
from ..rewriters.mixed import MixedRewriter
from ..rewriters.registry import make_rewriter
from .engines.base import Engine
from .grow import Grower
from .streaming import StreamingGrower, WaveGrower

log = logging.getLogger(__name__)


def make_grower(
    config: RunConfig, client: EnvironmentApi, engine: Engine, rewriter: RewritingStrategy | None = None
) -> Grower:
    """The rewriter of `config`, unless it is given, around an engine; the environment says which retriever it is."""
    grower = rewriter or rewriter_for(config, client), client, config.rollout, config.reward
    if not config.rollout.streams:
        return Grower(engine, *grower)
    return WaveGrower(engine, *grower) if config.rollout.engine == "transformers" else StreamingGrower(engine, *grower)


def rewriter_for(config: RunConfig, client: EnvironmentApi) -> RewritingStrategy:
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
    if ambiguous := mixed.indistinguishable(cards):
        log.warning(
            "the prompts for %s read like those of an environment with another retriever: the policy cannot tell which "
            "one will search. rewriter.name explore and direct name it, and so does a few-shot prompt with {retriever}",
            ", ".join(ambiguous),
        )
    return mixed
