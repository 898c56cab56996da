"""The methods by name: what `querylect paper` and evaluations ask for (docs/methods.md).

A method is a section of settings and a builder that takes it, so what a method may be told stands in configs/methods.py
and nowhere else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ..configs import methods as settings_of
from ..configs.load import validated
from ..configs.rewriter import HcqrConfig, MultiQueryConfig, RewriterConfig
from ..configs.section import Section
from ..errors import ConfigError
from ..llms.base import Draw
from .card import RetrieverCard
from .chr import Chr, contrast
from .csqe import Csqe
from .main_rag import MainRag
from .method import Method
from .migres import Migres
from .misknow import Misknow
from .plain import Cot, DirectGen, StdRag
from .qa_rag import QaRag
from .registry import make_rewriter
from .rerank import Rerank
from .rewritten import Rewritten, version_of
from .thinkqe import ThinkQe
from .training_free import TrainingFreeMethod, training_free


@dataclass(frozen=True, slots=True)
class KnownMethod:
    """One entry of the table."""

    settings: type[Section]
    build: Callable[[Any, RetrieverCard | None], Method]
    """From its settings and the card of the retriever that it speaks to; None where it has none."""
    searches: bool = True
    """False for a method that answers from what the model knows."""
    scores: Callable[[Any], bool] = lambda own: False
    """Whether it needs a cross-encoder, with these settings."""


def _plain(settings: type[Section], method: Callable[[Any], Method], **rest: Any) -> KnownMethod:
    """A method to which all retrievers are the same."""
    return KnownMethod(settings, lambda own, card: method(own), **rest)


def named_sources(own: Section) -> list[str]:
    """The knowledge bases that the settings of a method name; "" is the first that there is."""
    told = own.model_dump(include={"sources", "first", "second", "source"})
    return [name for value in told.values() for name in ([value] if isinstance(value, str) else value)]


def _rewriter(name: str, settings: type[settings_of.AskingConfig]) -> KnownMethod:
    """A rewriter of rewriters/registry.py that is asked once."""

    def build(own: Any, card: RetrieverCard | None) -> Method:
        if card is None:
            raise ConfigError(f"the method {name!r} speaks to a retriever, and there is none. Give it a source.")
        rewriter = make_rewriter(_rewriter_config(name, own), card, getattr(own, "k", 1))
        draw = Draw(getattr(own, "passages", 1), own.temperature, max_tokens=own.max_tokens, seed=own.seed)
        return Rewritten(name, rewriter, draw, version_of(rewriter))

    return KnownMethod(settings, build)


def _rewriter_config(name: str, own: Section) -> RewriterConfig:
    """The settings of a method as those of its rewriter."""
    told = own.model_dump()
    for section in (HcqrConfig, MultiQueryConfig):
        if isinstance(own, section):
            inner = section.model_validate({key: told[key] for key in section.model_fields})
            return RewriterConfig.model_validate({"name": name, name: inner})
    return RewriterConfig.model_validate(
        {"name": name} | {key: told[key] for key in RewriterConfig.model_fields if key in told}
    )


def _training_free(settings: type[settings_of.TrainingFreeConfig]) -> KnownMethod:
    """A baseline without a model (rewriters/training_free.py)."""
    return KnownMethod(settings, lambda own, card: TrainingFreeMethod(training_free(own, card)))


METHODS: Mapping[str, KnownMethod] = {
    "direct_gen": _plain(settings_of.DirectGenConfig, DirectGen, searches=False),
    "cot": _plain(settings_of.CotConfig, Cot, searches=False),
    "std_rag": _plain(settings_of.StdRagConfig, StdRag),
    **{name: _rewriter(name, settings_of.TaggedConfig) for name in ("general", "explore", "direct", "small")},
    "first_titles": _training_free(settings_of.FirstTitlesConfig),
    "rm3": _training_free(settings_of.Rm3Config),
    "weighted_words": _training_free(settings_of.WeightedWordsConfig),
    "hyde": _rewriter("hyde", settings_of.HydeConfig),
    "query2doc": _rewriter("query2doc", settings_of.PassageConfig),
    "multi_query": _rewriter("multi_query", settings_of.MultiQueryMethodConfig),
    "hcqr": _rewriter("hcqr", settings_of.HcqrMethodConfig),
    "chr": _plain(settings_of.ChrMethodConfig, lambda own: Chr(own, contrast(own))),
    "csqe": _plain(settings_of.CsqeConfig, Csqe),
    "thinkqe": _plain(settings_of.ThinkQeConfig, ThinkQe),
    "qa_rag": _plain(settings_of.QaRagConfig, QaRag, scores=lambda own: own.rerank),
    "migres": _plain(settings_of.MigresConfig, Migres),
    "misknow": _plain(settings_of.MisknowConfig, Misknow),
    "rerank": _plain(settings_of.RerankMethodConfig, Rerank, scores=lambda own: True),
    "main_rag": _plain(settings_of.MainRagConfig, MainRag),
}


def make_method(
    name: str,
    settings: Mapping[str, Any],
    card: RetrieverCard | None,
    methods: Mapping[str, KnownMethod] = METHODS,
) -> Method:
    """Build the method of that name with those of its settings that are given, for the retriever of `card`.

    Raises ConfigError as `method_settings`, and for settings that do not fit the retriever.
    """
    own = method_settings(name, settings, methods)
    return methods[name].build(own, card)


def method_settings(name: str, settings: Mapping[str, Any], methods: Mapping[str, KnownMethod] = METHODS) -> Section:
    """The whole settings of a method. Raises ConfigError for an unknown name, an unknown setting or a wrong value; it
    names the one that may be meant."""
    if name not in methods:
        near = get_close_matches(name, methods, n=1, cutoff=0.5)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"the method {name!r} is unknown; known are {', '.join(sorted(methods))}.{meant}")
    return validated(methods[name].settings, dict(settings), f"the settings of the method {name!r}")
