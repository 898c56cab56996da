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

from ..configs.methods import ThinkQeConfig
from ..data.types import Question
from ..envs.plan import Probe, SearchPlan, Term
from ..llms.prose import passage_of
from .csqe import DOCUMENT_WORDS, NO_EXPANSION
from .method import Ask, Result, Search, StageError, prompts_of, sampling

ROUNDS, DOCUMENTS = 3, 10
"""Rounds of search and expansion, and documents shown in each."""
EXPANSION_WORDS = 3.0
"""Words of expansions for each word of the question, so often as it is repeated."""


async def thinkqe(question: Question, ask: Ask, search: Search, settings: ThinkQeConfig) -> Result:
    """Search and expand in turns, then search for the context."""
    expansions, visited = list[str](), dict[str, int]()
    for number in range(1, ROUNDS + 1):
        ranking = await search(expanded(question, expansions, DOCUMENTS * number))
        unseen = [document for document in ranking.documents if document.id not in visited][:DOCUMENTS]
        visited |= {document.id: number for document in unseen}
        prompt = prompts_of("thinkqe", settings).expand(question, unseen, DOCUMENT_WORDS)
        reply = await ask(prompt, sampling(settings))
        expansions += filter(None, [passage_of(reply.texts[0].text).answer])
    notes = {"expansions": expansions, "shown": visited, "empty_rounds": ROUNDS - len(expansions)}
    if not expansions:
        raise StageError(NO_EXPANSION, **notes)
    return Result((await search(expanded(question, expansions, settings.k))).documents, notes)


def expanded(question: Question, expansions: Sequence[str], k: int) -> SearchPlan:
    """The query so far."""
    words = sum(len(text.split()) for text in expansions)
    length = len(question.text.split()) * EXPANSION_WORDS
    weight = float(max(1, int(words / length))) if length else 1.0
    terms = (Term(text=question.text, weight=weight), *(Term(text=text) for text in expansions))
    return SearchPlan(probes=(Probe(terms=terms),), k=k)
