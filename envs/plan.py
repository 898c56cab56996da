"""A search plan: everything an LLM says to a retriever.

A plan is a few *probes*; each probe is a weighted sum of texts scored by the retriever; the rankings of the probes
are fused into one. For a dense retriever a probe is one vector Σ wᵢ·e(tᵢ); for BM25 its score is Σ wᵢ·BM25(tᵢ).
"""

from typing import Literal

from pydantic import Field

from ..configs.section import Strict, Weight

Fusion = Literal["max", "rrf", "interleave", "sum"]
Mode = Literal["text", "native"]
RRF_CONSTANT = 60
"""Reciprocal rank fusion adds 1 / (60 + rank), rank from 1 (Cormack, Clarke and Büttcher, SIGIR 2009)."""
TEXT_WORK, DOCUMENT_WORK = 256, 8
"""Work of a text besides its characters, and of a document asked for, in characters."""


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


class SearchPlan(Strict):
    """Probes and how their rankings become one ranking of `k` documents."""

    probes: tuple[Probe, ...] = Field(min_length=1, fail_fast=True)
    fuse: Fusion = "max"
    k: int = Field(default=10, ge=1)
    mode: Mode = "text"
    """`native`: the texts are written in the retriever's query language, and go to it as they are."""
    without: tuple[str, ...] = Field(default=(), fail_fast=True)
    """Ids of documents that are left out, as if the corpus did not hold them; unknown ids change nothing."""

    @property
    def texts(self) -> list[str]:
        """The texts of all its terms."""
        return [term.text for probe in self.probes for term in probe.terms]

    @property
    def work(self) -> int:
        """How much a search of it costs, in characters to read: the measure of the limits of a service."""
        depth = max(self.k, *(probe.k or 0 for probe in self.probes)) + len(self.without)
        return sum(TEXT_WORK + len(text) for text in self.texts) + DOCUMENT_WORK * depth

    @classmethod
    def of(cls, text: str, k: int = 10, mode: Mode = "text") -> "SearchPlan":
        """The plan of one query."""
        return cls(probes=(Probe(terms=(Term(text=text),)),), k=k, mode=mode)
