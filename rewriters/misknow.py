"""Misknow-RAG's query writing as a rewriter of two turns, which a policy can learn (its paper, section 2 and figure 4).

Turn 1 searches with the question as it is, as the paper's first search does, and the policy writes a first answer.
Turn 2 shows the passages; the policy says what they are worth, which knowledge is missing, and writes a query for each
missing piece. Its plan interleaves the ranking of the question with those of the queries, rank by rank: the context of
the paper, half of it from the first search. All first turns of a question have the same ranking, so a first answer is
worth what the second turn makes of it (`credit: turn` gives it the mean of its second turns).

The paper prompts a frozen model for JSON with a list of any length (methods/misknow.py). Here the answer is labelled
lines with a fixed number of queries: a policy has no second attempt at a missing bracket. Nothing is searched less
where nothing is missing: a query that does not help lowers the reward. The prompts are worded by this project.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..configs.schema import RewriterConfig
from ..data.types import Document, Question
from ..envs.plan import Probe, SearchPlan, Term
from .base import Rewrite
from .case import case_text
from .forms import LineForm
from .retriever_info import RetrieverInfo
from .template import TemplateRewriter, tasks

_THOUGHTS = 2
"""The first parts of an answer, which are not queries."""


@dataclass(frozen=True)
class MisknowRewriter(TemplateRewriter):
    """Asks for a first answer, then for queries for what is missing."""

    def follow_up(self, question: Question, documents: Sequence[Document], turn: int) -> str:
        return super(MisknowRewriter, self._in(turn)).follow_up(question, documents, turn)

    def parse(self, question: Question, text: str, turn: int) -> Rewrite:
        """What is written beside the queries is kept as thinking."""
        return self._with_thoughts(question, super(MisknowRewriter, self._in(turn)).parse(question, text, turn), turn)

    def read(self, question: Question, text: str, turn: int) -> Rewrite:
        return self._with_thoughts(question, super(MisknowRewriter, self._in(turn)).read(question, text, turn), turn)

    def _in(self, turn: int) -> "MisknowRewriter":
        return replace(self, form=_form(turn))

    def _with_thoughts(self, question: Question, rewrite: Rewrite, turn: int) -> Rewrite:
        if rewrite.plan is None:
            return rewrite
        thoughts = zip(_form(turn).parts, rewrite.rewrites[:_THOUGHTS], strict=False)
        think = "\n".join(filter(None, [rewrite.think, *(f"{label}: {text}" for label, text in thoughts)]))
        return replace(rewrite, think=think, rewrites=rewrite.rewrites[_THOUGHTS:] or (question.text,))


def _form(turn: int) -> LineForm:
    """A draft in the first turn, then judgements."""
    return LineForm(tasks()["misknow"]["draft" if turn == 1 else "judgement"])


def misknow(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> MisknowRewriter:
    """Build the rewriter."""

    def prompt(question: Question, request: str) -> str:
        return f"{tasks()['misknow']['task']}\n\n{case_text(question)}\n\n{request}"

    def plan(question: Question, texts: Sequence[str]) -> SearchPlan:
        queries = (question.text, *texts[_THOUGHTS:])
        if len(queries) == 1:
            return SearchPlan.of(question.text, k=k)
        return SearchPlan(probes=tuple(Probe(terms=(Term(text=query),)) for query in queries), fuse="interleave", k=k)

    return MisknowRewriter("misknow", _form(1), prompt, plan, tasks()["misknow"]["again"])
