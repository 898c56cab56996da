"""HyDE: search with a passage that might answer the question (Gao et al. 2023).

The query is the mean of the question and of n written passages: one probe with a term for each, all of weight 1. One
answer is one passage; a frozen model samples several, which are joined (`frozen.py`), as in the HCQR paper (B.5) and
the CHR paper (section 4). The prompt is worded by this project.
"""

from collections.abc import Sequence

from ..configs.schema import RewriterConfig
from ..data.types import Question
from ..envs.plan import Probe, SearchPlan, Term
from .passages import PassageRewriter
from .retriever_info import RetrieverInfo

TASK = (
    "Write the passage that answers the question below, as it might stand in the collection that is searched: in its "
    "genre and tone, a few sentences long, with the names, terms and figures it would hold. It need not be true, only "
    "to look alike. Write the passage and nothing else."
)


def hyde(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> PassageRewriter:
    """Build the rewriter. `keep_question_weight` 0 searches with the passages alone."""
    question_weight = 1.0 if config.keep_question_weight is None else config.keep_question_weight

    def plan(question: Question, passages: Sequence[str]) -> SearchPlan:
        question_terms = (Term(text=question.text, weight=question_weight),) if question_weight > 0 else ()
        terms = (*question_terms, *(Term(text=passage, weight=config.rewrite_weight) for passage in passages))
        return SearchPlan(probes=(Probe(terms=terms),), k=k)

    return PassageRewriter("hyde", TASK, plan, max_passages=None)
