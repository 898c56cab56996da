"""The methods by name: what `querylect paper` and evaluations ask for (docs/methods.md).

A method is a settings section and a builder that takes it; all settings of methods are defined in configs/methods.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from ..configs import methods as settings_of
from ..configs.load import validated
from ..configs.rewriter import HcqrConfig, RewriterConfig
from ..configs.section import Section
from ..errors import ConfigError
from ..rewriters.registry import make_rewriter
from ..rewriters.retriever_info import RetrieverInfo
from .chr import Chr
from .csqe import Csqe
from .main_rag import MainRag
from .method import Method, draw_of
from .migres import Migres
from .misknow import Misknow
from .plain import Cot, DirectGen, StdRag
from .qa_rag import QaRag
from .rerank import Rerank
from .rewritten import Rewritten, version_of
from .thinkqe import ThinkQe

Settings = TypeVar("Settings", bound=Section)


@dataclass(frozen=True, slots=True)
class KnownMethod:
    """One entry of the table."""

    settings: type[Section]
    build: Callable[[Any, RetrieverInfo | None], Method]
    """From its settings and the description of its retriever; None if there is no retriever."""
    searches: bool = True
    """False for a method that answers from what the model knows."""
    scores: bool = False
    """Whether it needs a cross-encoder."""


def _plain(
    settings: type[Settings], method: Callable[[Settings], Method], searches: bool = True, scores: bool = False
) -> KnownMethod:
    """A method that is the same for every retriever."""
    return KnownMethod(settings, lambda config, retriever: method(config), searches, scores)


def named_sources(config: Section) -> list[str]:
    """The knowledge bases named in the settings of a method; "" is the first one available."""
    return [name for names in config.model_dump(include={"sources", "first", "second"}).values() for name in names]


def _rewriter(name: str, settings: type[settings_of.AskingConfig]) -> KnownMethod:
    """A method that asks a rewriter of rewriters/registry.py once."""

    def build(config: settings_of.AskingConfig, retriever: RetrieverInfo | None) -> Method:
        if retriever is None:
            raise ConfigError(f"the method {name!r} speaks to a retriever, and there is none. Give it a source.")
        rewriter = make_rewriter(_rewriter_config(name, config), retriever, getattr(config, "k", 1))
        draw = draw_of(config, getattr(config, "passages", 1))
        return Rewritten(name, rewriter, draw, version_of(rewriter))

    return KnownMethod(settings, build)


def _rewriter_config(name: str, config: Section) -> RewriterConfig:
    """Convert the settings of a method to those of its rewriter."""
    values = config.model_dump()
    if isinstance(config, settings_of.HcqrMethodConfig):
        return RewriterConfig.model_validate(
            {"name": name, name: {key: values[key] for key in HcqrConfig.model_fields}}
        )
    return RewriterConfig.model_validate(
        {"name": name} | {key: values[key] for key in RewriterConfig.model_fields if key in values}
    )


METHODS: Mapping[str, KnownMethod] = {
    "direct_gen": _plain(settings_of.DirectGenConfig, DirectGen, searches=False),
    "cot": _plain(settings_of.CotConfig, Cot, searches=False),
    "std_rag": _plain(settings_of.StdRagConfig, StdRag),
    "hyde": _rewriter("hyde", settings_of.HydeConfig),
    "query2doc": _rewriter("query2doc", settings_of.PassageConfig),
    "multi_query": _rewriter("multi_query", settings_of.MultiQueryMethodConfig),
    "hcqr": _rewriter("hcqr", settings_of.HcqrMethodConfig),
    "chr": _plain(settings_of.ChrMethodConfig, Chr),
    "csqe": _plain(settings_of.CsqeConfig, Csqe),
    "thinkqe": _plain(settings_of.ThinkQeConfig, ThinkQe),
    "qa_rag": _plain(settings_of.QaRagConfig, QaRag),
    "migres": _plain(settings_of.MigresConfig, Migres),
    "misknow": _plain(settings_of.MisknowConfig, Misknow),
    "rerank": _plain(settings_of.RerankMethodConfig, Rerank, scores=True),
    "main_rag": _plain(settings_of.MainRagConfig, MainRag),
}


def make_method(name: str, settings: Mapping[str, object], retriever: RetrieverInfo | None) -> Method:
    """Build the named method for the `retriever`; settings that are not given keep their defaults.

    Raises ConfigError as `method_settings`, and for settings that do not fit the retriever.
    """
    config = method_settings(name, settings)
    return METHODS[name].build(config, retriever)


def method_settings(name: str, settings: Mapping[str, object]) -> Section:
    """The complete settings of a method. Raises ConfigError for an unknown name, an unknown setting or a wrong value,
    and suggests the closest name."""
    if name not in METHODS:
        matches = get_close_matches(name, METHODS, n=1, cutoff=0.5)
        suggestion = f" Did you mean {matches[0]!r}?" if matches else ""
        raise ConfigError(f"the method {name!r} is unknown; known are {', '.join(sorted(METHODS))}.{suggestion}")
    return validated(METHODS[name].settings, dict(settings), f"the settings of the method {name!r}")
