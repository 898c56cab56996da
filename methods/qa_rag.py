"""QA-RAG: search with a written answer beside the question (Kim and Min 2024; the QB-RAG paper, appendix B, item 3).

The original searches twice, with the question alone and with the answer alone, and a cross-encoder keeps the best of
both sets. The QB-RAG paper compares with the answer alone and no cross-encoder, as here.
The original's answers come from a fine-tuned model; here the model answers as it stands, as in the QB-RAG paper.
"""

from dataclasses import dataclass

from ..configs.methods import QaRagConfig
from ..data.types import Question
from ..envs.plan import SearchPlan, is_unicode
from ..llms.base import Prompt, SamplingParams
from ..llms.prose import passage_of
from ..rewriters.case import case_text
from .method import MISSING, Outcome, PromptStep, Steps
from .reading import Notes, text_of, user_prompt
from .rewritten import searched

VERSION = "qa-rag-1"
_TASK = (
    "Answer the question below as an expert would in a few sentences, in the language of the question. Write the "
    "answer and nothing else."
)
EMPTY = "empty answer"
"""The failure of a method that has nothing to search with."""


@dataclass(frozen=True)
class QaRag:
    """One written answer and one search."""

    settings: QaRagConfig
    name = "qa_rag"
    versions = (VERSION,)

    def steps(self, question: Question) -> Steps:
        """Write an answer, search with it. The notes hold the answer."""
        notes = Notes()
        reply = yield PromptStep(answer_prompt(question), SamplingParams(max_tokens=self.settings.max_tokens))
        if reply is None:
            return Outcome(failure=MISSING)
        notes.data["written"] = text_of(reply, notes, "written answer")
        passage = passage_of(reply.texts[0].text)
        answer = passage.answer
        if not answer or not is_unicode(answer):
            return Outcome(notes=notes.data, failure=passage.failure or EMPTY)
        return (yield from searched(SearchPlan.of(answer, k=self.settings.k), notes.data))


def answer_prompt(question: Question) -> Prompt:
    """The prompt for the answer to search with."""
    return user_prompt(f"{_TASK}\n\n{case_text(question)}", VERSION)
