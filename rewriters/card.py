"""What a rewriter may be told about the retriever that it speaks to."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetrieverCard:
    """A retriever in three words; the environment service hands it out."""

    name: str
    """As people write it: BM25, Contriever, all-MiniLM-L6-v2."""
    kind: str
    """`bm25`, `dense` or `hybrid`."""
    trained: str = ""
    """How it was trained, as the end of "It …": "was trained on pairs of spans of one Wikipedia article"."""
