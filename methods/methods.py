"""The methods by name: what `querylect paper` and evaluations ask for (docs/methods.md).

A method is a settings section (configs/methods.py) and a function that takes it (methods/method.py).
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

from ..configs import methods as settings_of
from ..configs.load import validated
from ..configs.methods import HcqrConfig
from ..configs.schema import RewriterConfig
from ..configs.section import Section
from ..errors import ConfigError
from ..rewriters.registry import make_rewriter
from ..rewriters.retriever_info import RetrieverInfo
from .expansion import csqe, thinkqe
from .main_rag import main_rag
from .method import MethodFunction, Result, sampling
from .migres import migres
from .misknow import misknow
from .one_search import chr_method, qa_rag, rerank, rewritten
from .reading import cot, direct_gen, std_rag


@dataclass(frozen=True, slots=True)
class KnownMethod:
    """One entry of the table."""

    settings: type[Section]
    function: Callable[..., Coroutine[Any, Any, Result]] | None = None
    """None: the rewriter of this name (rewriters/registry.py)."""
    searches: bool = True
    """False for a method that answers from what the model knows."""
    scores: bool = False
    """Whether it needs a cross-encoder."""


METHODS: Mapping[str, KnownMethod] = {
    "direct_gen": KnownMethod(settings_of.DirectGenConfig, direct_gen, searches=False),
    "cot": KnownMethod(settings_of.CotConfig, cot, searches=False),
    "std_rag": KnownMethod(settings_of.StdRagConfig, std_rag),
    "hyde": KnownMethod(settings_of.HydeConfig),
    "query2doc": KnownMethod(settings_of.PassageConfig),
    "multi_query": KnownMethod(settings_of.MultiQueryMethodConfig),
    "hcqr": KnownMethod(settings_of.HcqrMethodConfig),
    "chr": KnownMethod(settings_of.ChrMethodConfig, chr_method),
    "csqe": KnownMethod(settings_of.CsqeConfig, csqe),
    "thinkqe": KnownMethod(settings_of.ThinkQeConfig, thinkqe),
    "qa_rag": KnownMethod(settings_of.QaRagConfig, qa_rag),
    "migres": KnownMethod(settings_of.MigresConfig, migres),
    "misknow": KnownMethod(settings_of.MisknowConfig, misknow),
    "rerank": KnownMethod(settings_of.RerankMethodConfig, rerank, scores=True),
    "main_rag": KnownMethod(settings_of.MainRagConfig, main_rag),
}


def make_method(name: str, settings: Mapping[str, object], retriever: RetrieverInfo | None) -> MethodFunction:
    """The named method for the `retriever`; settings that are not given keep their defaults.

    Raises ConfigError as `method_settings`, and for settings that do not fit the retriever.
    """
    config = method_settings(name, settings)
    function = METHODS[name].function
    if function is not None:
        return partial(function, settings=config)
    if retriever is None:
        raise ConfigError(f"the method {name!r} speaks to a retriever, and there is none. Give it a source.")
    assert isinstance(config, settings_of.AskingConfig)
    values = config.model_dump()
    fields: dict[str, Any] = {key: values[key] for key in RewriterConfig.model_fields if key in values}
    if name == "hcqr":
        fields = {"hcqr": {key: values[key] for key in HcqrConfig.model_fields}}
    rewriter = make_rewriter(RewriterConfig(name=name, **fields), retriever, values.get("k", 1))
    return partial(rewritten, rewriter=rewriter, draw=sampling(config, values.get("passages", 1)))


def method_settings(name: str, settings: Mapping[str, object]) -> Section:
    """The complete settings of a method. Raises ConfigError for an unknown name, an unknown setting or a wrong value,
    and suggests the closest name."""
    if name not in METHODS:
        suggestion = "".join(f" Did you mean {match!r}?" for match in get_close_matches(name, METHODS, n=1))
        raise ConfigError(f"the method {name!r} is unknown; known are {', '.join(sorted(METHODS))}.{suggestion}")
    return validated(METHODS[name].settings, dict(settings), f"the settings of the method {name!r}")


def named_sources(config: Section) -> list[str]:
    """The knowledge bases named in the settings of a method; "" is the first one available."""
    return [name for names in config.model_dump(include={"sources", "first", "second"}).values() for name in names]
