"""Knowledge bases of chunks and of question-answer pairs, and several BEIR folders as one."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from querylect.data.beir import load_beir, save_beir
from querylect.data.knowledge_bases import chunks_of, merge, write_chunks, write_pairs
from querylect.data.types import Dataset, Document, Question, Split
from querylect.errors import DataError

from ..command import end
from ..jsonl import write_jsonl
from ..raising import refused


def test_a_chunk_has_fewer_words_and_keeps_the_text_as_it_is():
    assert chunks_of("one two,  three four five", 3) == ["one two,", "three four", "five"]
    assert chunks_of("缺铁 会贫血", 4) == ["缺铁 会", "贫血"], "a character is a word"
    assert chunks_of(" ", 3) == [" "]
    assert chunks_of("one two", 300) == ["one two"]


@given(st.text(st.sampled_from("ab 缺\n"), max_size=60), st.integers(2, 9))
def test_chunks_are_the_whole_text_in_order(text, words):
    parts = chunks_of(text, words)
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(len(re.findall("缺|[ab]+", part)) < words for part in parts)


def test_chunks_stand_once_and_inherit_judgements(tmp_path):
    corpus = [Document("1", "Dogs", "red dogs bark"), Document("2", "Dogs", "red dogs sleep"), Document("3", "", "")]
    questions = [Question("q", "which dogs?"), Question("p", "who sleeps?")]
    split = Split(questions, {"q": {"1": 2, "2": 1}, "p": {"2": 1}})
    save_beir(Dataset("dogs", corpus, {"test": split}, relevance_level=2), tmp_path / "dogs")
    (line,) = write_chunks(tmp_path / "dogs", tmp_path / "chunks", 3)
    assert "3 documents in 4 chunks" in line
    assert "1 that stood before" in line
    chunks = load_beir(tmp_path / "chunks")
    assert [(chunk.id, chunk.title, chunk.text) for chunk in chunks.corpus] == [
        ("1#1", "Dogs", "red dogs"), ("1#2", "Dogs", "bark"), ("2#2", "Dogs", "sleep"), ("3#1", "", ""),
    ]  # fmt: skip
    assert chunks.relevance_level == 2
    assert chunks.splits["test"].qrels == {"q": {"1#1": 2, "1#2": 2, "2#2": 1}, "p": {"1#1": 1, "2#2": 1}}
    with refused(DataError, tmp_path / "chunks"):
        write_chunks(tmp_path / "dogs", tmp_path / "chunks", 3)
    excluding = Split([Question("2", "which dogs?", excluded=("3",)), questions[1]], {"2": {"1": 1}, "p": {"2": 1}})
    save_beir(Dataset("dogs", corpus, {"test": excluding}, ignore_identical_ids=True), tmp_path / "excluding")
    write_chunks(tmp_path / "excluding", tmp_path / "out", 3)
    asked = load_beir(tmp_path / "out").splits["test"].questions
    assert [question.excluded for question in asked] == [("3#1", "1#1", "2#2"), ()]


def test_pairs_are_documents_and_go_into_a_merged_knowledge_base(tmp_path, capsys):
    rows = [
        {"_id": "a", "question": "what stops pain?", "answers": ["aspirin", "ibuprofen"]},
        {"_id": "b", "question": "贫血怎么办？", "answer": "补铁"},
        {"_id": "c", "question": "what stops pain?", "answers": ["aspirin", "ibuprofen"]},
        {"_id": "d", "question": "and what else?", "answers": []},
    ]
    file = write_jsonl(tmp_path / "qa.jsonl", *rows)
    assert end("data", "pairs", file, "--to", tmp_path / "pairs") == 0
    assert "2 pairs, 1 that stood before left out, 1 without an answer skipped" in capsys.readouterr().out
    pairs = load_beir(tmp_path / "pairs")
    assert [(pair.id, pair.title, pair.text) for pair in pairs.corpus] == [
        ("a", "what stops pain?", "aspirin; ibuprofen"), ("b", "贫血怎么办？", "补铁"),
    ]  # fmt: skip
    assert pairs.splits["train"].qrels == {"a": {"a": 1}, "b": {"b": 1}}
    assert end("data", "chunks", tmp_path / "pairs", "--to", tmp_path / "chunks", "--words", 2) == 0
    assert "2 documents in 4 chunks" in capsys.readouterr().out
    sources = [f"pairs={tmp_path / 'pairs'}", f"chunks={tmp_path / 'chunks'}"]
    assert end("data", "merge", *sources, "--questions", "pairs", "--to", tmp_path / "merged") == 0
    assert len(load_beir(tmp_path / "merged").corpus) == 6
    file.write_text('{"_id": "a", "question": "why?"}\n')
    with refused(DataError, file):
        write_pairs(file, tmp_path / "none")
    write_jsonl(file, {"_id": "a", "question": "who?", "answers": "['Ann', 'Bo'"})
    with refused(DataError, f"{file}, line 1", "['Ann', 'Bo'"):
        write_pairs(file, tmp_path / "none")


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
