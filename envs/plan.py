"""A search plan: everything an LLM says to a retriever.

A plan is a few *probes*; each probe is a weighted sum of texts scored by the retriever; the rankings of the probes
are fused into one. For a dense retriever a probe is one vector Σ wᵢ·e(tᵢ); for BM25 its score is Σ wᵢ·BM25(tᵢ).
"""

from typing import Literal

from pydantic import Field

from ..configs.section import Strict, Weight

Fusion = Literal["max", "rrf", "interleave", "sum"]
RRF_CONSTANT = 60
"""Reciprocal rank fusion adds 1 / (60 + rank), rank from 1 (Cormack, Clarke and Büttcher, SIGIR 2009)."""


def is_unicode(text: str) -> bool:
    """Whether `text` can be sent and indexed; a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Term(Strict):
    """One text and its weight; a negative weight pushes documents like it away."""

    text: str
    weight: Weight = 1.0


def is_effective(term: Term) -> bool:
    """Whether a term affects a retriever that embeds it: a blank text or a weight of 0 does not."""
    return term.weight != 0 and bool(term.text.strip())


class Probe(Strict):
    """One query: the weighted sum of its terms."""

    terms: tuple[Term, ...] = Field(min_length=1, fail_fast=True)
    k: int | None = Field(default=None, ge=1)
    """How many documents this probe contributes; the plan's `k` where None."""
    source: str | None = None
    """Which knowledge base to ask, for environments that hold several."""


def _summary(probe: Probe) -> str:
    """The terms of a probe in one line, each cut to 60 characters."""
    texts = [term.text if len(term.text) <= 60 else f"{term.text[:59]}…" for term in probe.terms]
    return " + ".join(f"{term.weight:g}·{text!r}" for term, text in zip(probe.terms, texts, strict=True))


class SearchPlan(Strict):
    """Probes and how their rankings become one ranking of `k` documents."""

    probes: tuple[Probe, ...] = Field(min_length=1, fail_fast=True)
    fuse: Fusion = "max"
    k: int = Field(default=10, ge=1)

    @property
    def texts(self) -> list[str]:
        """The texts of all its terms."""
        return [term.text for probe in self.probes for term in probe.terms]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({' | '.join(map(_summary, self.probes))}, fuse={self.fuse!r}, k={self.k})"

    def __str__(self) -> str:
        return repr(self)

    @classmethod
    def of(cls, text: str, k: int = 10) -> "SearchPlan":
        """The plan of one plain query."""
        return cls(probes=(Probe(terms=(Term(text=text),)),), k=k)


class PlanWithout(SearchPlan):
    """A plan whose rankings leave some documents out, as if the corpus did not contain them. It exists only in the
    service: a search request sends the ids beside the plan, and for a step they follow from its question."""

    without: tuple[str, ...]
    """The ids of these documents."""
