"""The rewriters by name."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches

from ..configs.schema import RewriterConfig
from ..errors import ConfigError
from .base import RewritingStrategy
from .delegating import StoppableRewriter
from .few_shot import few_shot
from .hcqr import hcqr, multi_query
from .levels import direct, explore, general
from .misknow import misknow
from .passages import chr_rewriter, hyde, query2doc
from .retriever_info import RetrieverInfo

REWRITERS: Mapping[str, Callable[[RewriterConfig, RetrieverInfo, int], RewritingStrategy]] = {
    "general": general,
    "explore": explore,
    "direct": direct,
    "few_shot": few_shot,
    "hyde": hyde,
    "query2doc": query2doc,
    "multi_query": multi_query,
    "hcqr": hcqr,
    "chr": chr_rewriter,
    "misknow": misknow,
}


def make_rewriter(config: RewriterConfig, retriever: RetrieverInfo, k: int = 10) -> RewritingStrategy:
    """Build the rewriter named `config.name` for the `retriever`.

    `k` is how many documents its plans ask for: at least as many as the metric scores and the next turn shows. Raises
    ConfigError for an unknown name, and for settings with which no rewrite can change the ranking.
    """
    refuse_unknown(config.name)
    if config.rewrite_weight == 0:
        raise ConfigError("rewriter.rewrite_weight is 0: no rewrite would reach the retriever. Give another weight.")
    rewriter = REWRITERS[config.name](config, retriever, k)
    return StoppableRewriter(rewriter, k, config.stop == "answer") if config.stop else rewriter


def refuse_unknown(name: str) -> None:
    """Raise ConfigError where no rewriter has this name."""
    if name not in REWRITERS:
        matches = get_close_matches(name, REWRITERS, n=1, cutoff=0.5)
        suggestion = f" Did you mean {matches[0]!r}?" if matches else ""
        raise ConfigError(f"rewriter.name {name!r} is unknown; known are {', '.join(sorted(REWRITERS))}.{suggestion}")
