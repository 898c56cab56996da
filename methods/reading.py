"""What the methods that read passages share, and the plain baselines of the Misknow-RAG paper (section 3.2).

DirectGen lets the reader answer without passages; CoT lets it think step by step first (Wei et al. 2022). STD-RAG
searches with the question as it is: K passages of one source, or K/2 of each of two ("2-way retrieval"). A merged
knowledge base is one source, made by `querylect data merge`. With `answers` off, the reader that all methods share
answers instead.

The reader is prompted as in that paper (appendix B.2, figure 5; reading.j2): instructions, one example, the passages,
the reason for a further search and its results, the question. The wording is this project's own.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..configs.methods import CotConfig, ReadingConfig, StdRagConfig
from ..data.leakage import fingerprint
from ..data.types import Document, Question
from ..envs.plan import Probe, SearchPlan, Term, is_unicode
from ..llms.base import SamplingParams
from ..llms.prose import marked_answers
from .method import Ask, Result, Search, StageError, answer_text, sampling
from .prompts import prompts_of

NO_ANSWER = "no answer in the text"
"""The failure of a method whose model wrote a text without a marked answer."""


class Passage(NamedTuple):
    """A document, and the knowledge base that gave it first."""

    document: Document
    source: str


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


async def direct_gen(question: Question, ask: Ask, search: Search, settings: ReadingConfig) -> Result:
    """The reader alone."""
    return await answer(question, ask, settings)


async def cot(question: Question, ask: Ask, search: Search, settings: CotConfig) -> Result:
    """The reader alone, which thinks first and then answers on a separate line."""
    prompt = prompts_of("cot", settings).think(question)
    reply = await ask(prompt, sampling(settings), role="reader")
    text = answer_text(reply)
    answers = marked_answers(text)
    if not answers:
        raise StageError(NO_ANSWER, text=text)
    return Result(notes={"text": text}, answer=answers[-1], cut=not reply.texts[0].finished)


async def std_rag(question: Question, ask: Ask, search: Search, settings: StdRagConfig) -> Result:
    """One search of each source, one prompt."""
    passages = await retrieve(search, [question.text], settings.sources, settings.k)
    return await answer(question, ask, settings, passages)


async def retrieve(
    search: Search, queries: Sequence[str], sources: Sequence[str], k: int, earlier: Sequence[Passage] = ()
) -> list[Passage]:
    """Search each source for its share of `k` passages, and concatenate the rankings in the order of the sources,
    without passages whose contents are repeated, or in `earlier`.

    A ranking interleaves its queries: the first passage of each, then the second of each.
    """
    probes = tuple(Probe(terms=(Term(text=query),)) for query in queries)
    plan = SearchPlan(probes=probes, fuse="interleave" if len(probes) > 1 else "max", k=k)
    plans = [plan.model_copy(update={"k": share}) for share in shares(k, len(sources))]
    rankings = await asyncio.gather(*map(search, plans, sources))
    passages = {fingerprint(passage.document): passage for passage in earlier}
    for source, ranking in zip(sources, rankings, strict=True):
        for document in ranking.documents:
            passages.setdefault(fingerprint(document), Passage(document, source))
    return list(passages.values())[len(earlier) :]


def shares(k: int, sources: int) -> list[int]:
    """`k` split evenly; the first sources get the remainder."""
    return [k // sources + (i < k % sources) for i in range(sources)]


def usable(queries: Iterable[str], previous: Iterable[str], limit: int) -> list[str]:
    """The first `limit` valid, non-empty queries that were not asked before, each once."""
    excluded = {query.strip() for query in previous}
    valid = (query for query in map(str.strip, queries) if query and query not in excluded and is_unicode(query))
    return list(dict.fromkeys(valid))[:limit]


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
    result = context([*passages, *further.passages], notes or {})
    if not settings.answers:
        return result
    prompt = reader_prompt(question, passages, settings, further)
    reply = await ask(prompt, SamplingParams(max_tokens=settings.max_tokens), role="reader")
    return replace(result, answer=answer_text(reply), cut=not reply.texts[0].finished)


def context(passages: Sequence[Passage], notes: dict[str, object]) -> Result:
    """A result with these passages, and without an answer."""
    return Result(
        tuple(passage.document for passage in passages), notes, sources=tuple(passage.source for passage in passages)
    )
