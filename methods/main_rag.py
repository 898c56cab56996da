"""MAIN-RAG: answer from each document, judge each answer, drop low scores (Chang et al. 2025; the HCQR paper).

As in that paper's appendix B.7 and figures 7 and 8, the question retrieves 15 documents. A predictor answers from each
alone, and a judge says Yes or No to whether the document holds what the question needs and supports the answer. A
document's score is log p(Yes) − log p(No) of the judge's first token. Documents that score at least the mean are
selected, best first.

If the likeliest first tokens include only one of Yes and No, the other is at most as likely as the least likely of
them, and as everything unlisted; this upper bound is used as its probability, and the document is counted as `bounded`.
If they include neither, or a reply is missing, the document has no score: it is left out of the mean and of the
context, and listed in the notes. Without any score the method fails; if some reply did not come, it fails as one
without a reply.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import NamedTuple

from ..configs.methods import MainRagConfig
from ..data.types import Document, Question
from ..envs.plan import SearchPlan
from ..llms.base import Prompt, SamplingParams
from ..rewriters.case import case_text, one_line
from .method import MISSING, NO_RANKING, Outcome, PromptStep, SearchStep, Steps
from .reading import Notes, shortened, text_of, user_prompt

PREDICTOR_VERSION, JUDGE_VERSION = "main-rag-predictor-1", "main-rag-judge-1"
NO_JUDGEMENT = "no judgement"
"""The failure where documents were found, every reply came, and none gives a score."""
_YES, _NO = "yes", "no"
_MARKS = " \t\n▁Ġ*\"'"
"""Characters that a tokenizer or a model may add around the word."""
_MIN_PROBABILITY = 2.0**-24
"""The probability of everything unlisted, where rounding leaves 0."""

_PREDICTOR = (
    "Answer the question from this document alone. Write the answer and nothing else, without repeating the question "
    "or these instructions."
)
_CHOICE = "Write the letter of the best option alone."
_JUDGE = """You tell useful documents from noise. You get a document, a question, and an answer that a language model \
gave from this document. Two things must both be true:
(1) the document holds specific information that answers the question;
(2) the answer answers the question directly and rests on the document.
Documents may be off the subject, misleading or wrong. If (1) or (2) is not met, the document is noise: say No."""
_JUDGE_QUESTION = "Are both met? Answer with exactly one word: Yes or No."


class FirstTokenJudgement(NamedTuple):
    """The verdict in the judge's first token."""

    score: float
    bounded: bool
    """Whether Yes or No is missing among the likeliest tokens, so that the score is nearer to 0 than it should be."""


FIRST_LOGPROBS = 20
"""Log-probabilities requested for the judge's first token."""


@dataclass(frozen=True)
class MainRag:
    """One search; two prompts for each document."""

    settings: MainRagConfig
    name = "main_rag"
    versions = (PREDICTOR_VERSION, JUDGE_VERSION)

    def steps(self, question: Question) -> Steps:
        """Search, predict from every document, judge every prediction."""
        ranking = yield SearchStep(SearchPlan.of(question.text, k=self.settings.k))
        if ranking is None:
            return Outcome(failure=NO_RANKING)
        notes = Notes()
        texts = [shortened(one_line(document), self.settings.document_words) for document in ranking.documents]
        draw = SamplingParams(max_tokens=self.settings.max_tokens)
        prediction_replies = yield [PromptStep(predictor_prompt(question, text), draw) for text in texts]
        answers = [text_of(reply, notes, "prediction") if reply is not None else None for reply in prediction_replies]
        draw = SamplingParams(max_tokens=1, first_logprobs=FIRST_LOGPROBS)
        predicted = [index for index, answer in enumerate(answers) if answer is not None]
        judge_replies = yield [
            PromptStep(judge_prompt(question, texts[index], answers[index] or ""), draw) for index in predicted
        ]
        scores: list[float | None] = [None] * len(texts)
        unjudged = {
            document.id: "no prediction"
            for document, answer in zip(ranking.documents, answers, strict=True)
            if answer is None
        }
        bounded = 0
        for index, reply in zip(predicted, judge_replies, strict=True):
            judgement = judge(reply.texts[0].first) if reply is not None else None
            if judgement is None:
                reason = "no reply" if reply is None else f"said {reply.texts[0].text!r}"
                unjudged[ranking.documents[index].id] = reason
            else:
                scores[index] = judgement.score
                bounded += judgement.bounded
        notes.data |= {"predictions": answers, "bounded": bounded, "unjudged": unjudged, "scores": scores}
        if ranking.documents and not any(score is not None for score in scores):
            retryable = None in prediction_replies or None in judge_replies  # another try may get the missing reply
            return Outcome(notes=notes.data, failure=MISSING if retryable else NO_JUDGEMENT)
        notes.data["threshold"], context = keep(ranking.documents, scores)
        return Outcome(context, notes=notes.data)


def keep(documents: Sequence[Document], scores: Sequence[float | None]) -> tuple[float | None, tuple[Document, ...]]:
    """The threshold, which is the mean of the scores that are not None, and the documents at or above it, best first;
    equal scores keep the given order. Without any score, the threshold is None."""
    valid = [score for score in scores if score is not None]
    if not valid:
        return None, ()
    # `mean` is exact before it is rounded: equal scores are never below their own mean.
    threshold = mean(valid)
    pairs = [(score, document) for score, document in zip(scores, documents, strict=True) if score is not None]
    selected = [(score, document) for score, document in pairs if score >= threshold]
    return threshold, tuple(document for _, document in sorted(selected, key=lambda pair: -pair[0]))


def judge(first: Mapping[str, float]) -> FirstTokenJudgement | None:
    """log p(Yes) − log p(No) from the log-probabilities of the likeliest first tokens; None where they hold neither.

    Spellings of one word (" Yes", "yes") count together.
    """
    finite = {token: value for token, value in first.items() if math.isfinite(value)}
    yes, no = _log_sum(finite, _YES), _log_sum(finite, _NO)
    if yes is None and no is None:
        return None
    unlisted = max(1.0 - sum(map(math.exp, finite.values())), _MIN_PROBABILITY)
    bound = min(*finite.values(), math.log(unlisted))
    return FirstTokenJudgement(
        (bound if yes is None else yes) - (bound if no is None else no), yes is None or no is None
    )


def _log_sum(first: Mapping[str, float], word: str) -> float | None:
    values = [value for token, value in first.items() if token.strip(_MARKS).casefold() == word]
    if not values:
        return None
    maximum = max(values)
    return maximum + math.log(sum(math.exp(value - maximum) for value in values))


def predictor_prompt(question: Question, document: str) -> Prompt:
    """The prompt of the first agent (figure 7)."""
    task = f"{_PREDICTOR} {_CHOICE}" if question.options else _PREDICTOR
    content = f"{task}\n\nDocument: {document}\n\n{case_text(question)}"
    return user_prompt(content, PREDICTOR_VERSION)


def judge_prompt(question: Question, document: str, answer: str) -> Prompt:
    """The prompt of the second agent (figure 8)."""
    answer = answer or "(empty)"
    parts = [_JUDGE, f"Document: {document}", case_text(question), f"Answer: {answer}", _JUDGE_QUESTION]
    return user_prompt("\n\n".join(parts), JUDGE_VERSION)
