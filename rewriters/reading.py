"""What the methods share that read passages: finding them in several sources, each passage once, and the reader.

The reader is prompted as in seed 004 (appendix B.2, figure 5): instructions, one example, the passages, what a further
search was made for and what it found, the question. The words are this project's own, and one user message carries all
of it, for chat templates without a system role.
"""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..data.duplicates import fingerprint
from ..data.types import Document, Question
from ..envs.plan import Probe, SearchPlan, Term, is_unicode
from ..llms.base import Draw, Message, Prompt, Reply
from ..llms.structured import Structured, without_thinking
from .levels import one_line, question_text
from .method import ANSWER, MISSING, Ask, Found, Outcome, Search, Steps

READER_VERSION = "context-reader-1"
"""To be raised with every change of the wording: it stands in every result."""

UNREADABLE = "not of the form that was asked for"
"""The failure of a method whose model answered in another form than it was asked for, twice."""
NO_ANSWER = "no answer in the text"
"""The failure of a method whose model wrote a text in which no answer is marked."""

_CHARACTERS = 8
"""Characters that count as a word where a script sets no spaces between words."""

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
"""The note that says from which source each passage of the context comes."""


@dataclass(frozen=True, slots=True)
class Further:
    """What a second search adds to the reader's prompt."""

    missing: Sequence[str] = ()
    """The knowledge that the first passages did not hold."""
    reasoning: str = ""
    """What was thought while that was found out; "" leaves it out."""
    passages: Sequence[Document] = ()
    information: Sequence[str] = ()
    """What was drawn from the passages."""


NOTHING_FURTHER = Further()


@dataclass(frozen=True, slots=True)
class Pulled:
    """What several sources gave for the same queries."""

    documents: tuple[Document, ...] = ()
    """In the order of the sources, each ranking as it came; the same passage may stand in two."""
    places: tuple[tuple[str, str], ...] = ()
    """(source, id) of each document."""
    plan: SearchPlan | None = None
    """The plan, where one source was searched."""
    down: str | None = None
    """The source that did not answer; there are no documents then."""


def pull(
    queries: Sequence[str], sources: Sequence[str], k: int
) -> Generator[Sequence[Search], list[Found | None], Pulled]:
    """Search each source for its share of `k` passages; their passages stand one source after the other.

    Several queries take turns in a ranking: the first passage of each, then the second of each.
    """
    documents: list[Document] = []
    places: list[tuple[str, str]] = []
    plans = [plan_of(queries, share) for share in shares(k, len(sources))]
    rankings = yield [Search(plan, source) for plan, source in zip(plans, sources, strict=True)]
    for source, found in zip(sources, rankings, strict=True):
        if found is None:
            return Pulled(down=source)
        documents += found.documents
        places += [(source, document.id) for document in found.documents]
    return Pulled(tuple(documents), tuple(places), plans[0] if len(sources) == 1 else None)


def plan_of(queries: Sequence[str], k: int) -> SearchPlan:
    """The plan of one or more plain queries for `k` documents."""
    probes = tuple(Probe(terms=(Term(text=query),)) for query in queries)
    return SearchPlan(probes=probes, fuse="interleave" if len(probes) > 1 else "max", k=k)


def shares(k: int, sources: int) -> list[int]:
    """`k` in equal parts; the first sources take what is left over."""
    return [k // sources + (place < k % sources) for place in range(sources)]


def usable(queries: Iterable[str], asked: Iterable[str], most: int) -> list[str]:
    """The first `most` queries that say something and were not asked before, each once."""
    told = {query.strip() for query in asked}
    kept: dict[str, None] = {}
    for query in map(str.strip, queries):
        if query and query not in told and is_unicode(query):
            kept[query] = None
    return list(kept)[:most]


def reader_prompt(
    question: Question, passages: Sequence[Document], words: int, further: Further = NOTHING_FURTHER
) -> Prompt:
    """What the reader is asked, `words` words of each passage shown; without passages it answers from what it knows."""
    any_passage = bool(passages or further.passages)
    rules = [_CHOICE_RULES if question.options else _RULES, *([_GROUNDED] if any_passage else [])]
    parts = ["\n".join([_TASK if any_passage else _ALONE, *rules]), f"## Example\n{_example(question, any_passage)}"]
    if passages:
        parts.append("## Passages\n" + numbered(passages, words))
    if added := _further(further, words, len(passages) + 1):
        parts.append("## Missing knowledge\n" + added)
    parts += [f"## Question\n{question_text(question)}", "## Answer"]
    return said("\n\n".join(parts), READER_VERSION)


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
    asked = _EXAMPLE if passages else _EXAMPLE_ALONE
    return f"{asked}\n{_EXAMPLE_OPTIONS}\nAnswer: B" if question.options else f"{asked}\nAnswer: Kristiania"


def said(text: str, version: str) -> Prompt:
    """A prompt of one user message."""
    return Prompt((Message(role="user", content=text),), version)


def numbered(documents: Sequence[Document], words: int, start: int = 1) -> str:
    """One passage a line, numbered from `start`; a line that says so where there is none."""
    lines = [f"[{place}] {shortened(one_line(one), words)}" for place, one in enumerate(documents, start)]
    return "\n".join(lines) or "(none was found)"


def shortened(text: str, words: int) -> str:
    """`text` on one line, in at most `words` words of 8 characters on average."""
    kept = text.split()
    line = " ".join(kept[:words])
    most = words * _CHARACTERS
    return line[:most] + ("…" if len(kept) > words or len(line) > most else "")


@dataclass
class Notes:
    """What was said on the way, gathered while a method goes on."""

    said: dict[str, Any] = field(default_factory=dict)
    _source_of: dict[bytes, str] = field(default_factory=dict)
    """By what a passage is told by: the source that gave it first."""

    def add(self, name: str, value: Any) -> None:
        """One more value under `name`."""
        self.said.setdefault(name, []).append(value)

    def unread(self, step: str, answer: Structured[Any]) -> str:
        """The failure of a step whose reply is missing or of another form, which is kept with what is wrong with it."""
        if answer.missing:
            return MISSING
        self.said["unreadable"] = {"step": step, "text": answer.text, "problem": answer.failure}
        return UNREADABLE

    def pulled(self, pulled: Pulled) -> None:
        """Where the passages of a search come from, or which source is down."""
        if pulled.down is not None:
            self.said["down"] = pulled.down
        else:
            self.add("found", [list(place) for place in pulled.places])
            for document, (source, _) in zip(pulled.documents, pulled.places, strict=True):
                self._source_of.setdefault(fingerprint(document), source)

    def context(self, documents: Sequence[Document]) -> None:
        """Where each passage of the context comes from."""
        self.said[SOURCES] = [self._source_of[fingerprint(document)] for document in documents]


def answered(
    prompt: Prompt, max_tokens: int, notes: Notes, documents: tuple[Document, ...] = (), plan: SearchPlan | None = None
) -> Steps:
    """The last step of a method that answers itself: the reader is asked."""
    reply = yield Ask(prompt, Draw(max_tokens=max_tokens), role="reader")
    if reply is None:
        return Outcome(documents, plan, notes.said, MISSING)
    return Outcome(documents, plan, notes.said, answer=text_of(reply, notes, ANSWER))


def text_of(reply: Reply, notes: Notes, stage: str) -> str:
    """The text of a reply without its thinking; one that was cut off is noted."""
    if not reply.texts[0].finished:
        notes.add("cut", stage)
    return without_thinking(reply.texts[0].text).strip()
