"""Misknow-RAG: find out what knowledge is missing, and search for that (seed 004, section 2 and appendix B).

A first search and a draft answer; then one judgement, in one structured reply: what the passages are worth, whether
knowledge is missing, which, and a short query for each piece of it. Where some is missing, a second search is made with
those queries, in the same sources or in others; a passage that was seen already, told by the MD5 of its contents, is
left out. The reader then answers from both, the missing knowledge and the reasoning beside them.

Table 1 of the paper, at K = 4 passages, two for each search: `first` and `second` are both the Wikipedia, both the QA
pairs, the one and the other in either order, or both the merged knowledge base. Table 5, "w/o reasoning", is
`reasoning=False`. As in the paper, whose judge is DeepSeek-R1, the model that judges may be another than the reader,
who writes the draft and the answer (`Ask.role`).
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel

from ..configs.methods import MisknowConfig
from ..data.duplicates import unique
from ..data.types import Document, Question
from ..llms.base import Draw, Prompt, Reply
from ..llms.structured import Example, FormPrompt, Structured, instructions, parted
from .levels import question_text
from .method import MISSING, NO_RANKING, Ask, AskForm, Outcome, Steps
from .reading import (
    READER_VERSION,
    Further,
    Notes,
    answered,
    numbered,
    pull,
    reader_prompt,
    shortened,
    text_of,
    usable,
)

VERSION = "misknow-judge-1"
"""Of the judgement's wording; the reader's is that of reading.py."""

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
    """The reply of figure 4, under the paper's keys."""

    thought: str
    """What the passages hold, and whether the draft answer is right and complete."""
    judge: bool
    """Whether knowledge is missing."""
    missing_knowledge: list[str]
    query: list[str]
    """A query for each piece of missing knowledge."""


_EXAMPLES = (
    Example(
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
    Example(
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
    name: str = field(default="misknow", init=False)
    versions: tuple[str, ...] = field(default=(VERSION, READER_VERSION), init=False)

    def steps(self, question: Question) -> Steps:
        """Search, draft, judge, search again where something is missing, answer."""
        notes, asked, missing, reasoning = Notes(), [question.text], list[str](), ""
        first = yield from pull(asked, self.settings.first, self.settings.first_k)
        notes.pulled(first)
        if first.down is not None:
            return Outcome(notes=notes.said, failure=NO_RANKING)
        passages, more = unique(first.documents), tuple[Document, ...]()
        for _ in range(self.settings.rounds):
            prompt = self._shown(question, passages, Further(missing, reasoning, more))
            draft: Reply | None = yield Ask(prompt, Draw(max_tokens=self.settings.max_tokens), role="reader")
            if draft is None:
                return Outcome(notes=notes.said, failure=MISSING)
            notes.add("drafts", text_of(draft, notes, "draft"))
            judged = yield from self._judge(question, (*passages, *more), notes.said["drafts"][-1])
            if judged.value is None:
                return Outcome(notes=notes.said, failure=notes.unread("judgement", judged))
            notes.add("judgements", judged.value.model_dump())
            reasoning = shortened(_reasoning(judged), self.settings.reasoning_words) if self.settings.reasoning else ""
            missing += judged.value.missing_knowledge if judged.value.judge else []
            queries = usable(judged.value.query, asked, self.settings.queries) if judged.value.judge else []
            notes.add("queries", queries)
            if not queries:
                break
            asked += queries
            further = yield from pull(queries, self.settings.second, self.settings.second_k)
            notes.pulled(further)
            if further.down is not None:
                return Outcome(notes=notes.said, failure=NO_RANKING)
            more = unique((*passages, *more, *further.documents))[len(passages) :]
        documents = (*passages, *more)
        notes.context(documents)
        plan = first.plan if documents == first.documents else None
        if not self.settings.answers:
            return Outcome(documents, plan, notes.said)
        prompt = self._shown(question, passages, Further(missing, reasoning, more))
        return (yield from answered(prompt, self.settings.max_tokens, notes, documents, plan))

    def _shown(self, question: Question, passages: Sequence[Document], further: Further) -> Prompt:
        return reader_prompt(question, passages, self.settings.document_words, further)

    def _judge(
        self, question: Question, passages: Sequence[Document], draft: str
    ) -> Generator[AskForm, Structured[Judgement], Structured[Judgement]]:
        prompt = judge_prompt(question, numbered(passages, self.settings.document_words), draft)
        judged = yield AskForm(prompt, Judgement, Draw(max_tokens=self.settings.judge_tokens))
        return judged


def judge_prompt(question: Question, passages: str, draft: str) -> FormPrompt:
    """What the model is asked that looks for missing knowledge (figure 4)."""
    case = [
        f"## Question\n{question_text(question)}",
        f"## Passages\n{passages}",
        f"## First answer\n{draft or '(empty)'}",
    ]
    shown = "\n\n".join(f"{example.case}\n{example.json}" for example in _EXAMPLES)
    request = f"{instructions(Judgement)}\n\n## Examples\n{shown}"
    return FormPrompt(_JUDGE, "\n\n".join(case), VERSION, _EXAMPLES, request, request_last=False)


def _reasoning(judged: Structured[Judgement]) -> str:
    """What a thinking model wrote before its judgement, and its thought about the first answer."""
    assert judged.value is not None, "only a judgement has a thought"
    thinking, _ = parted(judged.text)
    return " ".join(part for part in (thinking.strip(), judged.value.thought.strip()) if part)
