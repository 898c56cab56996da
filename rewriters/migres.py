"""MIGRES: search for what is missing, step by step, each step a prompt of its own (Wang et al. 2025; seed 004, 3.2).

The pipeline that Misknow-RAG replaces by one judgement. A round: *filter* the new passages, keeping those that can
help; *extract* the information in them, each piece with the passage that bears it out; *judge* whether all of it
answers the question, and what is missing; write *queries* for what is missing, and search with them. A later search
leaves out passages that were seen before. It ends when nothing is missing, after `rounds` searches, or where there is
no new query; then the reader answers from the information gathered and the passages that it came from.

Seed 004 runs it with the backbone that the other methods have and says no more of it than these steps; the prompts are
this project's own. A piece of information that names no passage of its prompt is left out and counted.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel

from ..configs.methods import MigresConfig
from ..data.duplicates import unique
from ..data.types import Document, Question
from ..llms.base import Draw
from ..llms.structured import Example, FormPrompt, Structured
from .levels import question_text
from .method import NO_RANKING, AskForm, Outcome, Steps
from .reading import (
    READER_VERSION,
    Further,
    Notes,
    answered,
    numbered,
    pull,
    reader_prompt,
    usable,
)

VERSION = "migres-1"


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

_ASKED = "## Question\nWho wrote Emma, and in which year did she die?"
_PASSAGES = "## Passages\n[1] Emma: A novel by Jane Austen.\n[2] Bath: A city in Somerset.\n\n"
_FOUND = "## Information\n- Jane Austen wrote Emma.\n\n"
_EXAMPLES: Mapping[type[BaseModel], Example] = {
    Kept: Example(_PASSAGES + _ASKED, Kept(passages=[1])),
    Extracted: Example(_PASSAGES + _ASKED, Extracted(pieces=[Piece(passage=1, information="Jane Austen wrote Emma.")])),
    Judged: Example(_FOUND + _ASKED, Judged(sufficient=False, missing=["the year in which Jane Austen died"])),
    Queries: Example(
        _FOUND
        + "## Missing\n- the year in which Jane Austen died\n\n## Queries made before\n- Who wrote Emma?\n\n"
        + _ASKED,
        Queries(queries=["Jane Austen year of death"]),
    ),
}


@dataclass(frozen=True)
class Migres:
    """The method."""

    settings: MigresConfig
    name: str = field(default="migres", init=False)
    versions: tuple[str, ...] = field(default=(VERSION, READER_VERSION), init=False)

    def steps(self, question: Question) -> Steps:
        """Rounds of searching, filtering, extracting, judging and writing queries; then the answer."""
        notes, known, asked = Notes(), list[str](), list[str]()
        seen, kept = tuple[Document, ...](), tuple[Document, ...]()
        queries, missing = [question.text], list[str]()
        for left in reversed(range(self.settings.rounds)):
            asked += queries
            notes.add("queries", queries)
            pulled = yield from pull(queries, self.settings.sources, self.settings.k)
            notes.pulled(pulled)
            if pulled.down is not None:
                return Outcome(notes=notes.said, failure=NO_RANKING)
            before = len(seen)
            seen = unique((*seen, *pulled.documents))
            try:
                useful = yield from self._filter(question, seen[before:], notes)
                borne, pieces = yield from self._extract(question, useful, notes)
                kept, known = (*kept, *borne), [*known, *pieces]
                judged = yield from self._form(Judged, question, _JUDGE, notes, _known(known))
                missing = [] if judged.sufficient else judged.missing
                queries = []
                if left and not judged.sufficient:
                    wanted = _known(known), f"## Missing\n{_list(missing)}", f"## Queries made before\n{_list(asked)}"
                    written = yield from self._form(Queries, question, _QUERIES, notes, *wanted)
                    queries = usable(written.queries, asked, self.settings.queries)
            except _FormError as error:
                return Outcome(notes=notes.said, failure=error.failure)
            if not queries:
                break
        notes.said |= {"information": known, "missing": missing}
        notes.context(kept)
        if not self.settings.answers:
            return Outcome(kept, notes=notes.said)
        prompt = reader_prompt(question, kept, self.settings.document_words, Further(information=known))
        return (yield from answered(prompt, self.settings.max_tokens, notes, kept))

    def _filter(
        self, question: Question, new: tuple[Document, ...], notes: Notes
    ) -> Generator[AskForm, Structured[Any], tuple[Document, ...]]:
        if not new:
            return ()
        answer = yield from self._form(Kept, question, _FILTER, notes, self._shown(new))
        return tuple(one for place, one in enumerate(new, start=1) if place in answer.passages)

    def _extract(
        self, question: Question, useful: tuple[Document, ...], notes: Notes
    ) -> Generator[AskForm, Structured[Any], tuple[tuple[Document, ...], list[str]]]:
        """The passages that something was taken from, and what was taken."""
        if not useful:
            return (), []
        answer = yield from self._form(Extracted, question, _EXTRACT, notes, self._shown(useful))
        borne = [piece for piece in answer.pieces if 1 <= piece.passage <= len(useful) and piece.information.strip()]
        notes.add("unfounded", len(answer.pieces) - len(borne))
        places = {piece.passage for piece in borne}
        kept = tuple(one for place, one in enumerate(useful, start=1) if place in places)
        return kept, [piece.information.strip() for piece in borne]

    def _shown(self, passages: Sequence[Document]) -> str:
        return f"## Passages\n{numbered(passages, self.settings.document_words)}"

    def _form(
        self, form: type[Form], question: Question, task: str, notes: Notes, *parts: str
    ) -> Generator[AskForm, Structured[Any], Form]:
        """The reply to one step. Raises _FormError where there is none, or none of that form."""
        case = "\n\n".join([*parts, f"## Question\n{question_text(question)}"])
        prompt = FormPrompt(task, case, VERSION, (_EXAMPLES[form],), request_last=False)
        answer = yield AskForm(prompt, form, Draw(max_tokens=self.settings.form_tokens))
        if answer.value is None:
            raise _FormError(notes.unread(form.__name__, answer))
        value: Form = answer.value
        return value


class _FormError(Exception):
    """A step without a usable reply; never leaves this file."""

    def __init__(self, failure: str) -> None:
        super().__init__(failure)
        self.failure = failure


def _known(information: Sequence[str]) -> str:
    return f"## Information\n{_list(information)}"


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {' '.join(line.split())}" for line in lines) or "(none)"
