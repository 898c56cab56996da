"""The three prompt levels of Yuan et al. (section 4.3, figure 6): `general` tells the model nothing about its
retriever, `explore` what it is, `direct` what to write for it. The prompts are worded by this project.

`direct`: where the paper (section 4.2 and figure 6) found a form of query that suits a retriever, that form is used:
keywords for BM25, a hypothetical document for Contriever, a question for Qwen3-Embedding. For the others the form
follows from their training data or construction. A custom retriever has no prescribed form.
"""

from collections.abc import Mapping
from typing import NamedTuple

from ..configs.schema import RewriterConfig
from ..data.types import Question
from ..errors import ConfigError
from .case import case_text
from .forms import MAX_REWRITES, REWRITE_CLOSE, REWRITE_OPEN, TagForm
from .plans import query_plan
from .retriever_info import RetrieverInfo
from .template import TemplateRewriter

_KIND_IN_WORDS = {
    "bm25": "lexical BM25",
    "dense": "dense embedding",
    "hybrid": "combined lexical and dense",
    "questions": "question-matching",
    "custom": "custom",
}

_GENERAL = f"""\
You turn a question into a query that a retriever can work with, so that the documents that answer the question \
come out on top. A query need not be a question, nor short: keywords, a statement or a whole paragraph will do. \
Choose the one of these strategies that suits the question best, and apply it:
1. Take the question apart. Name the things it is about, and spell out what each of them means. \
'Can I deduct a home office?' becomes 'home office: part of a dwelling used for work; deduction: amount taken off \
taxable income; eligibility: conditions for self-employed and employed people'.
2. Enrich its words. Add what is known about a name ('Marie Curie' → 'physicist Marie Curie, radioactivity'), the \
broader or narrower terms of a thing ('trout' → 'freshwater fish, trout, rainbow trout'), or the wording that \
documents prefer ('fix a leaky tap' → 'tap washer replacement guide').
3. Split it. Where several facts are needed, ask for each in a query of its own. 'Is the Rhine longer than the \
Loire?' becomes '{REWRITE_OPEN}length of the river Rhine{REWRITE_CLOSE}{REWRITE_OPEN}length of the river \
Loire{REWRITE_CLOSE}'.
4. Say it in another way. Paraphrase it, state the need behind it, or ask for something near to it that leads to the \
same documents: 'Why am I always tired?' may become 'common causes of persistent fatigue in adults', 'moving \
to Norway' may become 'Norwegian residence permit rules'.
5. Write the document that you hope to find. Compose a passage as it might stand in the collection, such as \
lines of a leaflet, a news item or the entry of an encyclopedia, and search with it."""

_EXPLORE = (
    "You turn a question into the query with which this retriever ranks the documents that answer it highest. No "
    "strategy is given: from what you know about it, work out what kind of text it matches best (think of wording, "
    "length and form), and write the query in that way."
)


class QueryForm(NamedTuple):
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


def general(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> TemplateRewriter:
    """Five ways of rewriting are explained; the reward alone has to teach what suits the retriever."""
    count = (
        f"Give one {REWRITE_OPEN} part; only where you split the question, give one such part for each query, "
        f"{MAX_REWRITES} at most."
    )
    form = TagForm("which strategy you choose, why this one, and how you apply it", count)
    again = (
        "Write a better rewrite with what you have learned. You may keep to your strategy or change to another one of "
        "the list."
    )
    return level("general", config, k, _GENERAL, form, again)


def explore(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> TemplateRewriter:
    """The retriever is introduced, and the model works out how to query it."""
    form = TagForm("what you know of this retriever, what it therefore ranks high, and what to write for it")
    again = (
        "Judge by these results what the retriever responded to, revise your strategy where they speak against it, and "
        "write a better rewrite."
    )
    return level("explore", config, k, f"{introduce(retriever)}\n\n{_EXPLORE}", form, again)


def direct(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> TemplateRewriter:
    """The form of query that suits the retriever is prescribed. Raises ConfigError where none is known."""
    query = query_form(retriever)
    task = f"{introduce(retriever)} {query.advice}\n\nRewrite the question as {query.name}."
    form = TagForm("what the documents that answer the question hold, and how to word this form of query after them")
    again = f"Write {query.name} again, and a better one: take up what helps in these results, drop what led astray."
    return level("direct", config, k, task, form, again)


def level(name: str, config: RewriterConfig, k: int, task: str, form: TagForm, again: str) -> TemplateRewriter:
    """A rewriter whose answers are `<think>…</think><rewrite>…</rewrite>`; all questions share the prompt up to the
    question."""

    def prompt(question: Question, request: str) -> str:
        return f"{task}\n\n{request}\n\n{case_text(question)}"

    return TemplateRewriter(name, form, prompt, query_plan(config, k), again)


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


def introduce(retriever: RetrieverInfo) -> str:
    """The sentence that introduces the retriever."""
    trained = retriever.trained.strip().rstrip(".")
    description = trained or f"{retriever.name}, a {_KIND_IN_WORDS[retriever.kind]} retriever"
    label = description if retriever.name.lower() in description.lower() else f"{retriever.name}, {description}"
    return f"Documents are found by {label}."
