"""MIGRES: search for what is missing, step by step, each step a prompt of its own (Wang et al. 2025).

The pipeline that Misknow-RAG replaces by one judgement. A round has four steps: *filter* the new passages for those
that can help; *extract* their information, each piece with the passage that supports it; *judge* whether all
information answers the question, and what is missing; write *queries* for what is missing, and search with them. A
later search drops passages already retrieved. The method stops when nothing is missing, after three searches, or
when there is no new query; then the reader answers from the gathered information and its source passages.

The Misknow-RAG paper (section 3.2) runs it with the backbone of the other methods and specifies only these steps; the
prompts are this project's own. A piece of information that cites no passage of its prompt is dropped and counted.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel

from ..configs.methods import MigresConfig
from ..data.leakage import unique
from ..data.types import Document, Question
from ..llms.base import SamplingParams
from ..llms.structured import AskForm, FormPrompt, Structured, WorkedExample
from ..rewriters.case import history_text, question_text
from .method import NO_RANKING, Outcome, Steps
from .reading import READER_VERSION, Further, Notes, answered, numbered, pull, reader_prompt, usable

VERSION = "migres-1"
ROUNDS = 3
"""Maximum searches, including the first."""
QUERIES = 4
"""Maximum queries per round."""
FORM_TOKENS = 512
"""Maximum tokens of each step's reply."""


class Kept(BaseModel):
    """Numbers of the passages that can help."""

    passages: list[int]


class Piece(BaseModel):
    """One piece of information and where it stands."""

    passage: int
    information: str


class Extracted(BaseModel):
    """What the passages say that bears on the question."""

    pieces: list[Piece]


class Judged(BaseModel):
    """Whether what is known suffices."""

    sufficient: bool
    missing: list[str]


class Queries(BaseModel):
    """What to search for next."""

    queries: list[str]


Form = TypeVar("Form", bound=BaseModel)

_FILTER = (
    "Which of these passages can help to answer the question, in whole or in part? Give their numbers, an empty list "
    "if none can."
)
_EXTRACT = (
    "Write down every piece of information in these passages that helps to answer the question, in a sentence that can "
    "be understood alone, with the number of the passage that says it. Add nothing that no passage says."
)
_JUDGE = (
    "Does the information suffice to answer the question? If it does not, name each piece of information that is "
    "missing; if it does, give an empty list."
)
_QUERIES = (
    "Write a simple query for each piece of missing information, in the language of the question: short, about one "
    "thing, and other than the queries that were made before."
)

_HEADINGS = {
    "passages": "Passages",
    "information": "Information",
    "missing": "Missing",
    "previous": "Queries made before",
}

_EXAMPLE_QUESTION = "## Question\nWho wrote Emma, and in which year did she die?"
_EXAMPLE_PASSAGES = "## Passages\n[1] Emma: A novel by Jane Austen.\n[2] Bath: A city in Somerset.\n\n"
_EXAMPLE_INFORMATION = "## Information\n- Jane Austen wrote Emma.\n\n"
_EXAMPLES: Mapping[type[BaseModel], WorkedExample] = {
    Kept: WorkedExample(_EXAMPLE_PASSAGES + _EXAMPLE_QUESTION, Kept(passages=[1])),
    Extracted: WorkedExample(
        _EXAMPLE_PASSAGES + _EXAMPLE_QUESTION,
        Extracted(pieces=[Piece(passage=1, information="Jane Austen wrote Emma.")]),
    ),
    Judged: WorkedExample(
        _EXAMPLE_INFORMATION + _EXAMPLE_QUESTION,
        Judged(sufficient=False, missing=["the year in which Jane Austen died"]),
    ),
    Queries: WorkedExample(
        _EXAMPLE_INFORMATION
        + "## Missing\n- the year in which Jane Austen died\n\n## Queries made before\n- Who wrote Emma?\n\n"
        + _EXAMPLE_QUESTION,
        Queries(queries=["Jane Austen year of death"]),
    ),
}


