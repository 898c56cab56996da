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
from ..configs.rewriter import HcqrConfig, RewriterConfig
from ..configs.section import Section
from ..errors import ConfigError
from ..rewriters.registry import make_rewriter
from ..rewriters.retriever_info import RetrieverInfo
from .chr import chr_method
from .csqe import csqe
from .main_rag import main_rag
from .method import Result, prompt_texts, sampling
from .migres import migres
from .misknow import misknow
from .plain import cot, direct_gen, std_rag
from .qa_rag import qa_rag
from .rerank import rerank
from .rewritten import rewritten
from .runner import MethodFunction
from .thinkqe import thinkqe


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
    rewriter = make_rewriter(_rewriter_config(name, config), retriever, getattr(config, "k", 1))
    return partial(rewritten, rewriter=rewriter, draw=sampling(config, getattr(config, "passages", 1)))


def method_settings(name: str, settings: Mapping[str, object]) -> Section:
    """The complete settings of a method. Raises ConfigError for an unknown name, an unknown setting or a wrong value,
    and suggests the closest name."""
    if name not in METHODS:
        matches = get_close_matches(name, METHODS, n=1, cutoff=0.5)
        suggestion = f" Did you mean {matches[0]!r}?" if matches else ""
        raise ConfigError(f"the method {name!r} is unknown; known are {', '.join(sorted(METHODS))}.{suggestion}")
    return validated(METHODS[name].settings, dict(settings), f"the settings of the method {name!r}")


def prompt_text(name: str, config: Section) -> str:
    """The text of the templates that a method's prompts are made of, for the keys of its answers."""
    templates = [name, *(["reading"] if isinstance(config, settings_of.ReadingConfig) else [])]
    settings = config if isinstance(config, settings_of.PromptConfig) else settings_of.PromptConfig()
    return "".join(text for template in templates for text in prompt_texts(template, settings))


def named_sources(config: Section) -> list[str]:
    """The knowledge bases named in the settings of a method; "" is the first one available."""
    return [name for names in config.model_dump(include={"sources", "first", "second"}).values() for name in names]


def _rewriter_config(name: str, config: Section) -> RewriterConfig:
    """Convert the settings of a method to those of its rewriter."""
    values = config.model_dump()
    fields: dict[str, Any] = {key: values[key] for key in RewriterConfig.model_fields if key in values}
    if name == "hcqr":
        fields = {"hcqr": {key: values[key] for key in HcqrConfig.model_fields}}
    return RewriterConfig.model_validate({"name": name} | fields)
