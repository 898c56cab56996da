"""Shared by the methods that read passages: retrieval from several sources, deduplication, and the reader's prompt.

The reader is prompted as in the Misknow-RAG paper (appendix B.2, figure 5): instructions, one example, the passages,
the reason for a further search and its results, the question. The wording is this project's own, and a single user
message carries all of it, for chat templates without a system role.
"""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from ..data.leakage import fingerprint
from ..data.types import Document, Question
from ..envs.plan import Probe, SearchPlan, Term, is_unicode
from ..llms.base import LlmResponse, Message, Prompt, SamplingParams
from ..llms.prose import without_end_of_turn, without_thinking
from ..llms.structured import Structured
from ..rewriters.case import history_text, one_line, question_text
from .method import ANSWER, GARBLED, MISSING, Outcome, PromptStep, SearchResults, SearchStep, Steps

READER_VERSION = "context-reader-1"
"""Raise it with every change of the wording: every result records it."""

NO_ANSWER = "no answer in the text"
"""The failure of a method whose model wrote a text without a marked answer."""

_CHARACTERS = 8
"""Characters that count as one word in scripts without spaces between words."""

_TASK = "Answer the question from the passages below, in a few words."
_ALONE = "Answer the question from what you know, in a few words."
_RULES = (
    "- Give the answer alone: a name, a date, a number or a short phrase, exact and without an explanation, in the "
    "language of the question."
)
_CHOICE_RULES = "- Give the letter of the right option alone, without an explanation."
_GROUNDED = "- Keep to the passages, those on missing knowledge included; where they are silent, use what you know."
_EXAMPLE = "Passages:\n[1] Oslo: The city was called Kristiania until 1925.\nQuestion: What was Oslo called in 1900?"
_EXAMPLE_ALONE = "Question: What was Oslo called in 1900?"
_EXAMPLE_OPTIONS = "A. Bergen\nB. Kristiania"


SOURCES = "sources"
"""The note with the source of each passage of the context."""


@dataclass(frozen=True, slots=True)
class Further:
    """What a further search adds to the reader's prompt."""

    missing: Sequence[str] = ()
    """The knowledge that the first passages did not hold."""
    reasoning: str = ""
    """The reasoning that found the missing knowledge; "" leaves it out."""
    passages: Sequence[Document] = ()
    information: Sequence[str] = ()
    """Facts extracted from the passages."""


NOTHING_FURTHER = Further()


@dataclass(frozen=True, slots=True)
class Pulled:
    """The results of several sources for the same queries."""

    documents: tuple[Document, ...] = ()
    """In the order of the sources, each ranking unchanged; two sources may give the same passage."""
    origins: tuple[tuple[str, str], ...] = ()
    """(source, id) of each document."""
    plan: SearchPlan | None = None
    """The plan, if only one source was searched."""
    down: str | None = None
    """The source that did not answer; then there are no documents."""


def pull(
    queries: Sequence[str], sources: Sequence[str], k: int
) -> Generator[Sequence[SearchStep], list[SearchResults | None], Pulled]:
    """Search each source for its share of `k` passages, and concatenate the rankings in the order of the sources.

    A ranking interleaves its queries: the first passage of each, then the second of each.
    """
    documents: list[Document] = []
    origins: list[tuple[str, str]] = []
    plans = [plan_of(queries, share) for share in shares(k, len(sources))]
    rankings = yield [SearchStep(plan, source) for plan, source in zip(plans, sources, strict=True)]
    for source, ranking in zip(sources, rankings, strict=True):
        if ranking is None:
            return Pulled(down=source)
        documents += ranking.documents
        origins += [(source, document.id) for document in ranking.documents]
    return Pulled(tuple(documents), tuple(origins), plans[0] if len(sources) == 1 else None)


def plan_of(queries: Sequence[str], k: int) -> SearchPlan:
    """The plan of one or more plain queries for `k` documents."""
    probes = tuple(Probe(terms=(Term(text=query),)) for query in queries)
    return SearchPlan(probes=probes, fuse="interleave" if len(probes) > 1 else "max", k=k)


