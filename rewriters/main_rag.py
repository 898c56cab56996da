"""MAIN-RAG: one agent answers from each document, another judges it, the worse half goes (Chang et al. 2025; seed 000).

Appendix B.7 and figures 7 and 8 of seed 000: of 15 documents found with the question, each is given alone to a
predictor, and a judge says Yes or No to whether the document holds what the question needs and bears the answer out.
The score of a document is log p(Yes) − log p(No) of the judge's first token. Kept are those at or above the mean, or,
as in the original, the mean less `deviations` standard deviations; the best score stands first.

Where the likeliest first tokens hold only one of Yes and No, the other is at most as likely as the least of them, and
as all that is not listed; it is taken to be just that likely, and the document is counted as `bounded`. Where they hold
neither, or a reply is missing, the document has no score: it is left out of the mean and of the context, and named in
the notes. Without any score the method fails, as one without a reply where some did not come.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, pstdev
from typing import NamedTuple

from ..configs.methods import MainRagConfig
from ..data.types import Document, Question
from ..envs.plan import SearchPlan
from ..llms.base import Draw, Prompt
from .levels import one_line, question_text
from .method import MISSING, NO_RANKING, Ask, Outcome, Search, Steps
from .reading import Notes, said, shortened, text_of

PREDICTOR_VERSION, JUDGE_VERSION = "main-rag-predictor-1", "main-rag-judge-1"
NO_JUDGEMENT = "no judgement"
"""The failure where documents were found, every reply came, and none gives a score."""
_YES, _NO = "yes", "no"
_MARKS = " \t\n▁Ġ*\"'"
"""What a tokenizer or a model may write around the word."""
_LEAST = 2.0**-24
"""The probability of all that is not listed, where rounding leaves none."""

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
_ASKED = "Are both met? Answer with exactly one word: Yes or No."


class Judged(NamedTuple):
    """What the judge's first token says."""

    score: float
    bounded: bool
    """Whether Yes or No is not among the likeliest tokens, so that the score is nearer to 0 than it should be."""


@dataclass(frozen=True)
class MainRag:
    """One search; two prompts for each document."""

    settings: MainRagConfig
    name: str = field(default="main_rag", init=False)
    versions: tuple[str, ...] = field(default=(PREDICTOR_VERSION, JUDGE_VERSION), init=False)

    def steps(self, question: Question) -> Steps:
        """Search, predict from every document, judge every prediction."""
        found = yield Search(SearchPlan.of(question.text, k=self.settings.k), self.settings.source)
        if found is None:
            return Outcome(failure=NO_RANKING)
        notes = Notes()
        texts = [shortened(one_line(document), self.settings.document_words) for document in found.documents]
        draw = Draw(max_tokens=self.settings.max_tokens)
        predicted = yield [Ask(predictor_prompt(question, text), draw) for text in texts]
        answers = [text_of(reply, notes, "prediction") if reply is not None else None for reply in predicted]
        draw = Draw(max_tokens=1, first_logprobs=self.settings.first_logprobs)
        asked = [
            (document.id, place, Ask(judge_prompt(question, text, answer), draw))
            for place, (document, text, answer) in enumerate(zip(found.documents, texts, answers, strict=True))
            if answer is not None
        ]
        verdicts = yield [ask for _, _, ask in asked]
        unjudged = {
            document.id: "no prediction"
            for document, answer in zip(found.documents, answers, strict=True)
            if answer is None
        }
        scores: list[float | None] = [None] * len(texts)
        bounded = 0
        for (name, place, _), verdict in zip(asked, verdicts, strict=True):
            judged = judge(verdict.texts[0].first) if verdict is not None else None
            if judged is None:
                unjudged[name] = "no reply" if verdict is None else f"said {verdict.texts[0].text!r}"
            else:
                scores[place] = judged.score
                bounded += judged.bounded
        notes.said |= {"predictions": answers, "bounded": bounded, "unjudged": unjudged}
        notes.said["scores"] = scores
        if found.documents and not any(score is not None for score in scores):
            lost = None in predicted or None in verdicts  # of these another try may have one
            return Outcome(notes=notes.said, failure=MISSING if lost else NO_JUDGEMENT)
        notes.said["threshold"], kept = keep(found.documents, scores, self.settings.deviations)
        return Outcome(kept, notes=notes.said)


def keep(
    documents: Sequence[Document], scores: Sequence[float | None], deviations: float = 0.0
) -> tuple[float | None, tuple[Document, ...]]:
    """The threshold, and the documents at or above it, best first; equal scores in the given order.

    The mean and the population's standard deviation are those of the scores there are; without any the threshold is
    None.
    """
    known = [score for score in scores if score is not None]
    if not known:
        return None, ()
    # `mean` is exact before it is rounded: equal scores are never below their own mean.
    threshold = mean(known) - deviations * pstdev(known)
    pairs = [(score, one) for score, one in zip(scores, documents, strict=True) if score is not None]
    kept = [(score, one) for score, one in pairs if score >= threshold]
    return threshold, tuple(one for _, one in sorted(kept, key=lambda pair: -pair[0]))


def judge(first: Mapping[str, float]) -> Judged | None:
    """log p(Yes) − log p(No) from the log-probabilities of the likeliest first tokens; None where they hold neither.

    Spellings of one word (" Yes", "yes") count together.
    """
    listed = {token: value for token, value in first.items() if math.isfinite(value)}
    yes, no = _together(listed, _YES), _together(listed, _NO)
    if yes is None and no is None:
        return None
    unlisted = max(1.0 - sum(map(math.exp, listed.values())), _LEAST)
    other = min(*listed.values(), math.log(unlisted))
    return Judged((other if yes is None else yes) - (other if no is None else no), yes is None or no is None)


def _together(first: Mapping[str, float], word: str) -> float | None:
    values = [value for token, value in first.items() if token.strip(_MARKS).casefold() == word]
    if not values:
        return None
    top = max(values)
    return top + math.log(sum(math.exp(value - top) for value in values))


def predictor_prompt(question: Question, document: str) -> Prompt:
    """What the first agent is asked (figure 7)."""
    task = f"{_PREDICTOR} {_CHOICE}" if question.options else _PREDICTOR
    return said(f"{task}\n\nDocument: {document}\n\nQuestion: {question_text(question)}", PREDICTOR_VERSION)


def judge_prompt(question: Question, document: str, answer: str) -> Prompt:
    """What the second agent is asked (figure 8)."""
    parts = [_JUDGE, f"Document: {document}", f"Question: {question_text(question)}", f"Answer: {answer or '(empty)'}"]
    return said("\n\n".join([*parts, _ASKED]), JUDGE_VERSION)
