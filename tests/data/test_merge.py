"""Several BEIR folders as one: ids, duplicates, judgements, questions, and what is refused."""

from dataclasses import replace

import pytest
from querylect.data.beir import load_beir, save_beir
from querylect.data.knowledge_bases import merge
from querylect.data.types import Dataset, Document, Question, Split
from querylect.errors import DataError

from ..raising import refused

DOG, CAT, FISH = (
    Question("1", "who tamed the dog"),
    Question("2", "谁驯服了猫", ("a", "b")),
    Question("3", "and the fish"),
)
WIKI = Dataset(
    "wiki",
    (Document("1", "Dogs", "Ann tamed one."), Document("2", "", "Cats"), Document("3", "", "Cats")),
    {"train": Split((DOG, FISH), {"1": {"1": 1}, "3": {"2": 1}}), "test": Split((CAT,), {"2": {"2": 2, "3": 1}})},
    licence="CC0",
)
PAIRS = Dataset(
    "pairs",
    (Document("1", "Dogs Ann", "tamed one."), Document("2", "Who?", "Ann."), Document("x/9", "", "Cats")),
    {"test": Split((DOG,), {"1": {"1": 2, "2": 1, "x/9": 1}})},
)


@pytest.fixture
def folders(tmp_path):
    save_beir(WIKI, tmp_path / "w")
    save_beir(PAIRS, tmp_path / "p")
    return {"wiki": tmp_path / "w", "pairs": tmp_path / "p"}


def test_passages_stand_once_and_judgements_follow(folders, tmp_path):
    report = merge(folders, tmp_path / "merged")
    merged = load_beir(tmp_path / "merged")
    assert [(document.id, document.title, document.text) for document in merged.corpus] == [
        ("wiki/1", "Dogs", "Ann tamed one."),
        ("wiki/2", "", "Cats"),
        ("pairs/2", "Who?", "Ann."),
    ]
    assert report == [
        "wiki: 2 documents, 1 that stood before left out",
        "pairs: 1 documents, 2 that stood before left out",
        "merged: 3 documents; questions: 1 train, 2 test",
    ]
    assert merged.splits["test"].questions == (DOG, CAT), "what one source tests on is not trained on"
    assert merged.splits["test"].qrels == {"1": {"wiki/1": 2, "pairs/2": 1, "wiki/2": 1}, "2": {"wiki/2": 2}}
    assert merged.splits["train"] == Split((FISH,), {"3": {"wiki/2": 1}})
    assert (merged.name, merged.licence) == ("merged", "wiki: CC0; pairs: not stated")


def test_grade_0_is_merged_where_its_document_is_there_and_levels_must_agree(folders, tmp_path):
    judged = {"1": {"1": 3, "2": 0, "absent": 0}}
    splits = {"test": Split((DOG,), judged)}
    save_beir(Dataset("graded", PAIRS.corpus, splits, relevance_level=2), tmp_path / "graded")
    sources = {"wiki": folders["wiki"], "graded": tmp_path / "graded"}
    merge(sources, tmp_path / "alone", ["graded"])
    alone = load_beir(tmp_path / "alone")
    assert alone.relevance_level == 2
    assert alone.splits["test"].qrels == {"1": {"wiki/1": 3, "graded/2": 0}}
    with refused(DataError, "1: 'wiki'", "2: 'graded'"):
        merge(sources, tmp_path / "both")


def test_questions_that_leave_out_documents_by_their_ids_are_refused(folders, tmp_path):
    save_beir(replace(PAIRS, ignore_identical_ids=True), tmp_path / "same-ids")
    excluding = {"test": Split((replace(DOG, excluded=("2",)),), {"1": {"1": 1}})}
    save_beir(replace(PAIRS, splits=excluding), tmp_path / "excluding")
    for name in ("same-ids", "excluding"):
        sources = {"wiki": folders["wiki"], "other": tmp_path / name}
        with refused(DataError, tmp_path / name, "--questions"):
            merge(sources, tmp_path / "merged")
        assert not (tmp_path / "merged").exists()
        merge(sources, tmp_path / f"with-{name}", ["wiki"])
