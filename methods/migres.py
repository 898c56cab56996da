"""MIGRES: search for what is missing, step by step, each step a prompt of its own (Wang et al. 2025).

The pipeline that Misknow-RAG replaces by one judgement. A round has four steps: *filter* the new passages for those
that can help; *extract* their information, each piece with the passage that supports it; *judge* whether all
information answers the question, and what is missing; write *queries* for what is missing, and search with them. A
later search drops passages already retrieved. The method stops when nothing is missing, after three searches, or
when there is no new query; then the reader answers from the gathered information and its source passages.

The Misknow-RAG paper (section 3.2) runs it with the backbone of the other methods and specifies only these steps; the
prompts are this project's own. A piece of information that cites no passage of its prompt is dropped and counted.
"""

from collections.abc import Sequence

from pydantic import BaseModel

from ..configs.methods import MigresConfig
from ..data.types import Question
from ..llms.base import SamplingParams
from ..llms.structured import Form, FormPrompt, worked
from .method import Ask, Result, Search
from .prompts import numbered, prompts_of
from .reading import Further, Passage, answer, retrieve, usable

ROUNDS = 3
"""Maximum searches, including the first."""
QUERIES = 4
"""Maximum queries per round."""
FORM_TOKENS = 512
"""Maximum tokens of each step's reply."""


class Kept(BaseModel):
    """Numbers of the passages that can help."""

    passages: list[int]


class Piece(BaseModel):
    """One piece of information and where it stands."""

    passage: int
    information: str


class Extracted(BaseModel):
    """What the passages say that bears on the question."""

    pieces: list[Piece]


class Judged(BaseModel):
    """Whether what is known suffices."""

    sufficient: bool
    missing: list[str]


class Queries(BaseModel):
    """What to search for next."""

    queries: list[str]


async def migres(question: Question, ask: Ask, search: Search, settings: MigresConfig) -> Result:
    """Rounds of searching, filtering, extracting, judging and writing queries; then the answer."""
    prompts = prompts_of("migres", settings)

    async def step(form: type[Form], **parts: str) -> Form:
        examples = worked([prompts.examples[form.__name__]], form)
        prompt = FormPrompt(prompts.task(form.__name__), prompts.case(question, parts), examples)
        return await ask.json(prompt, form, SamplingParams(max_tokens=FORM_TOKENS))

    def listing(passages: Sequence[Passage]) -> str:
        return numbered([passage.document for passage in passages], settings.document_words)

    visited, context, unfounded = list[Passage](), list[Passage](), 0
    queries, searched, information, missing = [question.text], list[str](), list[str](), list[str]()
    for remaining in reversed(range(ROUNDS)):
        new = await retrieve(search, queries, settings.sources, settings.k, visited)
        visited, searched = [*visited, *new], [*searched, *queries]
        useful_numbers = (await step(Kept, passages=listing(new))).passages if new else []
        useful = [passage for number, passage in enumerate(new, start=1) if number in useful_numbers]
        pieces = (await step(Extracted, passages=listing(useful))).pieces if useful else []
        grounded = [piece for piece in pieces if 1 <= piece.passage <= len(useful) and piece.information.strip()]
        unfounded += len(pieces) - len(grounded)
        context += [useful[number - 1] for number in sorted({piece.passage for piece in grounded})]
        information += [piece.information.strip() for piece in grounded]
        judged = await step(Judged, information=_list(information))
        missing = [] if judged.sufficient else judged.missing
        if judged.sufficient or not remaining:
            break
        proposed = await step(
            Queries, information=_list(information), missing=_list(missing), queries_made_before=_list(searched)
        )
        queries = usable(proposed.queries, searched, QUERIES)
        if not queries:
            break
    notes = {"queries": searched, "information": information, "missing": missing, "unfounded": unfounded}
    return await answer(question, ask, settings, context, Further(information=information), notes)


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {' '.join(line.split())}" for line in lines) or "(none)"
