"""The direct level: the retriever is named, and one strategy that suits it is prescribed.

Where Yuan et al. (section 4.2 and figure 6) found a form of query that suits a retriever, that form is used: keywords
for BM25, a hypothetical document for Contriever, a question for Qwen3-Embedding. For the others the form follows from
their training data or construction. A custom retriever has no prescribed form.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ..configs.schema import RewriterConfig
from ..errors import ConfigError
from .levels import LevelRewriter, introduce
from .plans import AnswerReader
from .retriever_info import RetrieverInfo


@dataclass(frozen=True, slots=True)
class QueryForm:
    """One form of query: its name, why it suits the retriever, and how to write it."""

    name: str
    advice: str


KEYWORDS = QueryForm(
    "keywords",
    "It counts words that query and document have in common, and rare words count most, so sentences only add noise. "
    "Write keywords: the names and technical terms that the answering document must contain, in their usual spelling. "
    "A word counts only where it is the same word: mind singular and plural, hyphens and compounds, and add a common "
    "variant or synonym where documents may use it. Leave out question words and fillers.",
)
PASSAGE = QueryForm(
    "a hypothetical document",
    "It finds documents that resemble the text it is given, so a document is the best query. Write the passage that "
    "would answer the question, as if it were taken from the collection: in the same genre, tone and length, with the "
    "names, terms and figures it would hold. For a question about a medicine, write the lines of its leaflet; for one "
    "about a bridge, the paragraph of an encyclopedia. It need not be true, only to look alike.",
)
QUESTION = QueryForm(
    "a self-contained question",
    "It was made for questions and the passages that answer them, so stay with a question. Write one complete, natural "
    "question that can be understood by itself: name what is meant instead of hinting at it, give the field and the "
    "context, use the proper terms, and drop everything that does not help.",
)
SENTENCE = QueryForm(
    "a plain sentence",
    "It compares the meaning of short texts, and long ones blur it. Write one plain sentence that states what the "
    "answering document says: the subject by its full name, what is said about it, and its proper terms, without "
    "question words.",
)

SEARCH = QueryForm(
    "a short literature search",
    "It learned from what people typed into a literature search engine and which article they then opened, so type "
    "what an expert would: one line of a few biomedical concepts, such as condition, substance, method and population, "
    "each under its indexed name instead of an everyday word or an abbreviation. Only some forty words of it are read, "
    "so leave out whole sentences, question words and whatever does not tell one article from another.",
)
STATEMENT = QueryForm(
    "a statement full of exact terms",
    "Part of it counts common words and part of it compares meanings, and a document comes out on top where both "
    "agree, so serve both at once. Write one statement of what the answering document says, and put into it, spelled "
    "as documents spell them, the rare names and technical terms that only this document would hold. A bare list of "
    "words loses the part that reads meaning; a loose paraphrase loses the part that counts words.",
)
QUESTION_INDEX = QueryForm(
    "a question as it was asked before",
    "It does not read documents. Questions were written for every document beforehand, each one answered by it, and "
    "your query is compared with those questions. So ask one short, plain question, in the everyday words of someone "
    "who does not know the answer, that the text which answers it would lead its reader to ask; name the subject, and "
    "ask for one thing.",
)

FORM_OF_RETRIEVER: Mapping[str, QueryForm] = {
    "contriever": PASSAGE,
    "all-minilm": SENTENCE,
    "qwen3-embedding": QUESTION,
    "medcpt": SEARCH,
    "bge-": QUESTION,
}
"""By the start of the retriever's name, without the owner of a Hub id; other retrievers go by their kind."""

FORM_OF_KIND: Mapping[str, QueryForm] = {
    "bm25": KEYWORDS,
    "dense": PASSAGE,
    "hybrid": STATEMENT,
    "questions": QUESTION_INDEX,
}
"""A kind that is not listed has no prescribed form."""


def query_form(retriever: RetrieverInfo) -> QueryForm:
    """The form of query that suits the `retriever`. Raises ConfigError if none is prescribed."""
    name = retriever.name.lower().rsplit("/", maxsplit=1)[-1]
    for start, form in FORM_OF_RETRIEVER.items():
        if name.startswith(start):
            return form
    if retriever.kind not in FORM_OF_KIND:
        raise ConfigError(
            f"rewriter.name is 'direct', and no form of query is known to suit the retriever {retriever.name!r} of "
            f"kind {retriever.kind!r}; known are the kinds {', '.join(FORM_OF_KIND)}. Use rewriter.name=explore, which "
            "names the retriever and lets the policy find the form."
        )
    return FORM_OF_KIND[retriever.kind]


def direct(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> LevelRewriter:
    """Build the rewriter of this level for the `retriever`."""
    form = query_form(retriever)
    return LevelRewriter(
        name="direct",
        reader=AnswerReader(config, k),
        instructions=f"{introduce(retriever)} {form.advice}\n\nRewrite the question as {form.name}.",
        again=f"Write {form.name} again, and a better one: take up what helps in these results, drop what led astray.",
        reason="what the documents that answer the question hold, and how to word this form of query after them",
    )
