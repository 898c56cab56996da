"""CSQE: expand the query with sentences of the documents retrieved for the question (Lei et al. 2024; the CHR paper).

The question is searched as it is. From the first documents, the model selects those that bear on the question and
copies their key sentences; independently, it writes passages that answer the question (the expansion of HyDE). The
final query is a weighted sum, on BM25 and on vectors alike: the question with the number of passages as its weight,
every passage once, and the sentences of each answer once, as one text.

A copied sentence is dropped and counted if none of the displayed documents contains it, ignoring case, spacing and
punctuation: the sentences must tie the query to the corpus. The prompts are worded by this project and show no example;
the paper's example comes from MS MARCO.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..configs.methods import CsqeConfig
from ..data.types import Document, Question
from ..envs.plan import Probe, SearchPlan, Term, is_unicode
from ..llms import prose
from ..llms.base import LlmResponse, Prompt
from ..rewriters.case import case_text, one_line
from .method import MISSING, NO_RANKING, Outcome, PromptStep, SearchResults, SearchStep, Steps, draw_of
from .reading import user_prompt
from .rewritten import searched

PICK, PASSAGE = "csqe-pick-1", "csqe-passage-1"
DOCUMENTS, PICKS, PASSAGES = 10, 2, 2
"""Documents of the first ranking that are shown, samples that pick sentences, and generated passages."""
DOCUMENT_WORDS = 128
"""Words of each document shown to the model."""
NO_EXPANSION = "no expansion"
"""The failure where neither a passage nor a sentence is left."""

_WORD = re.compile(r"\w+")
_OUTER_QUOTE, _EACH_QUOTE = (re.compile(rf'["“„«](.+{lazy})["”“»]') for lazy in ("", "?"))
"""The text between the first and the last quote of a line, and between each pair of quotes."""


@dataclass(frozen=True)
class Csqe:
    """The method."""

    settings: CsqeConfig
    name = "csqe"
    versions = (PICK, PASSAGE)

    def steps(self, question: Question) -> Steps:
        """Search, pick sentences, write passages, search again."""
        settings = self.settings
        first: SearchResults | None = yield SearchStep(SearchPlan.of(question.text, k=DOCUMENTS))
        if first is None:
            return Outcome(failure=NO_RANKING)
        asks = [PromptStep(passage_prompt(question), draw_of(settings, PASSAGES))]
        if first.documents:
            prompt = pick_prompt(question, first.documents)
            asks.insert(0, PromptStep(prompt, draw_of(settings, PICKS)))
        *pick_replies, passage_reply = yield asks
        pick_reply: LlmResponse | None = pick_replies[0] if pick_replies else None
        if passage_reply is None or (pick_reply is None and first.documents):
            return Outcome(failure=MISSING)
        passages = list(filter(None, (passage_of(sample.text) for sample in passage_reply.texts)))
        answers = (
            [pivotal(sample.text, first.documents) for sample in pick_reply.texts] if pick_reply is not None else []
        )
        notes = {
            "passages": passages,
            "sentences": [list(sentences) for sentences, _ in answers],
            "dropped_sentences": sum(dropped for _, dropped in answers),
            "empty_passages": len(passage_reply.texts) - len(passages),
        }
        picks = ["\n".join(sentences) for sentences, _ in answers if sentences]
        if not passages and not picks:
            return Outcome(failure=NO_EXPANSION, notes=notes)
        weight = float(max(1, len(passages)))
        terms = [Term(text=question.text, weight=weight), *(Term(text=text) for text in (*passages, *picks))]
        return (yield from searched(SearchPlan(probes=(Probe(terms=tuple(terms)),), k=settings.k), notes))


def pivotal(text: str, documents: Sequence[Document]) -> tuple[list[str], int]:
    """The quoted sentences of an answer that occur in a document, each once, and how many occur in none."""
    answer = prose.answer_of(text).answer
    if not is_unicode(answer):
        return [], 0
    corpus = [_words(document.contents) for document in documents]

    def is_grounded(sentence: str) -> bool:
        return any(_words(sentence) in words for words in corpus)

    quoted: list[str] = []
    for line in answer.splitlines():
        outer = _OUTER_QUOTE.findall(line)
        quoted += outer if all(map(is_grounded, outer)) else _EACH_QUOTE.findall(line)
    sentences = list(dict.fromkeys(" ".join(sentence.split()) for sentence in quoted if _words(sentence).strip()))
    grounded = list(filter(is_grounded, sentences))
    return grounded, len(sentences) - len(grounded)


def passage_of(text: str) -> str:
    """The passage of an answer; "" where it holds none."""
    passage = prose.passage_of(text).answer
    return passage if is_unicode(passage) else ""


def pick_prompt(question: Question, documents: Sequence[Document]) -> Prompt:
    """The prompt that asks for sentences of the first ranking."""
    context = numbered(documents)
    content = (
        "You are an efficient search assistant. Below stand a question and the documents that a first search found. "
        "Look through the documents and decide which of them bear on the question, even if only in part. Then copy out "
        "of each of these, word for word, the key sentences that make it bear on the question. Name each document and "
        'write every sentence on a line of its own, in double quotes:\nDocument 1:\n"a key sentence"\n\n'
        f"{case_text(question, options=False)}\nDocuments found:\n{context}"
    )
    return user_prompt(content, PICK)


def passage_prompt(question: Question) -> Prompt:
    """The prompt that asks for a passage without any document."""
    task = "Write a passage that answers the question, and nothing else."
    return user_prompt(f"{task}\n\n{case_text(question, options=False)}", PASSAGE)


def numbered(documents: Sequence[Document]) -> str:
    """The documents, one a line, numbered from 1, each cut to `DOCUMENT_WORDS` words."""
    truncated = [" ".join(one_line(document).split()[:DOCUMENT_WORDS]) for document in documents]
    return "\n".join(f"{number}. {text}" for number, text in enumerate(truncated, start=1))


def _words(text: str) -> str:
    """The words of a text, each between single spaces, so that a sentence matches whole words only."""
    return f" {' '.join(_WORD.findall(text.casefold()))} "
