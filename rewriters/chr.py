"""CHR: search for what the right answer says and against what its closest mimic says.

One answer gives a target hypothesis H+ and a mimic H−. A document scores S(d) = Sim(d, H+) − λ·Sim(d, H−), which is one
probe with weights 1 and −λ (the CHR paper, equation 2). λ = 0 leaves the mimic out: HyDE with one passage and without
the question.

On BM25, a document with S(d) ≤ 0 is no better than one that shares no word with either hypothesis, and is not returned;
dense retrievers rank it.

A policy in training writes two labelled lines. The published JSON object (methods/) needs quotes, commas and escapes
that earn no reward, one missing character invalidates it, and a policy has no second attempt.

The role, the two instructions and the keys are the paper's, in this project's wording. With `field` "any", the prompt
says "answer" where the paper says "diagnosis".
"""

from collections.abc import Sequence

from ..configs.methods import ChrConfig
from ..configs.schema import RewriterConfig
from ..data.types import Question
from ..envs.plan import Probe, SearchPlan, Term
from .case import case_text
from .forms import LineForm
from .retriever_info import RetrieverInfo
from .template import TemplateRewriter

_MEDICINE = """\
You are a medical specialist who helps with difficult clinical decisions, and you write precise diagnostic hypotheses \
that guide a search for evidence.

Analyze the clinical scenario below, and write two conflicting hypotheses to search with:
1. H_plus, the target hypothesis: describe the pathophysiology, the distinctive symptoms or the standard treatment of \
the CORRECT diagnosis, with the details that set it apart from other conditions.
2. H_minus, the mimic hypothesis: describe the main differential diagnosis or closest mimic, which is INCORRECT: why a \
clinician could take it for the right one because symptoms overlap, and the subtle features that rule it out."""
_ANY = """\
You are a specialist in the subject of the question, and you write precise hypotheses that guide a search for evidence.

Analyze the question below, and write two conflicting hypotheses to search with:
1. H_plus, the target hypothesis: describe the facts, features and terms of the CORRECT answer, with the details that \
set it apart from others.
2. H_minus, the mimic hypothesis: describe the closest alternative, which is INCORRECT: why one could take it for the \
right one because of what both have in common, and the subtle features that rule it out."""


def role_of(config: ChrConfig) -> str:
    """The task of the prompt."""
    return _MEDICINE if config.field == "medicine" else _ANY


def contrast(plus: str, minus: str, penalty: float, k: int) -> SearchPlan:
    """One probe, H+ minus λ·H−; without H− where λ is 0."""
    negative_terms = (Term(text=minus, weight=-penalty),) if penalty else ()
    return SearchPlan(probes=(Probe(terms=(Term(text=plus), *negative_terms)),), k=k)


def chr_rewriter(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> TemplateRewriter:
    """Build the rewriter whose answer is two labelled lines."""

    def prompt(question: Question, request: str) -> str:
        return f"{role_of(config.chr)}\n\n{case_text(question)}\n\n{request}"

    def plan(question: Question, texts: Sequence[str]) -> SearchPlan:
        plus, minus = texts
        return contrast(plus, minus, config.chr.penalty, k)

    form = LineForm({"H_plus": "the target hypothesis", "H_minus": "the mimic hypothesis"})
    return TemplateRewriter("chr", form, prompt, plan)
