"""Adapters of the environment to other training libraries, one module each; rankings as text for a policy, and a
policy's plain reply as a plan."""

from collections.abc import Sequence

from ..plan import Probe, SearchPlan, Term, is_unicode
from ..schemas import HitBody

SNIPPET = 200
"""Characters shown of each document's text."""
MAX_QUERIES = 16
"""Most lines of one reply that are searched."""


def show(ranking: Sequence[HitBody]) -> str:
    """Numbered titles and the beginnings of the texts, one document a line."""
    documents = [hit.document for hit in ranking]
    lines = [" ".join(f"{document.title}: {document.text[:SNIPPET]}".split()) for document in documents]
    return "\n".join(f"{rank}. {line}" for rank, line in enumerate(lines, start=1)) or "Nothing was found."


def plan_of_reply(reply: str) -> SearchPlan | None:
    """The plan of a reply that holds one query a line, after its last `</think>`; None where it holds none.

    None also for more than MAX_QUERIES lines, and for what is no Unicode text.
    """
    queries = [line.strip() for line in reply.rpartition("</think>")[2].splitlines() if line.strip()]
    if not 0 < len(queries) <= MAX_QUERIES or not is_unicode(reply):
        return None
    return SearchPlan(probes=tuple(Probe(terms=(Term(text=query),)) for query in queries))
