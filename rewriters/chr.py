"""CHR as a rewriter: search for what the right answer says and against what its closest mimic says.

One answer gives a target hypothesis H+ and a mimic H−. A document scores S(d) = Sim(d, H+) − λ·Sim(d, H−), which is one
probe with weights 1 and −λ (the CHR paper, equation 2). λ = 0 leaves the mimic out: HyDE with one passage and without
the question.

On BM25, a document with S(d) ≤ 0 is no better than one that shares no word with either hypothesis, and is not returned;
dense retrievers rank it.

A policy in training writes two labelled lines. The published JSON object (methods/chr.py) needs quotes, commas and
escapes that earn no reward, one missing character invalidates it, and a policy has no second attempt. A small model
learns two labels, the first of which is prefilled.

Adaptive λ, which section 5 leaves to future work: λ(s) = λ · min(1, (1 − s) / (1 − s₀)), where s in [0, 1] is the
similarity of H+ and H− and s₀ is `chr.alike_from`. Up to s₀ the full penalty applies; above it, the penalty falls
linearly to 0 at s = 1, where subtracting the mimic would remove the target too. `chr.similarity` selects the measure of
s.

The role, the two instructions and the keys are the paper's, in this project's wording. With `field` "any", the prompt
says "answer" where the paper says "diagnosis".
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..configs.rewriter import ChrConfig, RewriterConfig
from ..data.types import Question
from ..envs.plan import Probe, SearchPlan, Term
from .card import RetrieverCard
from .levels import case_text
from .parts import PartsRewriter

VERSION = "chr-1"
LABELS = ("H_plus", "H_minus")

Similarity = Callable[[str, str], float]
"""Similarity of two texts, from 0 (nothing in common) to 1 (the same)."""


@dataclass(frozen=True)
class Contrast:
    """Turns two hypotheses into a plan."""

    config: ChrConfig
    similarity: Similarity

    def penalty(self, plus: str, minus: str) -> float:
        """λ for this pair."""
        if not self.config.adaptive or not self.config.penalty:
            return self.config.penalty
        score = min(1.0, max(0.0, self.similarity(plus, minus)))
        return self.config.penalty * min(1.0, (1 - score) / (1 - self.config.alike_from))

    def plan(self, plus: str, minus: str, k: int) -> SearchPlan:
        """One probe, H+ minus λ·H−; without H− where λ is 0."""
        penalty = self.penalty(plus, minus)
        negative_terms = (Term(text=minus, weight=-penalty),) if penalty else ()
        return SearchPlan(probes=(Probe(terms=(Term(text=plus), *negative_terms)),), k=k)

    def notes(self, plus: str, minus: str) -> Mapping[str, Any]:
        """The pair as recorded in a result."""
        return {"H_plus": plus, "H_minus": minus, "penalty": self.penalty(plus, minus)}


def contrast(config: ChrConfig) -> Contrast:
    """Build the contrast. Raises ModelError or ConfigError if `similarity` names no sentence encoder."""
    return Contrast(config, open_similarity(config.similarity if config.adaptive else "letters"))


def chr_rewriter(config: RewriterConfig, card: RetrieverCard, k: int) -> PartsRewriter:
    """Build the rewriter whose answer is two labelled lines."""
    pair = contrast(config.chr)

    def plan(question: Question, texts: Sequence[str]) -> SearchPlan:
        plus, minus = texts
        return pair.plan(plus, minus, k)

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


def letters(first: str, second: str) -> float:
    """Cosine of the counts of letter trigrams, ignoring case and spacing.

    It needs no model, works for any script, and recognises a paraphrase only as far as it keeps the words. Texts
    without any letter are similar only if they are equal.
    """
    left, right = _triples(first), _triples(second)
    if not left or not right:
        return float(first.split() == second.split())
    product = sum(count * right[triple] for triple, count in left.items())
    squares = sum(count * count for count in left.values()) * sum(count * count for count in right.values())
    return min(1.0, product / math.sqrt(squares))


def open_similarity(name: str) -> Similarity:
    """`letters`, or the cosine of the embeddings of a sentence encoder. Raises ModelError or ConfigError if `name` is
    none."""
    if name == "letters":
        return letters
    from ..llms.embedding import open_encoder

    encode, _ = open_encoder(name, setting="rewriter.chr.similarity")

    @lru_cache(maxsize=4096)
    def cosine(first: str, second: str) -> float:
        left, right = (vector.astype(float) for vector in encode([first, second]))
        lengths = math.sqrt(float(left @ left) * float(right @ right))
        return float(left @ right) / lengths if lengths else float(first == second)

    return cosine


def _triples(text: str) -> Counter[str]:
    words = f" {' '.join(text.casefold().split())} "
    return Counter(words[start : start + 3] for start in range(len(words) - 2))
