"""Misknow-RAG: find out what knowledge is missing, and search for that (its paper, section 2 and appendix B).

A first search and a draft answer are followed by one structured judgement: what the passages are worth, whether
knowledge is missing, which, and a short query for each missing piece. If some is missing, a second search runs these
queries, in the same sources or in others, and drops passages already retrieved (equal MD5 of the contents). The reader
then answers from both searches, with the missing knowledge and the reasoning in its prompt.

Table 1 of the paper, at K = 4 passages, two per search: `first` and `second` are both Wikipedia, both the QA pairs, one
of each in either order, or both the merged knowledge base. Table 5, "w/o reasoning", is `reasoning=False`. As in the
paper, whose judge is DeepSeek-R1, the judge may be another model than the reader, which writes the draft and the
answer. A judgement that is not of its form, even after one repair, ends the search: the draft becomes the answer, and
the notes say so (`DRAFT_KEPT`).
"""

from dataclasses import replace

from pydantic import BaseModel

from ..configs.methods import MisknowConfig
from ..data.types import Question
from ..llms.base import SamplingParams
from ..llms.prose import split_thinking
from ..llms.structured import FormPrompt, instructions, worked
from .method import Ask, Result, Search, answer_text
from .prompts import numbered, prompts_of, shortened
from .reading import Further, answer, context, reader_prompt, retrieve, usable

QUERIES = 4
"""Maximum queries of the judgement."""
REASONING_WORDS = 200
"""Maximum words of reasoning in the final prompt."""
DRAFT_KEPT = "draft_kept"
"""The note of a question whose draft became the answer, because its judgement was not of the form."""


class Judgement(BaseModel):
    """Whether knowledge is missing, and which."""

    thought: str
    """What the passages hold, and whether the draft answer is right and complete."""
    judge: bool
    """Whether knowledge is missing."""
    missing_knowledge: list[str]
    query: list[str]
    """A query for each piece of missing knowledge."""


async def misknow(question: Question, ask: Ask, search: Search, settings: MisknowConfig) -> Result:
    """Search, draft, judge, search again where something is missing, answer."""
    passages = await retrieve(search, [question.text], settings.first, settings.first_k)
    prompt = reader_prompt(question, passages, settings)
    reply = await ask(prompt, SamplingParams(max_tokens=settings.max_tokens), role="reader")
    draft = answer_text(reply)
    prompts = prompts_of("misknow", settings)
    listed = numbered([passage.document for passage in passages], settings.document_words)
    examples = worked(prompts.examples, Judgement)
    shown = "\n\n".join(f"{example.case}\n{example.json}" for example in examples)
    request = f"{instructions(Judgement)}\n\n## Examples\n{shown}"
    form_prompt = FormPrompt(prompts.task(), prompts.case(question, listed, draft or "(empty)"), examples, request)
    outcome = await ask.structured(form_prompt, Judgement, SamplingParams(max_tokens=settings.judge_tokens))
    judgement = outcome.value
    if judgement is None:  # nobody could tell what is missing
        result = context(passages, {DRAFT_KEPT: True, "text": outcome.text, "problem": outcome.failure})
        return replace(result, answer=draft, cut=not reply.texts[0].finished) if settings.answers else result
    queries = usable(judgement.query, [question.text], QUERIES) if judgement.judge else []
    notes: dict[str, object] = {"draft": draft, "judgement": judgement.model_dump(), "queries": queries}
    more = await retrieve(search, queries, settings.second, settings.second_k, passages) if queries else []
    thoughts = f"{split_thinking(outcome.text).thinking} {judgement.thought.strip()}".strip()
    reasoning = shortened(thoughts, REASONING_WORDS) if settings.reasoning else ""
    missing = judgement.missing_knowledge if judgement.judge else []
    return await answer(question, ask, settings, passages, Further(missing, reasoning, more), notes)
