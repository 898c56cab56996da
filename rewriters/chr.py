"""CHR as a rewriter: search for what the right answer says and against what its closest mimic says.

One answer gives a target hypothesis H+ and a mimic H−. A document scores S(d) = Sim(d, H+) − λ·Sim(d, H−), which is one
probe with weights 1 and −λ (the CHR paper, equation 2). λ = 0 leaves the mimic out: HyDE with one passage and without
the question.

On BM25, a document with S(d) ≤ 0 is no better than one that shares no word with either hypothesis, and is not returned;
dense retrievers rank it.

A policy in training writes two labelled lines. The published JSON object (methods/chr.py) needs quotes, commas and
escapes that earn no reward, one missing character invalidates it, and a policy has no second attempt. A small model
learns two labels, the first of which is prefilled.

The role, the two instructions and the keys are the paper's, in this project's wording. With `field` "any", the prompt
says "answer" where the paper says "diagnosis".
"""

from collections.abc import Sequence

from ..configs.rewriter import ChrConfig, RewriterConfig
from ..data.types import Question
from ..envs.plan import Probe, SearchPlan, Term
from .case import case_text
from .parts import PartsRewriter
from .retriever_info import RetrieverInfo

VERSION = "chr-1"
LABELS = ("H_plus", "H_minus")


def contrast(plus: str, minus: str, penalty: float, k: int) -> SearchPlan:
    """One probe, H+ minus λ·H−; without H− where λ is 0."""
    negative_terms = (Term(text=minus, weight=-penalty),) if penalty else ()
    return SearchPlan(probes=(Probe(terms=(Term(text=plus), *negative_terms)),), k=k)


def chr_rewriter(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> PartsRewriter:
    """Build the rewriter whose answer is two labelled lines."""

    def plan(question: Question, texts: Sequence[str]) -> SearchPlan:
        plus, minus = texts
        return contrast(plus, minus, config.chr.penalty, k)

    return PartsRewriter(
        name="chr",
        version=VERSION,
        labels=LABELS,
        task=lambda question: f"{role_of(config.chr)}\n\n{case_text(question)}",
        field_hints=("the target hypothesis", "the mimic hypothesis"),
        plan=plan,
        long=True,
    )


def role_of(config: ChrConfig) -> str:
    if config.field == "medicine":
        role = (
            "You are a medical specialist who helps with difficult clinical decisions, and you write precise "
            "diagnostic hypotheses that guide a search for evidence."
        )
        plus = (
            "the pathophysiology, the distinctive symptoms or the standard treatment of the CORRECT diagnosis, with "
            "the details that set it apart from other conditions"
        )
        minus = (
            "the main differential diagnosis or closest mimic, which is INCORRECT: why a clinician could take it for "
            "the right one because symptoms overlap, and the subtle features that rule it out"
        )
        instruction = "Analyze the clinical scenario"
    else:
        role = (
            "You are a specialist in the subject of the question, and you write precise hypotheses that guide a search "
            "for evidence."
        )
        plus = "the facts, features and terms of the CORRECT answer, with the details that set it apart from others"
        minus = (
            "the closest alternative, which is INCORRECT: why one could take it for the right one because of what both "
            "have in common, and the subtle features that rule it out"
        )
        instruction = "Analyze the question"
    return (
        f"{role}\n\n{instruction} below, and write two conflicting hypotheses to search with:\n"
        f"1. H_plus, the target hypothesis: describe {plus}.\n2. H_minus, the mimic hypothesis: describe {minus}."
    )
