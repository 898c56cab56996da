"""CSQE: expand the query with sentences of the documents retrieved for the question (Lei et al. 2024; the CHR paper).

The question is searched as it is. From the first documents, the model selects those that bear on the question and
copies their key sentences; independently, it writes passages that answer the question (the expansion of HyDE). The
final query is a weighted sum, on BM25 and on vectors alike: the question with the number of passages as its weight,
every passage once, and the sentences of each answer once, as one text.

A copied sentence is dropped and counted if none of the displayed documents contains it, ignoring case, spacing and
punctuation: the sentences must tie the query to the corpus. The prompts are worded by this project and show no example;
the paper's example comes from MS MARCO.
"""

import asyncio
import re
from collections.abc import Sequence

from ..configs.methods import CsqeConfig
from ..data.types import Document, Question
from ..envs.plan import Probe, SearchPlan, Term
from ..llms.prose import passage_of, without_thinking
from .method import Ask, Result, Search, StageError, prompts_of, sampling

DOCUMENTS, PICKS, PASSAGES = 10, 2, 2
"""Documents of the first ranking that are shown, samples that pick sentences, and generated passages."""
DOCUMENT_WORDS = 128
"""Words of each document shown to the model."""
NO_EXPANSION = "no expansion"
"""The failure where neither a passage nor a sentence is left."""

_WORD = re.compile(r"\w+")
_OUTER_QUOTE, _EACH_QUOTE = (re.compile(rf'["“„«](.+{lazy})["”“»]') for lazy in ("", "?"))
"""The text between the first and the last quote of a line, and between each pair of quotes."""


async def csqe(question: Question, ask: Ask, search: Search, settings: CsqeConfig) -> Result:
    """Search, pick sentences, write passages, search again."""
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
    weight = float(max(1, len(passages)))
    terms = (Term(text=question.text, weight=weight), *(Term(text=text) for text in (*passages, *picks)))
    ranking = await search(SearchPlan(probes=(Probe(terms=terms),), k=settings.k))
    return Result(ranking.documents, notes)


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
