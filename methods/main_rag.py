"""MAIN-RAG: answer from each document, judge each answer, drop low scores (Chang et al. 2025; the HCQR paper).

As in that paper's appendix B.7 and figures 7 and 8, the question retrieves 15 documents. A predictor answers from each
alone, and a judge says Yes or No to whether the document holds what the question needs and supports the answer. A
document's score is log p(Yes) − log p(No) of the judge's first token. Documents that score at least the mean are
selected, best first.

If the likeliest first tokens include only one of Yes and No, the other is at most as likely as the least likely of
them, and as everything unlisted; this upper bound is used as its probability, and the document is counted as `bounded`.
If they include neither, or a reply is missing, the document has no score: it is left out of the mean and of the
context. Without any score the method fails; if some reply did not come, it fails as one without a reply.
"""

import asyncio
import math
from collections.abc import Mapping
from statistics import mean

from ..configs.methods import MainRagConfig
from ..data.types import Document, Question
from ..envs.plan import SearchPlan
from ..llms.base import SamplingParams
from .method import MISSING, Ask, Result, Search, StageError, answer_text
from .prompts import prompts_of

NO_JUDGEMENT = "no judgement"
"""The failure where documents were found, every reply came, and none gives a score."""
DOCUMENT_WORDS = 400
"""Words of a document shown to the predictor and the judge."""
FIRST_LOGPROBS = 20
"""Log-probabilities requested for the judge's first token."""
_MARKS = " \t\n▁Ġ*\"'"
"""Characters that a tokenizer or a model may add around the word."""
_MIN_PROBABILITY = 2.0**-24
"""The probability of everything unlisted, where rounding leaves 0."""


async def main_rag(question: Question, ask: Ask, search: Search, settings: MainRagConfig) -> Result:
    """Search, predict from every document, judge every prediction."""
    prompts = prompts_of("main_rag", settings)

    async def judgement_of(document: Document) -> tuple[float, bool] | None:
        prompt = prompts.predict(question, document, DOCUMENT_WORDS)
        answer = answer_text(await ask(prompt, SamplingParams(max_tokens=settings.max_tokens)))
        prompt = prompts.judge(question, document, DOCUMENT_WORDS, answer or "(empty)")
        reply = await ask(prompt, SamplingParams(max_tokens=1, first_logprobs=FIRST_LOGPROBS))
        return judge(reply.texts[0].first)

    documents = (await search(SearchPlan.of(question.text, k=settings.k))).documents
    judged = await asyncio.gather(*map(judgement_of, documents), return_exceptions=True)
    scores: dict[Document, float] = {}
    bounded, missing = 0, 0
    for document, judgement in zip(documents, judged, strict=True):
        if isinstance(judgement, StageError):
            missing += 1
        elif isinstance(judgement, BaseException):
            raise judgement
        elif judgement is not None:
            scores[document] = judgement[0]
            bounded += judgement[1]
    threshold = mean(scores.values()) if scores else None
    by_id = {document.id: score for document, score in scores.items()}
    notes = {"scores": by_id, "threshold": threshold, "bounded": bounded, "missing": missing}
    if documents and not scores:
        raise StageError(MISSING if missing else NO_JUDGEMENT, **notes)
    return Result(selected(scores), notes)


def selected(scores: Mapping[Document, float]) -> tuple[Document, ...]:
    """The documents that score at least the mean, best first; equal scores keep the given order."""
    threshold = mean(scores.values()) if scores else 0.0
    return tuple(sorted((item for item in scores if scores[item] >= threshold), key=lambda item: -scores[item]))


def judge(first: Mapping[str, float]) -> tuple[float, bool] | None:
    """log p(Yes) − log p(No) from the log-probabilities of the likeliest first tokens, and whether Yes or No is missing
    among them, so that the score is nearer to 0 than it should be; None where they hold neither.

    Spellings of one word (" Yes", "yes") count together.
    """
    finite = {token: value for token, value in first.items() if math.isfinite(value)}
    yes, no = _log_sum(finite, "yes"), _log_sum(finite, "no")
    if yes is None and no is None:
        return None
    unlisted = max(1.0 - sum(map(math.exp, finite.values())), _MIN_PROBABILITY)
    bound = min(*finite.values(), math.log(unlisted))
    return (bound if yes is None else yes) - (bound if no is None else no), yes is None or no is None


def _log_sum(first: Mapping[str, float], word: str) -> float | None:
    values = [value for token, value in first.items() if token.strip(_MARKS).casefold() == word]
    return max(values) + math.log(sum(math.exp(value - max(values)) for value in values)) if values else None
