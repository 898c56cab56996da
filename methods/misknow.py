"""Misknow-RAG: find out what knowledge is missing, and search for that (its paper, section 2 and appendix B).

A first search and a draft answer are followed by one structured judgement: what the passages are worth, whether
knowledge is missing, which, and a short query for each missing piece. If some is missing, a second search runs these
queries, in the same sources or in others, and drops passages already retrieved (equal MD5 of the contents). The reader
then answers from both searches, with the missing knowledge and the reasoning in its prompt.

Table 1 of the paper, at K = 4 passages, two per search: `first` and `second` are both Wikipedia, both the QA pairs, one
of each in either order, or both the merged knowledge base. Table 5, "w/o reasoning", is `reasoning=False`. As in the
paper, whose judge is DeepSeek-R1, the judge may be another model than the reader, which writes the draft and the answer
(`PromptStep.role`). A judgement that is not of its form, even after one repair, ends the search: the draft becomes the
answer, and the notes say so (`DRAFT_KEPT`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from ..configs.methods import MisknowConfig
from ..data.leakage import unique
from ..data.types import Document, Question
from ..llms.base import LlmResponse, Prompt, SamplingParams
from ..llms.prose import split_thinking
from ..llms.structured import AskForm, FormPrompt, Structured, WorkedExample, instructions
from ..rewriters.case import history_text, question_text
from .method import ANSWER, MISSING, NO_RANKING, Outcome, PromptStep, Steps
from .reading import (
    NOTHING_FURTHER,
    READER_VERSION,
    Further,
    Notes,
    Pulled,
    answered,
    numbered,
    pull,
    reader_prompt,
    shortened,
    text_of,
    usable,
)

VERSION = "misknow-judge-2"
"""The version of the judgement's wording; reading.py has the reader's."""
QUERIES = 4
"""Maximum queries of the judgement."""
REASONING_WORDS = 200
"""Maximum words of reasoning in the final prompt."""
DRAFT_KEPT = "draft_kept"
"""The note of a question whose draft became the answer, because its judgement was not of the form."""

_JUDGE = """You check whether a question can be answered from the passages that were found for it.
You get the question, the passages and a first answer. Go step by step:
1. Compare the question and the first answer with the passages. Is the answer complete, and do the passages hold what it
takes? Look out for passages that contradict each other and for claims that no passage bears out.
2. If something is missing, name each missing piece of knowledge, and write a query for each: short, precise, and about
the main subject of the question.
3. Write all of it down under these keys:
- thought: what the passages are worth for the question, and whether the first answer is right
- judge: true if knowledge is missing, false if the passages suffice
- missing_knowledge: the missing pieces, an empty list if there are none
- query: the queries in the same order, in the language of the question"""


class Judgement(BaseModel):
    """Whether knowledge is missing, and which."""

    thought: str
    """What the passages hold, and whether the draft answer is right and complete."""
    judge: bool
    """Whether knowledge is missing."""
    missing_knowledge: list[str]
    query: list[str]
    """A query for each piece of missing knowledge."""


_EXAMPLES = (
    WorkedExample(
        "Question: Who designed the bridge at Avon Gorge, and when was it opened?\n"
        "Passages: [1] Clifton Suspension Bridge: It spans the Avon Gorge and was designed by Isambard Kingdom "
        "Brunel.\nFirst answer: Isambard Kingdom Brunel, 1831",
        Judgement(
            thought="Passage 1 bears out the designer. No passage says when the bridge was opened, so 1831 is "
            "unfounded.",
            judge=True,
            missing_knowledge=["the year in which the bridge was opened"],
            query=["Clifton Suspension Bridge opening year"],
        ),
    ),
    WorkedExample(
        "Question: What was Oslo called in 1900?\n"
        "Passages: [1] Oslo: The city was called Kristiania until 1925.\n"
        "First answer: Kristiania",
        Judgement(
            thought="Passage 1 gives the name until 1925, which covers 1900. The answer is right.",
            judge=False,
            missing_knowledge=[],
            query=[],
        ),
    ),
)


@dataclass(frozen=True)
class Misknow:
    """The method."""

    settings: MisknowConfig
    name = "misknow"
    versions = (VERSION, READER_VERSION)

    def steps(self, question: Question) -> Steps:
        """Search, draft, judge, search again where something is missing, answer."""
        notes = Notes()
        first = yield from pull([question.text], self.settings.first, self.settings.first_k)
        notes.pulled(first)
        if first.down is not None:
            return Outcome(notes=notes.data, failure=NO_RANKING)
        passages, extra_passages = unique(first.documents), tuple[Document, ...]()
        draft: LlmResponse | None = yield PromptStep(
            self._reader_prompt(question, passages, NOTHING_FURTHER),
            SamplingParams(max_tokens=self.settings.max_tokens),
            role="reader",
        )
        if draft is None:
            return Outcome(notes=notes.data, failure=MISSING)
        notes.add("drafts", text_of(draft, notes, "draft"))
        answer: Structured[Judgement] = yield AskForm(
            judge_prompt(question, numbered(passages, self.settings.document_words), notes.data["drafts"][-1]),
            Judgement,
            SamplingParams(max_tokens=self.settings.judge_tokens),
        )
        judgement = answer.value
        if judgement is None:
            failure = notes.unread("judgement", answer)
            if failure == MISSING:
                return Outcome(notes=notes.data, failure=failure)
            return self._without_judgement(notes, passages, first)
        notes.add("judgements", judgement.model_dump())
        queries = usable(judgement.query, [question.text], QUERIES) if judgement.judge else []
        notes.add("queries", queries)
        if queries:
            further = yield from pull(queries, self.settings.second, self.settings.second_k)
            notes.pulled(further)
            if further.down is not None:
                return Outcome(notes=notes.data, failure=NO_RANKING)
            extra_passages = unique((*passages, *further.documents))[len(passages) :]
        documents = (*passages, *extra_passages)
        notes.context(documents)
        plan = first.plan if documents == first.documents else None
        if not self.settings.answers:
            return Outcome(documents, plan, notes.data)
        reasoning = shortened(_reasoning(answer.text, judgement), REASONING_WORDS) if self.settings.reasoning else ""
        missing = judgement.missing_knowledge if judgement.judge else []
        prompt = self._reader_prompt(question, passages, Further(missing, reasoning, extra_passages))
        return (yield from answered(prompt, self.settings.max_tokens, notes, documents, plan))

    def _without_judgement(self, notes: Notes, documents: tuple[Document, ...], first: Pulled) -> Outcome:
        """The outcome where nobody could tell what is missing: the draft is the answer."""
        notes.context(documents)
        notes.data[DRAFT_KEPT] = True
        if "draft" in notes.data.get("cut", ()):
            notes.add("cut", ANSWER)
        plan = first.plan if documents == first.documents else None
        return Outcome(documents, plan, notes.data, answer=notes.data["drafts"][-1] if self.settings.answers else None)

    def _reader_prompt(self, question: Question, passages: Sequence[Document], further: Further) -> Prompt:
        return reader_prompt(question, passages, self.settings.document_words, further)


def judge_prompt(question: Question, passages: str, draft: str) -> FormPrompt:
    """The prompt that asks for missing knowledge (figure 4)."""
    case = [
        f"{history_text(question)}## Question\n{question_text(question)}",
        f"## Passages\n{passages}",
        f"## First answer\n{draft or '(empty)'}",
    ]
    examples = "\n\n".join(f"{example.case}\n{example.json}" for example in _EXAMPLES)
    request = f"{instructions(Judgement)}\n\n## Examples\n{examples}"
    return FormPrompt(_JUDGE, "\n\n".join(case), VERSION, _EXAMPLES, request, False)


def _reasoning(text: str, judgement: Judgement) -> str:
    """The thinking before a judgement, if the model thinks, and the judgement's `thought`."""
    return " ".join(part for part in (split_thinking(text).thinking.strip(), judgement.thought.strip()) if part)