def shares(k: int, sources: int) -> list[int]:
    """`k` split evenly; the first sources get the remainder."""
    return [k // sources + (i < k % sources) for i in range(sources)]


def usable(queries: Iterable[str], previous: Iterable[str], limit: int) -> list[str]:
    """The first `limit` valid, non-empty queries that were not asked before, each once."""
    excluded = {query.strip() for query in previous}
    selected: dict[str, None] = {}
    for query in map(str.strip, queries):
        if query and query not in excluded and is_unicode(query):
            selected[query] = None
    return list(selected)[:limit]


def reader_prompt(
    question: Question, passages: Sequence[Document], words: int, further: Further = NOTHING_FURTHER
) -> Prompt:
    """The reader's prompt, with `words` words of each passage; without passages it answers from its own knowledge."""
    any_passage = bool(passages or further.passages)
    rules = [_CHOICE_RULES if question.options else _RULES, *([_GROUNDED] if any_passage else [])]
    parts = ["\n".join([_TASK if any_passage else _ALONE, *rules]), f"## Example\n{_example(question, any_passage)}"]
    if passages:
        parts.append("## Passages\n" + numbered(passages, words))
    section = _further(further, words, len(passages) + 1)
    if section:
        parts.append("## Missing knowledge\n" + section)
    parts += [f"{history_text(question)}## Question\n{question_text(question)}", "## Answer"]
    return user_prompt("\n\n".join(parts), READER_VERSION)


def _further(further: Further, words: int, start: int) -> str:
    lines = []
    if further.missing:
        lines.append("More was wanted on: " + "; ".join(further.missing))
    if further.reasoning:
        lines.append("Thoughts on the passages above: " + " ".join(further.reasoning.split()))
    lines += [f"- {' '.join(piece.split())}" for piece in further.information]
    if further.passages:
        lines.append(numbered(further.passages, words, start))
    return "\n".join(lines)


def _example(question: Question, passages: bool) -> str:
    example = _EXAMPLE if passages else _EXAMPLE_ALONE
    return f"{example}\n{_EXAMPLE_OPTIONS}\nAnswer: B" if question.options else f"{example}\nAnswer: Kristiania"


def user_prompt(text: str, version: str) -> Prompt:
    """A prompt of one user message."""
    return Prompt((Message(role="user", content=text),), version)


def numbered(documents: Sequence[Document], words: int, start: int = 1) -> str:
    """One passage per line, numbered from `start`; a line that says so if there is none."""
    lines = [f"[{number}] {shortened(one_line(document), words)}" for number, document in enumerate(documents, start)]
    return "\n".join(lines) or "(none was found)"


def shortened(text: str, words: int) -> str:
    """`text` on one line, in at most `words` words of 8 characters on average."""
    tokens = text.split()
    line = " ".join(tokens[:words])
    max_length = words * _CHARACTERS
    return line[:max_length] + ("…" if len(tokens) > words or len(line) > max_length else "")


@dataclass
class Notes:
    """Intermediate results, collected while a method runs."""

    data: dict[str, Any] = field(default_factory=dict)
    _source_of: dict[bytes, str] = field(default_factory=dict)
    """By passage fingerprint: the source that gave it first."""

    def add(self, name: str, value: object) -> None:
        """Append a value to the list `name`."""
        self.data.setdefault(name, []).append(value)

    def unread(self, step: str, answer: Structured[BaseModel]) -> str:
        """The failure of a step whose reply is missing or of another form; the latter is recorded with its problem."""
        if answer.missing:
            return MISSING
        self.data["unreadable"] = {"step": step, "text": answer.text, "problem": answer.failure}
        return GARBLED

    def pulled(self, pulled: Pulled) -> None:
        """Record where the passages of a search come from, or which source is down."""
        if pulled.down is not None:
            self.data["down"] = pulled.down
        else:
            self.add("found", [list(origin) for origin in pulled.origins])
            for document, (source, _) in zip(pulled.documents, pulled.origins, strict=True):
                self._source_of.setdefault(fingerprint(document), source)

    def context(self, documents: Sequence[Document]) -> None:
        """Record the source of each passage of the context."""
        self.data[SOURCES] = [self._source_of[fingerprint(document)] for document in documents]


def answered(
    prompt: Prompt, max_tokens: int, notes: Notes, documents: tuple[Document, ...] = (), plan: SearchPlan | None = None
) -> Steps:
    """The last step of a method that answers itself: ask the reader."""
    reply = yield PromptStep(prompt, SamplingParams(max_tokens=max_tokens), role="reader")
    if reply is None:
        return Outcome(documents, plan, notes.data, MISSING)
    return Outcome(documents, plan, notes.data, answer=text_of(reply, notes, ANSWER))


def text_of(reply: LlmResponse, notes: Notes, stage: str) -> str:
    """The text of a reply without its thinking; a text that was cut off is noted."""
    if not reply.texts[0].finished:
        notes.add("cut", stage)
    return without_end_of_turn(without_thinking(reply.texts[0].text))
