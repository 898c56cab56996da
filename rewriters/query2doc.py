"""Query2Doc: the question and a passage written for it, as one query (Wang et al. 2023; the CHR paper, section 4).

For BM25 the paper repeats the question five times before the passage; its score is linear in the query, so that equals
a term of weight 5 beside one of weight 1. Other retrievers get both in one text, the question first; a line break
replaces the paper's [SEP], because not every encoder has such a token. The prompt is this project's own and shows no
examples: the paper's four come from MS MARCO.
"""

from collections.abc import Sequence

from ..configs.schema import RewriterConfig
from ..data.types import Question
from ..envs.plan import Probe, SearchPlan, Term
from ..errors import ConfigError
from .passages import PassageRewriter
from .retriever_info import RetrieverInfo

REPEATED = 5.0

TASK = (
    "Write a passage of a few sentences that answers the question below, with the facts and terms that a reference "
    "work would give. Write the passage and nothing else."
)


def query2doc(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> PassageRewriter:
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
        terms: tuple[Term, ...]
        if retriever.kind == "bm25":
            weight = REPEATED if question_weight is None else question_weight
            question_terms = (Term(text=question.text, weight=weight),) if weight > 0 else ()
            terms = (*question_terms, Term(text=passage, weight=config.rewrite_weight))
        else:
            text = passage if question_weight == 0 else f"{question.text}\n{passage}"
            terms = (Term(text=text, weight=config.rewrite_weight),)
        return SearchPlan(probes=(Probe(terms=terms),), k=k)

    return PassageRewriter("query2doc", TASK, plan)
