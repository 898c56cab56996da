"""Shared by the methods that read passages: retrieval from several sources, and the reader (methods/reading.j2).

The reader is prompted as in the Misknow-RAG paper (appendix B.2, figure 5): instructions, one example, the passages,
the reason for a further search and its results, the question. The wording is this project's own.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..configs.methods import ReadingConfig
from ..data.leakage import fingerprint
from ..data.types import Document, Question
from ..envs.plan import Probe, SearchPlan, Term, is_unicode
from ..llms.base import SamplingParams
from .method import Ask, Result, Search, answer_text, prompts_of


class Passage(NamedTuple):
    """A document, and the knowledge base that gave it first."""

    document: Document
    source: str


async def retrieve(
    search: Search, queries: Sequence[str], sources: Sequence[str], k: int, earlier: Sequence[Passage] = ()
) -> list[Passage]:
    """Search each source for its share of `k` passages, and concatenate the rankings in the order of the sources,
    without passages whose contents are repeated, or in `earlier`.

    A ranking interleaves its queries: the first passage of each, then the second of each.
    """
    plans = [plan_of(queries, share) for share in shares(k, len(sources))]
    rankings = await asyncio.gather(*map(search, plans, sources))
    passages = {fingerprint(passage.document): passage for passage in earlier}
    for source, ranking in zip(sources, rankings, strict=True):
        for document in ranking.documents:
            passages.setdefault(fingerprint(document), Passage(document, source))
    return list(passages.values())[len(earlier) :]


def plan_of(queries: Sequence[str], k: int) -> SearchPlan:
    """The plan of one or more plain queries for `k` documents."""
    probes = tuple(Probe(terms=(Term(text=query),)) for query in queries)
    return SearchPlan(probes=probes, fuse="interleave" if len(probes) > 1 else "max", k=k)


def shares(k: int, sources: int) -> list[int]:
    """`k` split evenly; the first sources get the remainder."""
    return [k // sources + (i < k % sources) for i in range(sources)]


def usable(queries: Iterable[str], previous: Iterable[str], limit: int) -> list[str]:
    """The first `limit` valid, non-empty queries that were not asked before, each once."""
    excluded = {query.strip() for query in previous}
    valid = (query for query in map(str.strip, queries) if query and query not in excluded and is_unicode(query))
    return list(dict.fromkeys(valid))[:limit]


class Further(NamedTuple):
    """What a further search adds to the reader's prompt."""

    missing: Sequence[str] = ()
    """The knowledge that the first passages did not hold."""
    reasoning: str = ""
    """The reasoning that found the missing knowledge; "" leaves it out."""
    passages: Sequence[Passage] = ()
    information: Sequence[str] = ()
    """Facts extracted from the passages."""


NOTHING = Further()


def reader_prompt(
    question: Question, passages: Sequence[Passage], settings: ReadingConfig, further: Further = NOTHING
) -> str:
    """The reader's prompt; without passages it answers from its own knowledge."""
    documents, more = [passage.document for passage in passages], [passage.document for passage in further.passages]
    prompt: str = prompts_of("reading", settings).read(question, documents, settings.document_words, further, more)
    return prompt


async def answer(
    question: Question,
    ask: Ask,
    settings: ReadingConfig,
    passages: Sequence[Passage] = (),
    further: Further = NOTHING,
    notes: dict[str, object] | None = None,
) -> Result:
    """The last step of a method: the reader answers from the passages, unless a reader shared by all methods does."""
    context = (*passages, *further.passages)
    result = Result(
        tuple(passage.document for passage in context), notes or {}, sources=tuple(p.source for p in context)
    )
    if not settings.answers:
        return result
    reply = await ask(reader_prompt(question, passages, settings, further), draw_of(settings), role="reader")
    return Result(
        result.documents,
        result.notes,
        answer=answer_text(reply),
        cut=not reply.texts[0].finished,
        sources=result.sources,
    )


def draw_of(settings: ReadingConfig) -> SamplingParams:
    """How an answer or a draft is sampled."""
    return SamplingParams(max_tokens=settings.max_tokens)
