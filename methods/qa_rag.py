"""QA-RAG: search with a written answer beside the question (Kim and Min 2024; the QB-RAG paper, appendix B, item 3).

The original searches twice, with the question alone and with the answer alone, and a cross-encoder keeps the best of
both sets. The QB-RAG paper compares with the answer alone and no cross-encoder, as here.
The original's answers come from a fine-tuned model; here the model answers as it stands, as in the QB-RAG paper.
"""

from ..configs.methods import QaRagConfig
from ..data.types import Question
from ..envs.plan import SearchPlan
from ..llms.base import SamplingParams
from ..llms.prose import passage_of
from .method import Ask, Result, Search, StageError, prompts_of


async def qa_rag(question: Question, ask: Ask, search: Search, settings: QaRagConfig) -> Result:
    """One written answer and one search with it."""
    prompt = prompts_of("qa_rag", settings).answer(question)
    reply = await ask(prompt, SamplingParams(max_tokens=settings.max_tokens))
    passage = passage_of(reply.texts[0].text)
    if passage.failure:
        raise StageError(passage.failure, written=reply.texts[0].text)
    ranking = await search(SearchPlan.of(passage.answer, k=settings.k))
    return Result(ranking.documents, {"written": passage.answer})
