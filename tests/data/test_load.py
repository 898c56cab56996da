"""Dispatch, corpus hash, overlap, and the real BEIR folders."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from querylect.configs.schema import DatasetConfig
from querylect.data.beir import load_beir, save_beir
from querylect.data.corpus import open_corpus
from querylect.data.load import corpus_hash, load_dataset, read_dataset
from querylect.data.types import Dataset, Document, Question, Split
from querylect.errors import DataError

from ..raising import refused

texts = st.text("aAé\u0301字 \n\0\x1f", max_size=3)
documents = st.lists(st.builds(Document, id=texts, title=texts, text=texts), max_size=4)


def test_corpus_hash_stands_for_ever():
    """An index on disk is matched by this value: changing it makes every index foreign."""
    corpus = [Document("d1", "Título", "text"), Document("d2", "", "")]
    assert corpus_hash(corpus) == corpus_hash(iter(corpus))
    assert corpus_hash(corpus) == "d60099dcc0dc3bef93b1e515ac29191710820f0c2a178385cbcd833762a4a212"


@given(documents, documents)
def test_corpus_hash_is_equal_exactly_for_equal_corpora(first, second):
    assert (corpus_hash(first) == corpus_hash(second)) == (first == second)


def test_corpus_hash_sees_moved_text_and_order():
    first, second = Document("a", "b c", "d"), Document("a", "b", "c d")
    hashes = {corpus_hash(corpus) for corpus in ([first], [second], [first, second], [second, first], [])}
    assert len(hashes) == 5


def split(*questions):
    return Split([Question(identifier, text) for identifier, text in questions], {i: {"d": 1} for i, _ in questions})


def test_what_is_tested_is_taken_out_of_training_and_told(tmp_path):
    train = split(("a", "same"), ("c", "other"))
    shared = Dataset("s", [Document("d", "", "x")], {"train": train, "test": split(("b", "Same!"))})
    save_beir(shared, tmp_path / "s")
    config = DatasetConfig(path=str(tmp_path / "s"))
    for loaded in (load_dataset(config), open_corpus(config).questions({"d"})):
        ids = {name: [question.id for question in split.questions] for name, split in loaded.splits.items()}
        assert ids == {"train": ["c"], "test": ["b"]}
        assert loaded.notes == ("s: 1 of 2 questions of train are taken out: they stand in a later split.",)
    assert len(read_dataset(config).splits["train"].questions) == 2


def test_load_dataset_takes_another_obo_file(tmp_path):
    with refused(DataError, tmp_path / "other.obo"):
        load_dataset(DatasetConfig(kind="hpo", path=str(tmp_path / "other.obo")))


@pytest.mark.parametrize(
    ("name", "corpus", "questions", "grades"),
    [
        ("scifact", 5183, 300, {1}),
        ("cranfield", 1398, 225, {1, 2, 3, 4}),
        ("liveqa_med", 1935, 96, {0, 1, 2, 3}),
        ("medquad", 9000, 1000, {1}),
        ("pubmedqa", 3358, 1000, {1}),
        ("tatqa", 3190, 3331, {1}),
        ("financebench", 550, 150, {1, 2}),
        ("hpo_lay", 9000, 1500, {1}),
    ],
)
def test_real_folders_have_their_published_size(realdata, name, corpus, questions, grades):
    dataset = load_beir(realdata / name)
    assert len(dataset.corpus) == corpus
    assert len(dataset.splits["test"].questions) == questions
    assert {grade for judged in dataset.splits["test"].qrels.values() for grade in judged.values()} == grades
    assert dataset.notes == ()
