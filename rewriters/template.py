"""Most rewriters: a prompt for one form of answer (tasks.yaml), and the plan of its parts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..configs.load import parse_yaml
from ..configs.schema import RewriterConfig
from ..data.types import Document, Question
from ..envs.plan import Probe, SearchPlan, Term
from ..llms.base import Message
from .base import Rewrite, RewritingStrategy
from .case import case_text, one_line
from .forms import ONE_REWRITE, Form, Parsed, TagForm

Plan = Callable[[Question, Sequence[str]], SearchPlan]
"""The plan of a question and the parts of an answer."""

PER_QUERY, BUDGET = 5, 15
"""Documents of a query and of the union of all queries (the HCQR paper, B.3)."""
FOUND = "Your last answer brought up these documents, the best match first:"
NOTHING_FOUND = (
    "Your last answer found no documents: it did not keep to the form, or nothing matched it. Write another one."
)


@cache
def tasks() -> Mapping[str, Any]:
    """The prompts of tasks.yaml."""
    prompts: Mapping[str, Any] = parse_yaml(Path(__file__).with_name("tasks.yaml").read_text(encoding="utf-8"))
    return prompts


@dataclass(frozen=True)
class TemplateRewriter(RewritingStrategy):
    """One user message carries the task and the question, for chat templates without a system role."""

    name: str
    form: Form
    prompt: Callable[[Question, str], str]
    """The first message, from the question and the request for the form."""
    plan: Plan
    again: str = "Answer once more, and better, in the same form."
    """The instruction of later turns."""
    found: str = FOUND
    """The line above the documents of later turns."""
    nothing_found: str = NOTHING_FOUND
    """What later turns say instead of documents."""
    options: bool = True
    """Whether later turns show the question's answer options, if any."""
    joins: bool = False

    @property
    def opening(self) -> str:
        return self.form.opening

    def first(self, question: Question) -> list[Message]:
        return [Message(role="user", content=self.prompt(question, self.form.request))]

    def follow_up(self, question: Question, documents: Sequence[Document], turn: int) -> str:
        """The ranked documents, numbered from 1, and the request for a better answer."""
        feedback = [describe_results(documents, self.found), self.again] if documents else [self.nothing_found]
        return "\n\n".join(filter(None, [*feedback, self.form.request, case_text(question, self.options)]))

    def parse(self, question: Question, text: str, turn: int) -> Rewrite:
        return planned(question, self.form.parse(text), self.plan)

    def read(self, question: Question, text: str, turn: int) -> Rewrite:
        return planned(question, self.form.read(text), self.plan)

    def join(self, question: Question, rewrites: Sequence[Rewrite]) -> Rewrite:
        texts = tuple(text for rewrite in rewrites for text in rewrite.rewrites)
        return Rewrite(self.plan(question, texts), rewrites=texts) if texts else rewrites[0]


def planned(question: Question, parsed: Parsed, plan: Plan) -> Rewrite:
    """A parsed answer with the plan of its parts."""
    search = None if parsed.failure else plan(question, parsed.parts)
    return Rewrite(search, parsed.think, parsed.parts, parsed.failure)


def describe_results(documents: Sequence[Document], found: str = FOUND) -> str:
    """The documents of the previous turn, one per line in their order, as feedback for the model."""
    lines = "\n".join(f"[{number}] {one_line(document)}" for number, document in enumerate(documents, start=1))
    return (
        f"{found}\n{lines}\n\n"
        "They may or may not hold what is asked for. Look at how documents in this collection are written, which names "
        "and terms they use, and which part of the question is still not met."
    )


def query_plan(config: RewriterConfig, k: int) -> Plan:
    """Each rewrite is one probe, fused by their best score; with `keep_question_weight` above 0 every probe also holds
    the question with that weight, but for native queries. `k`: documents a plan asks for."""

    def native(_: Question, rewrites: Sequence[str]) -> SearchPlan:
        probes = tuple(Probe(terms=(Term(text=rewrite),)) for rewrite in rewrites)
        return SearchPlan(probes=probes, fuse="max", k=k, mode="native")

    def plan(question: Question, rewrites: Sequence[str]) -> SearchPlan:
        question_terms = weighted(question.text, config.keep_question_weight or 0.0)
        terms = [(*question_terms, Term(text=rewrite, weight=config.rewrite_weight)) for rewrite in rewrites]
        return SearchPlan(probes=tuple(Probe(terms=probe) for probe in terms), fuse="max", k=k)

    return native if config.query == "native" else plan


def tag_form(config: RewriterConfig, reason: str = "", count: str = ONE_REWRITE) -> TagForm:
    """The form of an answer in tags; a native query is always one."""
    return TagForm(reason, ONE_REWRITE, most=1) if config.query == "native" else TagForm(reason, count)


def weighted(text: str, weight: float) -> tuple[Term, ...]:
    """A term of that weight; none at 0."""
    return (Term(text=text, weight=weight),) if weight > 0 else ()


def union(queries: Sequence[str]) -> SearchPlan:
    """The first `PER_QUERY` documents of every query, without duplicates, at most `BUDGET` of them: the first ranks of
    all queries, then the second ranks, …"""
    probes = tuple(Probe(terms=(Term(text=query),), k=PER_QUERY) for query in queries)
    return SearchPlan(probes=probes, fuse="interleave", k=BUDGET)
