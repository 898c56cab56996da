"""Misknow-RAG's query writing as a rewriter of two turns, which a policy can learn (its paper, section 2 and figure 4).

Turn 1 searches with the question as it is, as the paper's first search does, and the policy writes a first answer.
Turn 2 shows the passages; the policy says what they are worth, which knowledge is missing, and writes a query for each
missing piece. Its plan interleaves the ranking of the question with those of the queries, rank by rank: the context of
the paper, half of it from the first search. All first turns of a question have the same ranking, so a first answer is
worth what the second turn makes of it (`credit: turn` gives it the mean of its second turns).

The paper prompts a frozen model for JSON with a list of any length (methods/misknow.py). Here the answer is labelled
lines with a fixed number of queries, as for the other rewriters of this folder: a policy has no
second attempt at a missing bracket. Nothing is searched less where nothing is missing: a query that does not help
lowers the reward. The prompts are worded by this project.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..configs.schema import RewriterConfig
from ..data.types import Document, Question
from ..envs.plan import Probe, SearchPlan, Term
from ..llms.base import Message
from .base import Rewrite
from .case import case_text
from .parts import PartsRewriter
from .retriever_info import RetrieverInfo

VERSION = "misknow-turns-1"
_THOUGHT = "Thought"

QUERIES = 2
"""Queries of a turn after the first, each searched beside the question."""


@dataclass(frozen=True)
class MisknowRewriter:
    """A first answer, then queries for what is missing."""

    draft: PartsRewriter
    """How the first turn is asked and read."""
    judgement: PartsRewriter
    """The same for later turns."""
    name = "misknow"
    version = VERSION

    @property
    def opening(self) -> str:
        """The first label, the same in every turn."""
        return self.draft.opening

    def first(self, question: Question) -> list[Message]:
        """The request for a first answer."""
        return self.draft.first(question)

    def follow_up(self, question: Question, documents: Sequence[Document], turn: int) -> str:
        """The passages, and the request to say what is missing."""
        return self.judgement.follow_up(question, documents, turn)

    def parse(self, question: Question, text: str, turn: int) -> Rewrite:
        """Read one turn. What is written beside the queries is kept as thinking."""
        return self._with_thoughts(question, self._parts(turn).parse(question, text, turn), turn)

    def read(self, question: Question, text: str, turn: int) -> Rewrite:
        """The same for a prompted model."""
        return self._with_thoughts(question, self._parts(turn).read(question, text, turn), turn)

    def _parts(self, turn: int) -> PartsRewriter:
        return self.draft if turn == 1 else self.judgement

    def _with_thoughts(self, question: Question, rewrite: Rewrite, turn: int) -> Rewrite:
        if rewrite.plan is None:
            return rewrite
        thoughts = rewrite.rewrites[: len(rewrite.rewrites) if turn == 1 else 2]
        lines = [f"{label}: {thought}" for label, thought in zip(self._parts(turn).labels, thoughts, strict=False)]
        queries = (question.text,) if turn == 1 else rewrite.rewrites[2:]
        return replace(rewrite, think="\n".join(filter(None, [rewrite.think, *lines])), rewrites=queries)


def misknow(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> MisknowRewriter:
    """Build the rewriter."""
    numbers = range(1, QUERIES + 1)

    def search_question(question: Question, texts: Sequence[str]) -> SearchPlan:
        return SearchPlan.of(question.text, k=k)

    def search_missing(question: Question, texts: Sequence[str]) -> SearchPlan:
        queries = (question.text, *texts[2:])
        return SearchPlan(probes=tuple(Probe(terms=(Term(text=query),)) for query in queries), fuse="interleave", k=k)

    def task(question: Question) -> str:
        return (
            "Answer the question below from what you know, in a few words. Passages will be searched for it then.\n\n"
            f"{case_text(question)}"
        )

    draft = PartsRewriter(
        name="misknow",
        version=VERSION,
        labels=(_THOUGHT, "Answer"),
        task=task,
        field_hints=("what you know about it", "your first answer"),
        plan=search_question,
    )
    judgement = PartsRewriter(
        name="misknow",
        version=VERSION,
        labels=(_THOUGHT, "Missing", *(f"Query {number}" for number in numbers)),
        task=task,
        field_hints=(
            "what the passages are worth for the question, and whether your first answer is right and complete",
            "the knowledge that is needed and that the passages do not hold",
            *(f"query {number}" for number in numbers),
        ),
        plan=search_missing,
        again=(
            "Check whether the question can be answered from these passages. Look out for passages that contradict "
            "each other and for claims that none bears out. Name what is missing, and write queries that find it: "
            "short, precise, about the main subject of the question, and other than the question itself."
        ),
    )
    return MisknowRewriter(draft, judgement)
