"""CSQE and ThinkQE: the query grows by what the model writes after a look at the documents that it finds.

In both, the final query is one probe, on BM25 and on vectors alike: the question at a weight that repeats it, and every
added text once. The prompts are worded by this project and show no example; the papers' examples come from MS MARCO.
"""

import asyncio
import re
from collections.abc import Sequence

from ..configs.methods import CsqeConfig, ThinkQeConfig
from ..data.types import Document, Question
from ..envs.plan import Probe, SearchPlan, Term
from ..llms.prose import passage_of, without_thinking
from .method import Ask, Result, Search, StageError, sampling
from .prompts import prompts_of

DOCUMENTS, DOCUMENT_WORDS = 10, 128
"""Documents that are shown at once, and words of each."""
PICKS, PASSAGES = 2, 2
"""CSQE: samples that pick sentences, and generated passages."""
ROUNDS = 3
"""ThinkQE: rounds of search and expansion."""
EXPANSION_WORDS = 3.0
"""ThinkQE: words of expansions for each word of the question, so often as it is repeated."""
NO_EXPANSION = "no expansion"
"""The failure where nothing was added."""

_WORD = re.compile(r"\w+")
_OUTER_QUOTE, _EACH_QUOTE = (re.compile(rf'["“„«](.+{lazy})["”“»]') for lazy in ("", "?"))
"""The text between the first and the last quote of a line, and between each pair of quotes."""


async def csqe(question: Question, ask: Ask, search: Search, settings: CsqeConfig) -> Result:
    """CSQE (Lei et al. 2024; the CHR paper): sentences of the documents retrieved for the question expand it.

    From the first documents, the model selects those that bear on the question and copies their key sentences;
    independently, it writes passages that answer the question (the expansion of HyDE). The question weighs as many as
    the passages; the sentences of each answer are one text. A copied sentence that none of the displayed documents
    contains, ignoring case, spacing and punctuation, is dropped and counted: they must tie the query to the corpus.
    """
    prompts = prompts_of("csqe", settings)
    documents = (await search(SearchPlan.of(question.text, k=DOCUMENTS))).documents
    requests = [ask(prompts.passage(question), sampling(settings, PASSAGES))]
    if documents:
        requests.append(ask(prompts.pick(question, documents, DOCUMENT_WORDS), sampling(settings, PICKS)))
    passage_reply, *pick_replies = await asyncio.gather(*requests)
    passages = [passage for text in passage_reply.texts if (passage := passage_of(text.text).answer)]
    answers = [pivotal(text.text, documents) for reply in pick_replies for text in reply.texts]
    picks = ["\n".join(sentences) for sentences, _ in answers if sentences]
    notes = {
        "passages": passages,
        "sentences": [sentences for sentences, _ in answers],
        "dropped_sentences": sum(dropped for _, dropped in answers),
    }
    if not passages and not picks:
        raise StageError(NO_EXPANSION, **notes)
    ranking = await search(expanded(question, max(1, len(passages)), [*passages, *picks], settings.k))
    return Result(ranking.documents, notes)


async def thinkqe(question: Question, ask: Ask, search: Search, settings: ThinkQeConfig) -> Result:
    """ThinkQE (Lei et al. 2025; the CHR paper): the query grows round by round.

    Each round searches, shows the model the best documents that no earlier round has shown, and asks it to think and
    then to write a passage that answers the question. The question is repeated until it is a third as long as all
    passages (`EXPANSION_WORDS`), at least once. A search with the full query gives the context.

    The published code skips a document that was among the best of the round before the last; here none is shown twice,
    which is the same as long as a document stays among the best. A round whose answer has no passage adds nothing and
    is counted.
    """

    def query(k: int) -> SearchPlan:
        words, length = sum(len(text.split()) for text in expansions), len(question.text.split()) * EXPANSION_WORDS
        return expanded(question, max(1, int(words / length)) if length else 1, expansions, k)

    expansions, visited = list[str](), dict[str, int]()
    for number in range(1, ROUNDS + 1):
        ranking = await search(query(DOCUMENTS * number))
        unseen = [document for document in ranking.documents if document.id not in visited][:DOCUMENTS]
        visited |= {document.id: number for document in unseen}
        prompt = prompts_of("thinkqe", settings).expand(question, unseen, DOCUMENT_WORDS)
        reply = await ask(prompt, sampling(settings))
        expansions += filter(None, [passage_of(reply.texts[0].text).answer])
    notes = {"expansions": expansions, "shown": visited, "empty_rounds": ROUNDS - len(expansions)}
    if not expansions:
        raise StageError(NO_EXPANSION, **notes)
    return Result((await search(query(settings.k))).documents, notes)


def expanded(question: Question, weight: float, texts: Sequence[str], k: int) -> SearchPlan:
    """The question at this weight, and every text once, as one probe."""
    terms = (Term(text=question.text, weight=weight), *(Term(text=text) for text in texts))
    return SearchPlan(probes=(Probe(terms=terms),), k=k)


def pivotal(text: str, documents: Sequence[Document]) -> tuple[list[str], int]:
    """The quoted sentences of an answer that occur in a document, each once, and how many occur in none."""
    corpus = [_words(document.contents) for document in documents]

    def is_grounded(sentence: str) -> bool:
        return any(_words(sentence) in words for words in corpus)

    quoted: list[str] = []
    for line in without_thinking(text).splitlines():
        outer = _OUTER_QUOTE.findall(line)
        quoted += outer if all(map(is_grounded, outer)) else _EACH_QUOTE.findall(line)
    sentences = list(dict.fromkeys(" ".join(sentence.split()) for sentence in quoted if _words(sentence).strip()))
    grounded = list(filter(is_grounded, sentences))
    return grounded, len(sentences) - len(grounded)


def _words(text: str) -> str:
    """The words of a text, each between single spaces, so that a sentence matches whole words only."""
    return f" {' '.join(_WORD.findall(text.casefold()))} "
