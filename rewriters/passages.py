"""Rewriters that write texts like those that are searched for: HyDE, query2doc, CHR. The prompts are in tasks.yaml."""

from collections.abc import Sequence

from ..configs.methods import ChrConfig
from ..configs.schema import RewriterConfig
from ..data.types import Question
from ..envs.plan import Probe, SearchPlan, Term
from ..errors import ConfigError
from .case import case_text
from .forms import LineForm, PassageForm
from .retriever_info import RetrieverInfo
from .template import Plan, TemplateRewriter, tasks, weighted

REPEATED = 5.0
"""How often query2doc repeats the question on BM25."""


def hyde(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> TemplateRewriter:
    """HyDE (Gao et al. 2023): the mean of the question and of n passages, one probe with a term of weight 1 for each.

    One answer is one passage; of a prompted model several are sampled and joined, as in the HCQR paper (B.5) and the
    CHR paper (section 4). `keep_question_weight` 0 searches with the passages alone.
    """
    question_weight = 1.0 if config.keep_question_weight is None else config.keep_question_weight

    def plan(question: Question, passages: Sequence[str]) -> SearchPlan:
        written = (Term(text=passage, weight=config.rewrite_weight) for passage in passages)
        return SearchPlan(probes=(Probe(terms=(*weighted(question.text, question_weight), *written)),), k=k)

    return _passages("hyde", plan, joins=True)


def query2doc(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> TemplateRewriter:
    """query2doc (Wang et al. 2023; the CHR paper, section 4): the question and one passage.

    For BM25 the question is repeated five times before the passage; its score is linear in the query, so that equals a
    term of weight 5 beside one of weight 1. `keep_question_weight` replaces the 5. Other retrievers get both in one
    text, the question first; a line break replaces the paper's [SEP], because not every encoder has such a token. The
    weight can only be 0 (the passage alone) or 1 there; raises ConfigError for another. The paper's four examples come
    from MS MARCO; this prompt shows none.
    """
    question_weight = config.keep_question_weight
    if retriever.kind != "bm25" and question_weight not in (None, 0.0, 1.0):
        raise ConfigError(
            f"rewriter.keep_question_weight is {question_weight:g}, and query2doc writes question and passage into "
            f"one text for {retriever.name!r}: it can be 0 or 1 there. Leave it out, or use rewriter.name=hyde."
        )

    def plan(question: Question, passages: Sequence[str]) -> SearchPlan:
        (passage,) = passages
        question_terms: tuple[Term, ...] = ()
        if retriever.kind == "bm25":
            question_terms = weighted(question.text, REPEATED if question_weight is None else question_weight)
        elif question_weight != 0:
            passage = f"{question.text}\n{passage}"
        return SearchPlan(
            probes=(Probe(terms=(*question_terms, Term(text=passage, weight=config.rewrite_weight))),), k=k
        )

    return _passages("query2doc", plan)


def _passages(name: str, plan: Plan, joins: bool = False) -> TemplateRewriter:
    def prompt(question: Question, request: str) -> str:
        return f"{tasks()[name]['task']}\n\n{case_text(question, options=False)}"

    return TemplateRewriter(name, PassageForm(), prompt, plan, tasks()["passage_again"], options=False, joins=joins)


def chr_rewriter(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> TemplateRewriter:
    """CHR: search for what the right answer says and against what its closest mimic says.

    A policy in training writes two labelled lines. The published JSON object (methods/one_search.py) needs quotes,
    commas and escapes that earn no reward, one missing character invalidates it, and a policy has no second attempt.
    """

    def prompt(question: Question, request: str) -> str:
        return f"{role_of(config.chr)}\n\n{case_text(question)}\n\n{request}"

    def plan(question: Question, texts: Sequence[str]) -> SearchPlan:
        plus, minus = texts
        return contrast(plus, minus, config.chr.penalty, k)

    form = LineForm({"H_plus": "the target hypothesis", "H_minus": "the mimic hypothesis"})
    return TemplateRewriter("chr", form, prompt, plan)


def role_of(config: ChrConfig) -> str:
    """The task of CHR's prompt."""
    return str(tasks()["chr"][config.field])


def contrast(plus: str, minus: str, penalty: float, k: int) -> SearchPlan:
    """A document scores S(d) = Sim(d, H+) − λ·Sim(d, H−), one probe with weights 1 and −λ (the CHR paper, equation 2).

    λ = 0 leaves the mimic out: HyDE with one passage and without the question. On BM25, a document with S(d) ≤ 0 is no
    better than one that shares no word with either hypothesis, and is not returned; dense retrievers rank it.
    """
    negative_terms = (Term(text=minus, weight=-penalty),) if penalty else ()
    return SearchPlan(probes=(Probe(terms=(Term(text=plus), *negative_terms)),), k=k)
