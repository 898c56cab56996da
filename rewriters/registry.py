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


NATIVE = ("general", "explore", "direct", "few_shot")
"""Those whose answers may be queries in the retriever's language."""


def make_rewriter(config: RewriterConfig, retriever: RetrieverInfo, k: int = 10) -> RewritingStrategy:
    """Build the rewriter named `config.name` for the `retriever`.

    `k` is how many documents its plans ask for: at least as many as the metric scores and the next turn shows. Raises
    ConfigError for an unknown name, and for settings with which no rewrite can change the ranking.
    """
    if config.name not in REWRITERS:
        suggestion = "".join(f" Did you mean {name!r}?" for name in get_close_matches(config.name, REWRITERS, n=1))
        known = ", ".join(sorted(REWRITERS))
        raise ConfigError(f"rewriter.name {config.name!r} is unknown; known are {known}.{suggestion}")
    if config.rewrite_weight == 0:
        raise ConfigError("rewriter.rewrite_weight is 0: no rewrite would reach the retriever. Give another weight.")
    if config.query == "native":
        _check_native(config, retriever)
    rewriter = REWRITERS[config.name](config, retriever, k)
    return StoppableRewriter(rewriter, k, config.stop == "answer") if config.stop else rewriter


def _check_native(config: RewriterConfig, retriever: RetrieverInfo) -> None:
    if config.name not in NATIVE:
        raise ConfigError(
            f"rewriter.query is native, and rewriter.name is {config.name!r}, whose answers are words. Use text, or "
            f"one of {', '.join(NATIVE)}."
        )
    if not retriever.query_language:
        raise ConfigError(
            f"rewriter.query is native, and the retriever {retriever.name!r} has no query language. Use text, or a "
            "retriever that has one, such as fts5 or postgres."
        )
