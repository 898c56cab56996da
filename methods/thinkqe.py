"""ThinkQE: the query grows round by round, each after a look at the last results (Lei et al. 2025; the CHR paper).

Each round searches, shows the model the best documents that no earlier round has shown, and asks it to think and then
to write a passage that answers the question. The passages of all rounds stay in the query, one term each. The
question's weight repeats it until it is a third as long as they are (`EXPANSION_WORDS`), at least once. After
the last round, a search with the full query gives the context.

The published code skips a document that was among the best of the round before the last; here none is shown twice,
which is the same as long as a document stays among the best. A round whose answer has no passage adds nothing and is
counted. The prompt is worded by this project.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..configs.methods import ThinkQeConfig
from ..data.types import Document, Question
from ..envs.plan import Probe, SearchPlan, Term
from ..llms.base import LlmResponse, Prompt
from ..rewriters.case import case_text
from .csqe import NO_EXPANSION, numbered, passage_of
from .method import MISSING, NO_RANKING, Outcome, PromptStep, SearchResults, SearchStep, Steps, draw_of
from .reading import user_prompt
from .rewritten import searched

EXPAND = "thinkqe-expand-1"
ROUNDS, DOCUMENTS = 3, 10
"""Rounds of search and expansion, and documents shown in each."""
EXPANSION_WORDS = 3.0
"""Words of expansions for each word of the question, so often as it is repeated."""


@dataclass(frozen=True)
class ThinkQe:
    """The method."""

    settings: ThinkQeConfig
    name = "thinkqe"
    versions = (EXPAND,)

    def steps(self, question: Question) -> Steps:
        """Search and expand in turns, then search for the context."""
        settings = self.settings
        draw = draw_of(settings)
        expansions: list[str] = []
        displayed: list[list[str]] = []
        visited: set[str] = set()
        for number in range(1, ROUNDS + 1):
            ranking: SearchResults | None = yield SearchStep(self.plan(question, expansions, DOCUMENTS * number))
            if ranking is None:
                return Outcome(failure=NO_RANKING, notes={"expansions": expansions, "shown": displayed})
            new_documents = [document for document in ranking.documents if document.id not in visited][:DOCUMENTS]
            displayed.append([document.id for document in new_documents])
            visited.update(displayed[-1])
            reply: LlmResponse | None = yield PromptStep(expand_prompt(question, new_documents), draw)
            if reply is None:
                return Outcome(failure=MISSING, notes={"expansions": expansions, "shown": displayed})
            expansions += filter(None, [passage_of(reply.texts[0].text)])
        notes = {"expansions": expansions, "shown": displayed, "empty_rounds": ROUNDS - len(expansions)}
        if not expansions:
            return Outcome(failure=NO_EXPANSION, notes=notes)
        return (yield from searched(self.plan(question, expansions, settings.k), notes))

    def plan(self, question: Question, expansions: Sequence[str], k: int) -> SearchPlan:
        """The query so far."""
        words = sum(len(text.split()) for text in expansions)
        length = len(question.text.split()) * EXPANSION_WORDS
        weight = float(max(1, int(words / length))) if length else 1.0
        terms = (Term(text=question.text, weight=weight), *(Term(text=text) for text in expansions))
        return SearchPlan(probes=(Probe(terms=terms),), k=k)


def expand_prompt(question: Question, documents: Sequence[Document]) -> Prompt:
    """The prompt of one round."""
    context = (
        f"Here are passages that were found for it; they may or may not help:\n{numbered(documents)}"
        if documents
        else "No further passages were found for it."
    )
    content = (
        f"{case_text(question, options=False)}\n\n{context}\n\n"
        "Think first, between <think> and </think>: what the question may mean, which sides of it the passages cover "
        "and which they leave out. Then write one passage that answers the question with correct, detailed facts, "
        "those of the passages where they bear on it. After </think> write the passage and nothing else."
    )
    return user_prompt(content, EXPAND)
