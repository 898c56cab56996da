"""From a run's settings to what samples its trees, with the rewriter for the retriever that will search."""

from ..configs.schema import MixConfig, RewardConfig, RewriterConfig, RolloutConfig
from ..envs.client.base import EnvironmentApi, StepClient
from ..envs.client.multi import MixedClient
from ..rewriters.base import RewritingStrategy
from ..rewriters.mixed import MixedRewriter
from ..rewriters.registry import make_rewriter
from ..rewriters.retriever_info import RetrieverInfo
from .conversation import PolicyConversation
from .engines.base import Engine
from .streaming import StreamingTreeSampler
from .tree_sampler import TreeSampler


def make_tree_sampler(
    engine: Engine, rewriter: RewritingStrategy, client: StepClient, rollout: RolloutConfig, reward: RewardConfig
) -> TreeSampler:
    """What grows trees with this engine, and searches them turn by turn or while they are sampled."""
    kind = StreamingTreeSampler if rollout.streams else TreeSampler
    return kind(PolicyConversation(engine, rewriter, rollout), client, reward)


def rewriter_for(rewriter: RewriterConfig, mix: MixConfig | None, client: EnvironmentApi, k: int) -> RewritingStrategy:
    """The rewriter whose plans ask for `k` documents; the environment says which retriever it speaks to, each
    question's own in a mix, whose environments have rewriters of their own."""
    if mix is None or not isinstance(client, MixedClient):
        return make_rewriter(rewriter, RetrieverInfo.from_service(client.info().retriever), k)
    return MixedRewriter(
        {
            name: make_rewriter(mix.environments[name].rewriter, RetrieverInfo.from_service(info.retriever), k)
            for name, info in client.infos().items()
        }
    )
