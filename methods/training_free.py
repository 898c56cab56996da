"""The training-free baselines: rewriters without a model, which a trained policy has to beat.

Each turns a question, and the results of searching with it, into one probe of weighted terms, so it works with every
retriever. `first_titles` and `weighted_words` add texts to the question at a weight; `rm3` is in methods/rm3.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..configs.methods import FirstTitlesConfig, Rm3Config, WeightedWordsConfig
from ..configs.section import Section
from ..data.types import Document
from ..envs.plan import Probe, SearchPlan, Term
from ..rewriters.retriever_info import RetrieverInfo
from .method import SearchResults
from .rm3 import Rm3, analyse

TITLE_WORDS = 12
"""Words of the text that replace the title of a document without one."""


class TrainingFree(Protocol):
    """A rewriter without a model."""

    @property
    def name(self) -> str:
        """The name under which a configuration asks for it."""

    @property
    def feedback(self) -> int:
        """How many documents of the question's own ranking it reads; 0 skips that search."""

    def plan(self, question: str, ranking: SearchResults | None, k: int) -> SearchPlan:
        """The plan of `k` documents for a question and its own `ranking`, which is None if `feedback` is 0."""


@dataclass(frozen=True)
class FirstTitles:
    """Search with the question, and with the titles of its first n documents at a weight."""

    settings: FirstTitlesConfig
    name = "first_titles"

    @property
    def feedback(self) -> int:
        """The documents whose titles are read."""
        return self.settings.n

    def plan(self, question: str, ranking: SearchResults | None, k: int) -> SearchPlan:
        """The question at weight 1, each title as a separate term."""
        documents = ranking.documents[: self.settings.n] if ranking is not None else ()
        return added(question, [text for document in documents if (text := title(document))], self.settings.weight, k)


@dataclass(frozen=True)
class WeightedWords:
    """Search with the question, and once more with its first n content words at a weight."""

    settings: WeightedWordsConfig
    name = "weighted_words"
    feedback = 0

    def plan(self, question: str, ranking: SearchResults | None, k: int) -> SearchPlan:
        """The question at weight 1, its first content words as one term."""
        words = content_words(question)[: self.settings.n]
        return added(question, [" ".join(words)] if words else [], self.settings.weight, k)


def training_free(settings: Section, retriever: RetrieverInfo) -> TrainingFree:
    """Build the rewriter of these settings for the `retriever`."""
    if isinstance(settings, FirstTitlesConfig):
        return FirstTitles(settings)
    if isinstance(settings, WeightedWordsConfig):
        return WeightedWords(settings)
    assert isinstance(settings, Rm3Config), f"{type(settings).__name__} belongs to no training-free baseline"
    return Rm3(settings, retriever.kind, retriever.frequent_terms, retriever.language)


def additions(plan: SearchPlan) -> tuple[str, ...]:
    """The texts that a plan of these rewriters adds to the question, which is its first term."""
    return tuple(term.text for term in plan.probes[0].terms[1:])


def content_words(text: str) -> list[str]:
    """The words of a text in lower case and in order, each once, without English stopwords and single letters."""
    return list(dict.fromkeys(word for _, word in analyse(text, lexical=False)))


def title(document: Document) -> str:
    """The title of a document, or the first words of its text."""
    return document.title.strip() or " ".join(document.text.split()[:TITLE_WORDS])


def added(question: str, texts: Sequence[str], weight: float, k: int) -> SearchPlan:
    """The question at weight 1 with further texts at `weight`, as one probe."""
    return SearchPlan(probes=(Probe(terms=(Term(text=question), *(Term(text=t, weight=weight) for t in texts))),), k=k)
