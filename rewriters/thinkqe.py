"""ThinkQE: the query grows round by round, each after a look at what the last one found (Lei et al. 2025; seed 001).

A round searches, shows the model the best documents that no round before has shown, and asks it to think and then to
write a passage that answers the question. The passages of all rounds stay in the query, one term each; the question is
in it as often as it takes to be a third as long as they are (`thinkqe.expansion_words`), at least once. After the last
round the whole query is searched for the context.

The published code leaves a document out of a round where it was among the best of the round before the last; here none
is shown twice, which is the same wherever a document stays among the best. A round whose answer holds no passage adds
nothing and is counted. The words of the prompt are this project's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..configs.methods import ThinkQeConfig
from ..data.types import Document, Question
from ..envs.plan import Probe, SearchPlan, Term
from ..llms.base import Draw, Message, Prompt, Reply
from .csqe import NO_EXPANSION, numbered, passage_of
from .method import MISSING, NO_RANKING, Ask, Found, Outcome, Search, Steps
from .rewritten import searched

EXPAND = "thinkqe-expand-1"


@dataclass(frozen=True)
class ThinkQe:
    """The method."""

    settings: ThinkQeConfig
    name: str = "thinkqe"
    versions: tuple[str, ...] = (EXPAND,)

    def steps(self, question: Question) -> Steps:
        """Search and expand in turns, then search for the context."""
        settings = self.settings
        draw = Draw(temperature=settings.temperature, max_tokens=settings.max_tokens, seed=settings.seed)
        expansions: list[str] = []
        shown: list[list[str]] = []
        seen: set[str] = set()
        for number in range(1, settings.rounds + 1):
            found: Found | None = yield Search(self.plan(question, expansions, settings.documents * number))
            if found is None:
                return Outcome(failure=NO_RANKING, notes={"expansions": expansions, "shown": shown})
            fresh = [document for document in found.documents if document.id not in seen][: settings.documents]
            shown.append([document.id for document in fresh])
            seen.update(shown[-1])
            reply: Reply | None = yield Ask(expand_prompt(question, fresh, settings.document_words), draw)
            if reply is None:
                return Outcome(failure=MISSING, notes={"expansions": expansions, "shown": shown})
            expansions += filter(None, [passage_of(reply.texts[0].text)])
        notes = {"expansions": expansions, "shown": shown, "empty_rounds": settings.rounds - len(expansions)}
        if not expansions:
            return Outcome(failure=NO_EXPANSION, notes=notes)
        return (yield from searched(self.plan(question, expansions, settings.k), notes))

    def plan(self, question: Question, expansions: Sequence[str], k: int) -> SearchPlan:
        """The query so far."""
        words = sum(len(text.split()) for text in expansions)
        length = len(question.text.split()) * self.settings.expansion_words
        weight = float(max(1, int(words / length))) if length else 1.0
        terms = (Term(text=question.text, weight=weight), *(Term(text=text) for text in expansions))
        return SearchPlan(probes=(Probe(terms=terms),), k=k)


def expand_prompt(question: Question, documents: Sequence[Document], words: int) -> Prompt:
    """What a round asks."""
    context = (
        f"Here are passages that were found for it; they may or may not help:\n{numbered(documents, words)}"
        if documents
        else "No further passages were found for it."
    )
    asked = (
        f"Question: {question.text}\n\n{context}\n\nThink first, between <think> and </think>: what the question may "
        "mean, which sides of it the passages cover and which they leave out. Then write one passage that answers the "
        "question with correct, detailed facts, those of the passages where they bear on it. After </think> write the "
        "passage and nothing else."
    )
    return Prompt((Message(role="user", content=asked),), EXPAND)
