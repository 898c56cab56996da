"""The training-free baselines: rewriters without a model, which a trained policy has to beat.

Each turns a question, and the results of searching with it, into one probe of weighted terms, so it works with every
retriever. `first_titles` and `weighted_words` add texts to the question, which has the weight 1.

`rm3` expands the question with terms of the documents that it finds first (Abdul-Jaleel et al. 2004). On BM25 this is
Anserini's definition (Rm3Reranker): the terms of each of the first `fb_docs` documents, analysed as the index analyses
them, of 2 to 20 characters in [a-z0-9] (any letters if the language is not English), none that occurs in more than a
tenth of the corpus; of each document the `fb_terms` most frequent. A term's weight is Σ_d tf(t, d) / |d| · score(d),
where |d| sums the frequencies of the terms kept of d. The `fb_terms` heaviest are scaled to a sum of 1 and interpolated
with the question, whose terms have a sum of 1, too:

    w(t) = λ · count(t, question) / |question| + (1 − λ) · rm(t),    λ = original_query_weight

Terms of equal weight are taken in alphabetical order; Anserini leaves their order open. BM25 is linear in its terms, so
the question stands in the plan as one text of weight λ / |question|, and each expansion term as one word that the
analyser maps to it. Other retrievers have no terms: there the question is one text of weight λ, a word is one text of
weight (1 − λ) · rm(t), all documents count alike (their scores are no likelihoods), words are not stemmed, and English
stopwords take the place of the frequent terms, which are not known.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..configs.methods import FirstTitlesConfig, Rm3Config, WeightedWordsConfig
from ..configs.section import Section
from ..envs.plan import Probe, SearchPlan, Term
from ..rewriters.retriever_info import RetrieverInfo
from .method import SearchResults

TITLE_WORDS = 12
"""Words of the text that replace the title of a document without one."""
_ENGLISH, _TERM = re.compile(r"[a-z0-9]{2,20}"), re.compile(r"\w{2,20}")


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
    """The question, and the title of each of its first n documents, or the first words of one without a title."""
    documents = ranking.documents[: settings.n] if ranking is not None else ()
    titles = (document.title.strip() or " ".join(document.text.split()[:TITLE_WORDS]) for document in documents)
    return _added(question, 1.0, [(title, settings.weight) for title in titles if title], k)


def weighted_words(settings: WeightedWordsConfig, question: str, k: int) -> SearchPlan:
    """The question, and its first n words that are no English stopword or single letter, each once, as one term."""
    words = list(dict.fromkeys(word for _, word in analyse(question, lexical=False)))[: settings.n]
    return _added(question, 1.0, [(" ".join(words), settings.weight)] if words else [], k)


def rm3(
    settings: Rm3Config, retriever: RetrieverInfo, question: str, ranking: SearchResults | None, k: int
) -> SearchPlan:
    """The question and its expansion terms; the question alone where there are none."""
    length = len(analyse(question, True, retriever.language)) if retriever.kind == "bm25" else 1
    weights = relevance_model(settings, retriever, ranking) if ranking is not None else {}
    original = settings.original_query_weight
    if not length or not weights:
        return SearchPlan.of(question, k=k)
    added = [(word, (1 - original) * weight) for word, weight in weights.items() if original < 1]
    return _added(question, original / length, added, k)


def relevance_model(settings: Rm3Config, retriever: RetrieverInfo, ranking: SearchResults) -> dict[str, float]:
    """Weights of the expansion terms, heaviest first, with a sum of 1; empty where no term is left.

    A term is given as the first word of the documents that the analyser maps to it.
    """
    lexical, documents = retriever.kind == "bm25", ranking.documents[: settings.fb_docs]
    scores = ranking.scores if lexical else (1.0,) * len(documents)
    frequent = frozenset(retriever.frequent_terms)
    pattern = _ENGLISH if retriever.language == "english" else _TERM
    word_of: dict[str, str] = {}
    model: dict[str, float] = {}
    for document, score in zip(documents, scores, strict=False):
        pairs = analyse(document.contents, lexical, retriever.language)
        for term, word in pairs:
            word_of.setdefault(term, word)
        counts = Counter(term for term, _ in pairs if pattern.fullmatch(term) and term not in frequent)
        largest = dict(_heaviest(counts, settings.fb_terms))
        length = sum(largest.values())
        for term, count in largest.items():
            model[term] = model.get(term, 0.0) + count / length * score
    heaviest = _heaviest(model, settings.fb_terms)
    total = sum(weight for _, weight in heaviest)
    return {word_of[term]: weight / total for term, weight in heaviest} if total > 0 else {}


def analyse(text: str, lexical: bool, language: str = "english") -> list[tuple[str, str]]:
    """(term, word) for each word of a text that the BM25 index holds, in order: the word lower-cased, and its stem.

    A word is its own term where not `lexical`.
    """
    from ..envs.retrievers.tokenizer import WordTokenizer, words_of  # imports bm25s, and with it numba

    words = words_of(text)
    stemmed = zip(words, WordTokenizer(language).stems(words), strict=True)
    return [(stem if lexical else word, word) for word, stem in stemmed if stem is not None]


def additions(plan: SearchPlan) -> tuple[str, ...]:
    """The texts that a plan of these rewriters adds to the question, which is its first term."""
    return tuple(term.text for term in plan.probes[0].terms[1:])


def _heaviest(weights: Mapping[str, float], count: int) -> list[tuple[str, float]]:
    return sorted(weights.items(), key=lambda item: (-item[1], item[0]))[:count]


def _added(question: str, weight: float, texts: Sequence[tuple[str, float]], k: int) -> SearchPlan:
    """The question at this weight with further texts at theirs, as one probe."""
    terms = (Term(text=question, weight=weight), *(Term(text=text, weight=added) for text, added in texts))
    return SearchPlan(probes=(Probe(terms=terms),), k=k)