@dataclass(frozen=True)
class Migres:
    """The method."""

    settings: MigresConfig
    name = "migres"
    versions = (VERSION, READER_VERSION)

    def steps(self, question: Question) -> Steps:
        """Rounds of searching, filtering, extracting, judging and writing queries; then the answer."""
        notes, information, previous_queries = Notes(), list[str](), list[str]()
        visited, context = tuple[Document, ...](), tuple[Document, ...]()
        queries, missing = [question.text], list[str]()
        for remaining in reversed(range(ROUNDS)):
            previous_queries += queries
            notes.add("queries", queries)
            pulled = yield from pull(queries, self.settings.sources, self.settings.k)
            notes.pulled(pulled)
            if pulled.down is not None:
                return Outcome(notes=notes.data, failure=NO_RANKING)
            old_count = len(visited)
            visited = unique((*visited, *pulled.documents))
            try:
                useful = yield from self._filter(question, visited[old_count:], notes)
                supporting, pieces = yield from self._extract(question, useful, notes)
                context, information = (*context, *supporting), [*information, *pieces]
                judgement = yield from self._ask_form(Judged, question, _JUDGE, notes, information=_list(information))
                missing = [] if judgement.sufficient else judgement.missing
                queries = []
                if remaining and not judgement.sufficient:
                    parts = {"information": information, "missing": missing, "previous": previous_queries}
                    listed = {name: _list(lines) for name, lines in parts.items()}
                    answer = yield from self._ask_form(Queries, question, _QUERIES, notes, **listed)
                    queries = usable(answer.queries, previous_queries, QUERIES)
            except _FormError as error:
                return Outcome(notes=notes.data, failure=error.failure)
            if not queries:
                break
        notes.data |= {"information": information, "missing": missing}
        notes.context(context)
        if not self.settings.answers:
            return Outcome(context, notes=notes.data)
        prompt = reader_prompt(question, context, self.settings.document_words, Further(information=information))
        return (yield from answered(prompt, self.settings.max_tokens, notes, context))

    def _filter(
        self, question: Question, new: tuple[Document, ...], notes: Notes
    ) -> Generator[AskForm, Structured[Kept], tuple[Document, ...]]:
        if not new:
            return ()
        answer = yield from self._ask_form(Kept, question, _FILTER, notes, passages=self._numbered(new))
        return tuple(document for number, document in enumerate(new, start=1) if number in answer.passages)

    def _extract(
        self, question: Question, useful: tuple[Document, ...], notes: Notes
    ) -> Generator[AskForm, Structured[Extracted], tuple[tuple[Document, ...], list[str]]]:
        """The passages that support an extracted piece of information, and these pieces."""
        if not useful:
            return (), []
        answer = yield from self._ask_form(Extracted, question, _EXTRACT, notes, passages=self._numbered(useful))
        grounded = [piece for piece in answer.pieces if 1 <= piece.passage <= len(useful) and piece.information.strip()]
        notes.add("unfounded", len(answer.pieces) - len(grounded))
        cited = {piece.passage for piece in grounded}
        supporting = tuple(document for number, document in enumerate(useful, start=1) if number in cited)
        return supporting, [piece.information.strip() for piece in grounded]

    def _numbered(self, passages: Sequence[Document]) -> str:
        return numbered(passages, self.settings.document_words)

    def _ask_form(
        self, form: type[Form], question: Question, task: str, notes: Notes, **fields: str
    ) -> Generator[AskForm, Structured[Form], Form]:
        """The reply to one step. Raises _FormError where there is none, or none of that form."""
        sections = [f"## {_HEADINGS[name]}\n{text}" for name, text in fields.items()]
        case = "\n\n".join([*sections, f"{history_text(question)}## Question\n{question_text(question)}"])
        prompt = FormPrompt(task, case, VERSION, (_EXAMPLES[form],), request_last=False)
        answer = yield AskForm(prompt, form, SamplingParams(max_tokens=FORM_TOKENS))
        if answer.value is None:
            raise _FormError(notes.unread(form.__name__, answer))
        return answer.value


class _FormError(Exception):
    """A step without a usable reply; never leaves this file."""

    def __init__(self, failure: str) -> None:
        super().__init__(failure)
        self.failure = failure


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {' '.join(line.split())}" for line in lines) or "(none)"
