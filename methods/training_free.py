"""The training-free baselines: rewriters without a model, which a trained policy has to beat.

Each turns a question, and the results of searching with it, into one probe of weighted terms, so it works with every
retriever. `first_titles` and `weighted_words` add texts to the question at a weight; `rm3` is in methods/rm3.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..configs.methods import FirstTitlesConfig, Rm3Config, WeightedWordsConfig
from ..configs.section import Section
from ..data.types import Document
from ..envs.plan import Probe, SearchPlan, Term
from ..rewriters.retriever_info import RetrieverInfo
from .method import SearchResults
from .rm3 import analyse, rm3

TITLE_WORDS = 12
"""Words of the text that replace the title of a document without one."""


@dataclass(frozen=True, slots=True)
class TrainingFree:
    """A rewriter without a model."""

    feedback: int
    """How many documents of the question's own ranking it reads; 0 skips that search."""
    plan: Callable[[str, SearchResults | None, int], SearchPlan]
    """The plan of k documents for a question and its own ranking, which is None if `feedback` is 0."""


def training_free(settings: Section, retriever: RetrieverInfo) -> TrainingFree:
    """The rewriter of these settings for the `retriever`."""
    if isinstance(settings, FirstTitlesConfig):
        return TrainingFree(settings.n, lambda question, ranking, k: first_titles(settings, question, ranking, k))
    if isinstance(settings, WeightedWordsConfig):
        return TrainingFree(0, lambda question, ranking, k: weighted_words(settings, question, k))
    assert isinstance(settings, Rm3Config), f"{type(settings).__name__} belongs to no training-free baseline"
    return TrainingFree(settings.fb_docs, lambda question, ranking, k: rm3(settings, retriever, question, ranking, k))


def first_titles(settings: FirstTitlesConfig, question: str, ranking: SearchResults | None, k: int) -> SearchPlan:
    """The question at weight 1, and the title of each of its first n documents."""
    documents = ranking.documents[: settings.n] if ranking is not None else ()
    return added(question, list(filter(None, map(title, documents))), settings.weight, k)


def weighted_words(settings: WeightedWordsConfig, question: str, k: int) -> SearchPlan:
    """The question at weight 1, and its first n content words as one term."""
    words = content_words(question)[: settings.n]
    return added(question, [" ".join(words)] if words else [], settings.weight, k)


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
