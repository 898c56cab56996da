"""CSQE: the query is steered by sentences of documents that were found for the question (Lei et al. 2024; seed 001).

The question is searched as it stands. Shown the first documents, the model picks those that bear on the question and
copies out the sentences that make them do so; independently it writes passages that answer the question (the expansion
of HyDE). Question, passages and sentences are one query: the question as often as there are passages, every passage
once, the sentences of one answer together once. That is a weighted sum, on BM25 and on vectors alike.

A copied sentence that stands in none of the shown documents, word for word but for case, spacing and punctuation, is
dropped and counted: sentences are there to hold the query to the corpus. The words of the prompts are this project's
own, and no example is shown; the paper's comes from MS MARCO.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..configs.methods import CsqeConfig
from ..data.types import Document, Question
from ..envs.plan import Probe, SearchPlan, Term, is_unicode
from ..llms.base import Draw, Message, Prompt, Reply
from .levels import one_line
from .method import MISSING, NO_RANKING, Ask, Found, Outcome, Search, Steps
from .parse import without_end_of_turn, without_think
from .rewritten import searched

PICK, PASSAGE = "csqe-pick-1", "csqe-passage-1"
NO_EXPANSION = "no expansion"
"""The failure where neither a passage nor a sentence is left."""

_WORD = re.compile(r"\w+")
_WHOLE, _EACH = (re.compile(rf'["“„«](.+{few})["”“»]') for few in ("", "?"))
"""What stands between the first and the last quote of a line, and between each two."""


@dataclass(frozen=True)
class Csqe:
    """The method."""

    settings: CsqeConfig
    name: str = "csqe"
    versions: tuple[str, ...] = (PICK, PASSAGE)

    def steps(self, question: Question) -> Steps:
        """Search, pick sentences, write passages, search again."""
        settings = self.settings
        first: Found | None = yield Search(SearchPlan.of(question.text, k=settings.documents))
        if first is None:
            return Outcome(failure=NO_RANKING)
        asked = [Ask(passage_prompt(question), self._draw(settings.passages))]
        if first.documents:
            shown = pick_prompt(question, first.documents, settings.document_words)
            asked.insert(0, Ask(shown, self._draw(settings.picks)))
        *picks_said, written = yield asked
        picked: Reply | None = picks_said[0] if picks_said else None
        if written is None or (picked is None and first.documents):
            return Outcome(failure=MISSING)
        passages = list(filter(None, (passage_of(one.text) for one in written.texts)))
        answers = [pivotal(one.text, first.documents) for one in picked.texts] if picked is not None else []
        notes = {
            "passages": passages,
            "sentences": [list(sentences) for sentences, _ in answers],
            "dropped_sentences": sum(dropped for _, dropped in answers),
            "empty_passages": len(written.texts) - len(passages),
        }
        picks = ["\n".join(sentences) for sentences, _ in answers if sentences]
        if not passages and not picks:
            return Outcome(failure=NO_EXPANSION, notes=notes)
        weight = float(max(1, len(passages)))
        terms = [Term(text=question.text, weight=weight), *(Term(text=text) for text in (*passages, *picks))]
        return (yield from searched(SearchPlan(probes=(Probe(terms=tuple(terms)),), k=settings.k), notes))

    def _draw(self, n: int) -> Draw:
        settings = self.settings
        return Draw(n=n, temperature=settings.temperature, max_tokens=settings.max_tokens, seed=settings.seed)


def pivotal(text: str, documents: Sequence[Document]) -> tuple[list[str], int]:
    """The quoted sentences of an answer that stand in a document, each once, and how many stand in none."""
    _, rest, failure = without_think(without_end_of_turn(text))
    if failure or not is_unicode(rest):
        return [], 0
    corpus = [_words(document.contents) for document in documents]

    def stands(sentence: str) -> bool:
        return any(_words(sentence) in words for words in corpus)

    quoted: list[str] = []
    for line in rest.splitlines():
        whole = _WHOLE.findall(line)
        quoted += whole if all(map(stands, whole)) else _EACH.findall(line)
    sentences = list(dict.fromkeys(" ".join(sentence.split()) for sentence in quoted if _words(sentence).strip()))
    kept = list(filter(stands, sentences))
    return kept, len(sentences) - len(kept)


def passage_of(text: str) -> str:
    """The passage of an answer; "" where it holds none."""
    _, rest, failure = without_think(without_end_of_turn(text))
    return "" if failure or not is_unicode(rest) else rest


def pick_prompt(question: Question, documents: Sequence[Document], words: int) -> Prompt:
    """What the model is asked about the first ranking."""
    asked = (
        "You are an efficient search assistant. Below stand a question and the documents that a first search found. "
        "Look through the documents and decide which of them bear on the question, even if only in part. Then copy out "
        "of each of these, word for word, the key sentences that make it bear on the question. Name each document and "
        'write every sentence on a line of its own, in double quotes:\nDocument 1:\n"a key sentence"\n\n'
        f"Question: {question.text}\nDocuments found:\n{numbered(documents, words)}"
    )
    return Prompt((Message(role="user", content=asked),), PICK)


def passage_prompt(question: Question) -> Prompt:
    """What the model is asked for its own expansion."""
    asked = f"Write a passage that answers the question, and nothing else.\n\nQuestion: {question.text}"
    return Prompt((Message(role="user", content=asked),), PASSAGE)


def numbered(documents: Sequence[Document], words: int) -> str:
    """The documents, one a line, numbered from 1, each cut to so many words."""
    cut = [" ".join(one_line(document).split()[:words]) for document in documents]
    return "\n".join(f"{number}. {text}" for number, text in enumerate(cut, start=1))


def _words(text: str) -> str:
    """The words of a text between single spaces, with a space at both ends: a sentence is looked up in whole words."""
    return f" {' '.join(_WORD.findall(text.casefold()))} "
