"""The methods by name: what `querylect paper` and evaluations ask for (docs/methods.md)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from ..configs.methods import MethodsConfig
from ..data.types import Question
from ..errors import ConfigError
from ..llms.base import Draw
from ..llms.structured import Structured
from .card import RetrieverCard
from .chr import VERSION, Contrast, Hypotheses, contrast, json_prompt
from .csqe import Csqe
from .frozen import joins
from .method import AskForm, Method, Steps
from .registry import REWRITERS, make_rewriter
from .rewritten import Rewritten, failed, searched, version_of
from .thinkqe import ThinkQe

Build = Callable[[MethodsConfig, RetrieverCard], Method]


@dataclass(frozen=True)
class Chr:
    """CHR as published: one call for a JSON object of two hypotheses (rewriters/chr.py)."""

    settings: MethodsConfig
    pair: Contrast
    name: str = "chr"
    versions: tuple[str, ...] = (VERSION,)

    def steps(self, question: Question) -> Steps:
        """Ask for both hypotheses, search for one and against the other."""
        settings = self.settings
        draw = Draw(temperature=settings.temperature, max_tokens=settings.max_tokens, seed=settings.seed)
        answer: Structured[Hypotheses] = yield AskForm(json_prompt(question, self.pair.config), Hypotheses, draw)
        if answer.value is None:
            return failed(answer)
        plus, minus = answer.value.plus, answer.value.minus
        return (yield from searched(self.pair.plan(plus, minus, settings.k), self.pair.notes(plus, minus)))


def _chr(settings: MethodsConfig, card: RetrieverCard) -> Method:
    return Chr(settings, contrast(settings.rewriter.chr))


def _rewritten(name: str) -> Build:
    def build(settings: MethodsConfig, card: RetrieverCard) -> Method:
        rewriter = make_rewriter(settings.rewriter.model_copy(update={"name": name}), card, settings.k)
        draw = Draw(temperature=settings.temperature, max_tokens=settings.max_tokens, seed=settings.seed)
        if joins(rewriter):
            hyde = settings.hyde
            draw = Draw(hyde.passages, hyde.temperature, max_tokens=settings.max_tokens, seed=settings.seed)
        return Rewritten(name, rewriter, draw, version_of(rewriter))

    return build


METHODS: Mapping[str, Build] = {
    **{name: _rewritten(name) for name in REWRITERS},
    "chr": _chr,
    "csqe": lambda settings, card: Csqe(settings),
    "thinkqe": lambda settings, card: ThinkQe(settings),
}


def make_method(name: str, settings: MethodsConfig, card: RetrieverCard) -> Method:
    """Build the method of that name, for the retriever of `card`.

    Raises ConfigError for an unknown name, and for settings that do not fit the method.
    """
    build = METHODS.get(name)
    if build is None:
        near = get_close_matches(name, METHODS, n=1, cutoff=0.5)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"the method {name!r} is unknown; known are {', '.join(sorted(METHODS))}.{meant}")
    return build(settings, card)
