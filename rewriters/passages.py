"""Rewriters whose whole answer is a passage that might answer the question.

HyDE (Gao et al. 2023) searches with the mean of the question and of n passages: one probe with a term for each, all of
weight 1. One answer is one passage; of a prompted model several are sampled and joined, as in the HCQR paper (B.5) and
the CHR paper (section 4).

Query2Doc (Wang et al. 2023; the CHR paper, section 4) searches with the question and one passage. For BM25 it repeats
the question five times before the passage; its score is linear in the query, so that equals a term of weight 5 beside
one of weight 1. Other retrievers get both in one text, the question first; a line break replaces the paper's [SEP],
because not every encoder has such a token. The paper's four examples come from MS MARCO; this prompt shows none.

The prompts are worded by this project.
"""

from collections.abc import Sequence

from ..configs.schema import RewriterConfig
from ..data.types import Question
from ..envs.plan import Probe, SearchPlan, Term
from ..errors import ConfigError
from .case import case_text
from .forms import PassageForm
from .plans import Plan, weighted
from .retriever_info import RetrieverInfo
from .template import TemplateRewriter

REPEATED = 5.0

_HYDE = (
    "Write the passage that answers the question below, as it might stand in the collection that is searched: in its "
    "genre and tone, a few sentences long, with the names, terms and figures it would hold. It need not be true, only "
    "to look alike. Write the passage and nothing else."
)
_QUERY2DOC = (
    "Write a passage of a few sentences that answers the question below, with the facts and terms that a reference "
    "work would give. Write the passage and nothing else."
)
_AGAIN = (
    "Write another passage, a better one to search with: take up the names, terms and style of the documents that come "
    "near to an answer, and leave out what led astray. Write the passage and nothing else."
)


def hyde(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> TemplateRewriter:
    """Build the rewriter. `keep_question_weight` 0 searches with the passages alone."""
    question_weight = 1.0 if config.keep_question_weight is None else config.keep_question_weight

    def plan(question: Question, passages: Sequence[str]) -> SearchPlan:
        written = (Term(text=passage, weight=config.rewrite_weight) for passage in passages)
        return SearchPlan(probes=(Probe(terms=(*weighted(question.text, question_weight), *written)),), k=k)

    return _passages("hyde", _HYDE, plan, joins=True)


def query2doc(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> TemplateRewriter:
    """Build the rewriter for the `retriever`.

    `keep_question_weight` replaces the 5 for BM25. Other retrievers get question and passage as one text, so there it
    can only be 0 (the passage alone) or 1; raises ConfigError for another.
    """
    question_weight = config.keep_question_weight
    if retriever.kind != "bm25" and question_weight not in (None, 0.0, 1.0):
        raise ConfigError(
            f"rewriter.keep_question_weight is {question_weight:g}, and query2doc writes question and passage into "
            f"one text for {retriever.name!r}: it can be 0 or 1 there. Leave it out, or use rewriter.name=hyde."
        )

    def plan(question: Question, passages: Sequence[str]) -> SearchPlan:
        (passage,) = passages
        if retriever.kind == "bm25":
            repeated = weighted(question.text, REPEATED if question_weight is None else question_weight)
            terms = (*repeated, Term(text=passage, weight=config.rewrite_weight))
        else:
            text = passage if question_weight == 0 else f"{question.text}\n{passage}"
            terms = (Term(text=text, weight=config.rewrite_weight),)
        return SearchPlan(probes=(Probe(terms=terms),), k=k)

    return _passages("query2doc", _QUERY2DOC, plan)


def _passages(name: str, task: str, plan: Plan, joins: bool = False) -> TemplateRewriter:
    def prompt(question: Question, request: str) -> str:
        return f"{task}\n\n{case_text(question, options=False)}"

    return TemplateRewriter(name, PassageForm(), prompt, plan, _AGAIN, options=False, joins=joins)
