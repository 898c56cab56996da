"""The methods that a paper's systems may name, built from their settings.

What a table of this form maps a name to takes the settings of the system and the card of the retriever (None where a
system searches nothing), and raises ConfigError for settings that it does not know.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError

from ...configs.schema import RewriterConfig
from ...configs.section import Section
from ...data.types import Document, Question
from ...envs.plan import SearchPlan
from ...errors import ConfigError
from ...llms.base import Draw, Prompt
from ...rewriters.card import RetrieverCard
from ...rewriters.method import MISSING, NO_RANKING, Ask, Method, Outcome, Search, Steps
from ...rewriters.passages import PassageRewriter
from ...rewriters.registry import make_rewriter

Settings = TypeVar("Settings", bound=Section)
Builder = Callable[[Mapping[str, Any], RetrieverCard | None], Method]


@dataclass(frozen=True)
class Alone:
    """No retrieval: the reader answers by itself, as the system's style says."""

    name: str

    def steps(self, question: Question) -> Steps:
        """Nothing is wanted."""
        return Outcome()
        yield  # a generator without a step


@dataclass(frozen=True)
class AsItStands:
    """Searches with the question itself (Lewis et al. 2020; the standard RAG of seeds 000, 001, 002 and 004)."""

    k: int
    sources: Sequence[str] = ("",)
    """Each is searched for its share of `k`; the documents stand in their order."""
    name: str = field(default="std_rag", init=False)

    def steps(self, question: Question) -> Steps:
        """One search of each source."""
        documents: dict[str, Document] = {}
        plan: SearchPlan | None = None
        for place, source in enumerate(self.sources):
            share = self.k // len(self.sources) + (place < self.k % len(self.sources))
            plan = SearchPlan.of(question.text, k=max(1, share))
            found = yield Search(plan, source)
            if found is None:
                return Outcome(failure=NO_RANKING)
            documents |= {document.id: document for document in found.documents}
        return Outcome(tuple(documents.values()), plan if len(self.sources) == 1 else None)


@dataclass(frozen=True)
class Passages:
    """Searches with written passages, as a rewriter of rewriters/passages.py plans it."""

    name: str
    rewriter: PassageRewriter
    draw: Draw

    def steps(self, question: Question) -> Steps:
        """One prompt, one search."""
        reply = yield Ask(Prompt(tuple(self.rewriter.first(question)), f"{self.name}-1"), self.draw)
        if reply is None:
            return Outcome(failure=MISSING)
        rewrite = self.rewriter.join(question, [self.rewriter.parse(question, one.text, 1) for one in reply.texts])
        if rewrite.plan is None:
            return Outcome(failure=rewrite.failure)
        found = yield Search(rewrite.plan)
        notes = {"passages": list(rewrite.rewrites)}
        if found is None:
            return Outcome(notes=notes, failure=NO_RANKING)
        return Outcome(found.documents, found.plan, notes)


class _Nothing(Section):
    pass


class _Depth(Section):
    k: Annotated[int, Field(ge=1)] = 15


class _Standing(_Depth):
    sources: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] = ("",)
    answers: Literal[False] = False


class _Hyde(Section):
    passages: Annotated[int, Field(ge=1)] = 8
    temperature: Annotated[float, Field(ge=0)] = 0.7


class _Passage(_Depth):
    temperature: Annotated[float, Field(ge=0)] = 0.0
    max_tokens: Annotated[int, Field(ge=1)] = 512
    hyde: _Hyde = _Hyde()


def _alone(name: str) -> Builder:
    def build(settings: Mapping[str, Any], card: RetrieverCard | None) -> Method:
        _read(name, _Nothing, settings)
        return Alone(name)

    return build


def _std_rag(settings: Mapping[str, Any], card: RetrieverCard | None) -> Method:
    own = _read("std_rag", _Standing, settings)
    return AsItStands(own.k, own.sources)


def _passages(name: str) -> Builder:
    def build(settings: Mapping[str, Any], card: RetrieverCard | None) -> Method:
        own = _read(name, _Passage, settings)
        if card is None:
            raise ConfigError(f"the method {name!r} searches, and its task has no environment. Give tasks.…sources.")
        rewriter = make_rewriter(RewriterConfig(name=name), card, own.k)
        assert isinstance(rewriter, PassageRewriter), f"{name} writes passages"
        several = rewriter.most is None
        draw = Draw(own.hyde.passages, own.hyde.temperature) if several else Draw(temperature=own.temperature)
        return Passages(name, rewriter, replace(draw, max_tokens=own.max_tokens))

    return build


METHODS: Mapping[str, Builder] = {
    "alone": _alone("alone"),
    "direct_gen": _alone("direct_gen"),
    "cot": _alone("cot"),
    "std_rag": _std_rag,
    "hyde": _passages("hyde"),
    "query2doc": _passages("query2doc"),
}


def known_method(name: str, methods: Mapping[str, Builder]) -> Builder:
    """The builder of a method. Raises ConfigError where there is none of that name."""
    if name not in methods:
        near = get_close_matches(name, methods, n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"the method {name!r} is unknown; known are {', '.join(sorted(methods))}.{meant}")
    return methods[name]


def _read(name: str, schema: type[Settings], settings: Mapping[str, Any]) -> Settings:
    try:
        return schema.model_validate(dict(settings), strict=True)
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ConfigError(
            f"the settings of the method {name!r} are not usable ({said}); it takes "
            f"{', '.join(schema.model_fields) or 'none'}."
        ) from error
