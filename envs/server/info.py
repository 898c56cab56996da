"""What an environment says of itself, over HTTP and in this process."""

from ...configs.schema import EnvironmentConfig
from ..environment import Environment
from ..schemas import MAX_HITS, MAX_K, EnvironmentInfo, Limits


def limits_of(config: EnvironmentConfig) -> Limits:
    """What one request may hold: the settings of these names, and two limits that are no settings."""
    return Limits(max_k=MAX_K, max_hits=MAX_HITS, **config.model_dump(include=set(Limits.model_fields)))


def info_of(environment: Environment, limits: Limits) -> EnvironmentInfo:
    """What is searched, by which retriever, and which questions there are."""
    return EnvironmentInfo(
        name=environment.name,
        retriever=environment.card,
        corpus_size=environment.corpus_size,
        corpus_hash=environment.corpus_hash,
        index_hash=environment.index_hash,
        gain=environment.gain,
        relevance_level=environment.relevance_level,
        splits=dict(environment.splits),
        judged=environment.judged,
        limits=limits,
        settings_hash=environment.settings_hash,
    )
