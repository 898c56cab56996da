"""Methods of the plainest kind: a rewriter is asked once, its plan is searched, and what is found is the context.

Any rewriter of rewriters/registry.py is a method this way, one of two stages too: the first stage is asked like any
other. HyDE samples several passages for one plan.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..data.types import Question
from ..envs.plan import SearchPlan
from ..llms.base import Draw, Prompt, Reply
from ..llms.structured import Structured, version_in
from .base import Exemplified, Rewriter, Staged
from .frozen import read_reply
from .method import MISSING, NO_RANKING, Ask, Found, Outcome, Search, Steps
from .stages import GARBLED


@dataclass(frozen=True)
class Rewritten:
    """A rewriter as a method."""

    name: str
    rewriter: Rewriter
    draw: Draw
    """`n` above 1 only for a rewriter that joins answers (rewriters/frozen.py)."""
    version: str

    @property
    def versions(self) -> tuple[str, ...]:
        """Of the prompts."""
        first = getattr(self.rewriter, "versions", ())
        return first or (self.version,)

    def steps(self, question: Question) -> Steps:
        """Ask the first stage where there is one, ask the rewriter, search its plan."""
        notes: dict[str, Any] = {}
        if isinstance(self.rewriter, Staged) and (stage := self.rewriter.stage(question)) is not None:
            answer: Structured[Any] = yield stage.ask
            if answer.value is None:
                return failed(answer)
            self.rewriter.learn(question, answer.value)
            notes["first_stage"] = answer.value.model_dump(mode="json")
        prompt = Prompt(tuple(self.rewriter.first(question)), self.version, self.rewriter.opening)
        small = None
        if isinstance(self.rewriter, Exemplified):
            small = replace(prompt, messages=tuple(self.rewriter.first_with_example(question)))
            small = replace(small, version=version_in(self.version, "lines"))
        reply: Reply | None = yield Ask(prompt, self.draw, small=small)
        if reply is None:
            return Outcome(failure=MISSING, notes=notes)
        rewrite = read_reply(self.rewriter, question, reply)
        notes |= {"rewrites": list(rewrite.rewrites), "texts": [one.text for one in reply.texts]}
        if rewrite.plan is None:
            return Outcome(failure=rewrite.failure, notes=notes)
        return (yield from searched(rewrite.plan, notes))


def searched(plan: SearchPlan, notes: Mapping[str, Any]) -> Steps:
    """The last step of a method: what is found for the plan is the context."""
    found: Found | None = yield Search(plan)
    if found is None:
        return Outcome(plan=plan, notes=notes, failure=NO_RANKING)
    return Outcome(found.documents, plan, notes)


def failed(answer: Structured[Any]) -> Outcome:
    """The end of a method whose model gave no answer of the form."""
    if answer.missing:
        return Outcome(failure=MISSING)
    return Outcome(failure=GARBLED, notes={"texts": [answer.text], "problem": answer.failure})


def version_of(rewriter: Rewriter) -> str:
    """The version of a rewriter's prompt: its own, or a hash of its words, so that other words are another version."""
    own = getattr(rewriter, "version", None) or (getattr(rewriter, "versions", None) or [None])[-1]
    if own is not None:
        return str(own)
    said = repr(rewriter.first(Question("", "{question}")))
    return f"{rewriter.name}-{hashlib.sha256(said.encode()).hexdigest()[:8]}"
