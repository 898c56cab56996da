"""QA-RAG: search with a written answer beside the question (Kim and Min 2024; seed 002, appendix B, item 3).

The original searches twice, with the question alone and with the answer alone, and a cross-encoder keeps the best of
both sets: `rerank=True`. Seed 002 compares with the answer alone and no cross-encoder, which is the default. The
original's answers come from a fine-tuned model; here the model answers as it stands, as in seed 002.
"""

from dataclasses import dataclass, field

from ..configs.methods import QaRagConfig
from ..data.duplicates import unique
from ..data.types import Question
from ..envs.plan import SearchPlan, is_unicode
from ..llms.base import Draw, Prompt
from .levels import question_text
from .method import MISSING, NO_RANKING, Ask, Outcome, Score, Search, Steps
from .reading import Notes, said, text_of

VERSION = "qa-rag-1"
_TASK = (
    "Answer the question below as an expert would in a few sentences, in the language of the question. Write the "
    "answer and nothing else."
)
EMPTY = "empty answer"
"""The failure of a method that has nothing to search with."""


@dataclass(frozen=True)
class QaRag:
    """One written answer and one or two searches."""

    settings: QaRagConfig
    name: str = field(default="qa_rag", init=False)
    versions: tuple[str, ...] = field(default=(VERSION,), init=False)

    def steps(self, question: Question) -> Steps:
        """The notes hold the written answer and, with `rerank`, the scores of what is kept."""
        notes = Notes()
        reply = yield Ask(answer_prompt(question), Draw(max_tokens=self.settings.max_tokens))
        if reply is None:
            return Outcome(failure=MISSING)
        answer = text_of(reply, notes, "written answer")
        notes.said["written"] = answer
        if not answer or not is_unicode(answer):
            return Outcome(notes=notes.said, failure=EMPTY)
        texts = [answer, question.text] if self.settings.rerank else [answer]
        found = yield [Search(SearchPlan.of(text, k=self.settings.k), self.settings.source) for text in texts]
        if None in found:
            return Outcome(notes=notes.said, failure=NO_RANKING)
        if not self.settings.rerank:
            return Outcome(found[0].documents, found[0].plan, notes.said)
        by_answer, by_question = found
        both = unique((*by_question.documents, *by_answer.documents))
        if not both:
            return Outcome(notes=notes.said)
        scores = yield Score(question.text, both)
        order = sorted(range(len(both)), key=lambda place: -scores[place])[: self.settings.k]
        notes.said["scores"] = [float(scores[place]) for place in order]
        return Outcome(tuple(both[place] for place in order), notes=notes.said)


def answer_prompt(question: Question) -> Prompt:
    """What the model is asked that writes the answer to search with."""
    return said(f"{_TASK}\n\nQuestion: {question_text(question)}", VERSION)
