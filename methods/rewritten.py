"""The simplest methods: a rewriter is asked, its plan is searched, and the results are the context.

An answer that cannot be read is sent back once.

Any rewriter of rewriters/registry.py works this way, including those of two stages, whose first stage is asked like any
other step. HyDE samples several passages for one plan.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel

from ..data.types import Question
from ..envs.plan import SearchPlan
from ..llms.base import LlmResponse, Prompt, SamplingParams
from ..llms.structured import Structured
from ..rewriters.base import RewritingStrategy, StagedQuestion
from ..rewriters.repair import read_reply, repair
from .method import GARBLED, MISSING, NO_RANKING, Outcome, PromptStep, SearchResults, SearchStep, Steps


@dataclass(frozen=True)
class Rewritten:
    """A rewriter as a method."""

    name: str
    rewriter: RewritingStrategy
    draw: SamplingParams
    """`n` above 1 only for a rewriter that joins answers (rewriters/frozen.py)."""
    version: str

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions of the prompts."""
        return (self.version,)

    def steps(self, question: Question) -> Steps:
        """Ask the first stage where there is one, ask the rewriter, search its plan."""
        notes: dict[str, object] = {}
        if (stage := self.rewriter.first_stage(question)) is not None:
            answer: Structured[BaseModel] = yield stage.ask
            if answer.value is None:
                return failed(answer)
            question = StagedQuestion.of(question, answer.value)
            notes["first_stage"] = answer.value.model_dump(mode="json")
        prompt = Prompt(tuple(self.rewriter.first(question)), self.version, self.rewriter.opening)
        reply: LlmResponse | None = yield PromptStep(prompt, self.draw)
        if reply is None:
            return Outcome(failure=MISSING, notes=notes)
        rewrite = read_reply(self.rewriter, question, reply)
        if rewrite.plan is None:
            more = repair(reply.texts[0].text, rewrite.failure)
            again: LlmResponse | None = yield PromptStep(prompt, self.draw, more=more)
            notes["repaired"] = again is not None
            if again is not None:
                reply, rewrite = again, read_reply(self.rewriter, question, again)
        notes |= {"rewrites": list(rewrite.rewrites), "texts": [sample.text for sample in reply.texts]}
        if rewrite.plan is None:
            return Outcome(failure=rewrite.failure, notes=notes)
        return (yield from searched(rewrite.plan, notes))


def searched(plan: SearchPlan, notes: Mapping[str, object]) -> Steps:
    """The last step of a method: search the plan; its results are the context."""
    ranking: SearchResults | None = yield SearchStep(plan)
    if ranking is None:
        return Outcome(plan=plan, notes=notes, failure=NO_RANKING)
    return Outcome(ranking.documents, plan, notes)


def failed(answer: Structured[BaseModel]) -> Outcome:
    """The outcome for a model that gave no answer of the form."""
    if answer.missing:
        return Outcome(failure=MISSING)
    return Outcome(failure=GARBLED, notes={"texts": [answer.text], "problem": answer.failure})


def version_of(rewriter: RewritingStrategy) -> str:
    """A hash of a rewriter's prompt that changes with the wording."""
    question = Question("", "{question}")
    if (stage := rewriter.first_stage(question)) is not None:
        question = StagedQuestion.of(question, stage.placeholder)
    messages = repr(rewriter.first(question))
    return f"{rewriter.name}-{hashlib.sha256(messages.encode()).hexdigest()[:8]}"
