"""The plain baselines of the Misknow-RAG paper (section 3.2): DirectGen, CoT, and STD-RAG over one or several sources.

DirectGen lets the reader answer without passages; with `answers` off, the reader shared by all methods answers instead.
CoT lets it think step by step first (Wei et al. 2022). STD-RAG searches with the question as it is and lets the reader
read the results: K passages of one source, or K/2 of each of two ("2-way retrieval"). A merged knowledge base is one
source, made by `querylect data merge`.
"""

from dataclasses import dataclass

from ..configs.methods import CotConfig, DirectGenConfig, StdRagConfig
from ..data.leakage import unique
from ..data.types import Question
from ..llms.base import Prompt, SamplingParams
from ..llms.prose import marked_answers
from ..rewriters.case import case_text
from .method import ANSWER, MISSING, NO_RANKING, Outcome, PromptStep, Steps
from .reading import NO_ANSWER, READER_VERSION, Notes, answered, pull, reader_prompt, text_of, user_prompt

COT_VERSION = "cot-1"
_COT = (
    "Answer the question below. Let's think step by step: write down what you know that bears on it and what follows "
    "from it, in a few sentences. Then end with one line of this form, in the language of the question:\nAnswer: {form}"
)
_SHORT, _CHOICE = "the answer alone, in a few words", "the letter of the right option alone"


@dataclass(frozen=True)
class DirectGen:
    """The reader alone."""

    settings: DirectGenConfig
    name = "direct_gen"
    versions = (READER_VERSION,)

    def steps(self, question: Question) -> Steps:
        """One prompt, or none where another reader answers."""
        if not self.settings.answers:
            return Outcome()
        return (yield from answered(reader_prompt(question, (), words=0), self.settings.max_tokens, Notes()))


@dataclass(frozen=True)
class Cot:
    """The reader alone, which thinks first and then answers on a separate line."""

    settings: CotConfig
    name = "cot"
    versions = (COT_VERSION,)

    def steps(self, question: Question) -> Steps:
        """One prompt. A text without a line "Answer: …" is a failure, not an answer."""
        notes = Notes()
        reply = yield PromptStep(
            cot_prompt(question), SamplingParams(max_tokens=self.settings.max_tokens), role="reader"
        )
        if reply is None:
            return Outcome(failure=MISSING)
        notes.data["text"] = text_of(reply, notes, ANSWER)
        answer = next(reversed(marked_answers(notes.data["text"])), None)
        return Outcome(answer=answer, notes=notes.data, failure="" if answer is not None else NO_ANSWER)


@dataclass(frozen=True)
class StdRag:
    """Search with the question and read the results."""

    settings: StdRagConfig
    name = "std_rag"
    versions = (READER_VERSION,)

    def steps(self, question: Question) -> Steps:
        """One search of each source, one prompt."""
        notes = Notes()
        pulled = yield from pull([question.text], self.settings.sources, self.settings.k)
        notes.pulled(pulled)
        if pulled.down is not None:
            return Outcome(notes=notes.data, failure=NO_RANKING)
        documents = unique(pulled.documents)
        notes.context(documents)
        plan = pulled.plan if documents == pulled.documents else None
        if not self.settings.answers:
            return Outcome(documents, plan, notes.data)
        prompt = reader_prompt(question, documents, self.settings.document_words)
        return (yield from answered(prompt, self.settings.max_tokens, notes, documents, plan))


def cot_prompt(question: Question) -> Prompt:
    """The chain-of-thought prompt."""
    task = _COT.format(form=_CHOICE if question.options else _SHORT)
    return user_prompt(f"{task}\n\n{case_text(question)}", COT_VERSION)
