"""The plain baselines of the Misknow-RAG paper (section 3.2): DirectGen, CoT, and STD-RAG over one or several sources.

DirectGen lets the reader answer without passages; with `answers` off, the reader shared by all methods answers instead.
CoT lets it think step by step first (Wei et al. 2022). STD-RAG searches with the question as it is and lets the reader
read the results: K passages of one source, or K/2 of each of two ("2-way retrieval"). A merged knowledge base is one
source, made by `querylect data merge`.
"""

from ..configs.methods import CotConfig, ReadingConfig, StdRagConfig
from ..data.types import Question
from ..llms.base import SamplingParams
from ..llms.prose import marked_answers
from .method import Ask, Result, Search, StageError, answer_text, prompts_of
from .reading import answer, retrieve

NO_ANSWER = "no answer in the text"
"""The failure of a method whose model wrote a text without a marked answer."""


async def direct_gen(question: Question, ask: Ask, search: Search, settings: ReadingConfig) -> Result:
    """The reader alone."""
    return await answer(question, ask, settings)


async def cot(question: Question, ask: Ask, search: Search, settings: CotConfig) -> Result:
    """The reader alone, which thinks first and then answers on a separate line."""
    prompt = prompts_of("cot", settings).think(question)
    reply = await ask(prompt, SamplingParams(max_tokens=settings.max_tokens), role="reader")
    text = answer_text(reply)
    answers = marked_answers(text)
    if not answers:
        raise StageError(NO_ANSWER, text=text)
    return Result(notes={"text": text}, answer=answers[-1], cut=not reply.texts[0].finished)


async def std_rag(question: Question, ask: Ask, search: Search, settings: StdRagConfig) -> Result:
    """One search of each source, one prompt."""
    passages = await retrieve(search, [question.text], settings.sources, settings.k)
    return await answer(question, ask, settings, passages)
