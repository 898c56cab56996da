"""Conversational benchmarks: hand-written rows in the published schemas of TopiOCQA and QReCC."""

import gzip
import json
from pathlib import Path

import pytest
from querylect.data.beir import load_beir
from querylect.data.get import get
from querylect.data.types import Document, Question, Utterance
from querylect.errors import DataError

from ..jsonl import jsonl
from ..raising import refused


def user(text):
    return Utterance("user", text)


def system(text):
    return Utterance("assistant", text)


def write(folder: Path, files) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return folder


def load(name, folder, to):
    get(name, to, folder)
    return load_beir(to)


TOPIOCQA = [
    {
        "Conversation_no": 1, "Turn_no": 1, "Question": "who built the old bridge", "Answer": "Ada Stone",
        "Topic": "Old Bridge", "Topic_section": "Introduction", "Rationale": "was built by Ada Stone", "is_nq": True,
        "Context": [], "Additional_answers": [],
        "Gold_passage": {"id": "wiki:7", "title": "Old Bridge", "text": "The bridge was built by Ada Stone."},
    },
    {
        "Conversation_no": 1, "Turn_no": 2, "Question": "where was she born?", "Answer": "in Ulm",
        "Context": ["who built the old bridge", "Ada Stone"],
        "Gold_passage": {"id": "wiki:9", "title": "Ada Stone", "text": "Ada Stone was born in Ulm."},
    },
]  # fmt: skip
TOPIOCQA_DEV = [{**TOPIOCQA[0], "Question": "how long is the dam", "Gold_passage": {"id": "wiki:8", "text": "90 m"}}]


def test_topiocqa_has_the_conversation_and_its_gold_passages(tmp_path):
    folder = write(tmp_path / "raw", {"topiocqa_train.json": TOPIOCQA, "topiocqa_dev.json": TOPIOCQA_DEV})
    dataset = load("topiocqa", folder, tmp_path / "out")
    assert [document.id for document in dataset.corpus] == ["wiki:8", "wiki:7", "wiki:9"]
    history = (user("who built the old bridge"), system("Ada Stone"))
    assert dataset.splits["train"].questions == (
        Question("train-1_1", "who built the old bridge"),
        Question("train-1_2", "where was she born?", history=history),
    )
    assert dataset.splits["train"].qrels["train-1_2"] == {"wiki:9": 1}
    assert [question.id for question in dataset.splits["validation"].questions] == ["validation-1_1"]
    assert "CC BY-NC-SA 4.0" in dataset.licence
    assert "the corpus is the 3 gold passages" in (tmp_path / "out" / "meta.json").read_text(encoding="utf-8")


def test_topiocqa_reads_the_published_passages(tmp_path):
    lines = "id\ttext\ttitle\nwiki:7\tThe bridge.\tOld Bridge\nwiki:9\tBorn in Ulm.\tAda Stone\nwiki:3\tx\ty\n"
    published = ({"topiocqa_train.json": TOPIOCQA}, {"topiocqa_train.jsonl.gz": jsonl(TOPIOCQA)})
    for number, files in enumerate(published):
        folder = write(tmp_path / str(number), {**files, "collection/full_wiki_segments.tsv.gz": lines})
        dataset = load("topiocqa", folder, tmp_path / f"out-{number}")
        assert dataset.corpus[0] == Document("wiki:7", "Old Bridge", "The bridge.")
        assert len(dataset.corpus) == 3
        assert len(dataset.splits["train"].questions) == 2


QRECC = [
    {
        "Conversation_no": 2, "Turn_no": 1, "Question": "What does a crane eat?", "Truth_answer": "seeds",
        "Truth_rewrite": "What does a crane eat?", "Truth_passages": ["http://a.example/crane_p0"],
    },
    {
        "Conversation_no": 2, "Turn_no": 2, "Question": "And in winter?", "Truth_answer": "",
        "Truth_rewrite": "What does a crane eat in winter?", "Truth_passages": ["http://a.example/crane_p1"],
    },
    {"Conversation_no": 2, "Turn_no": 3, "Question": "Why?", "Truth_rewrite": "", "Truth_passages": []},
]  # fmt: skip
PUBLISHED = {
    "Conversation_no": 2, "Turn_no": 2, "Context": ["Where do storks live?", "in Africa"], "Question": "All year?",
    "Rewrite": "Do storks live in Africa all year?", "Answer": "no", "Answer_URL": "http://a.example/stork",
    "Conversation_source": "quac", "Truth_passages": ["http://a.example/crane_p1"],
}  # fmt: skip
PASSAGES = jsonl({"id": f"http://a.example/crane_p{number}", "contents": f"cranes {number}"} for number in range(3))


def test_qrecc_has_rewrites_and_earlier_rows_as_history(tmp_path):
    files = {
        "scai-qrecc21-test-ground-truth.json": QRECC,
        "qrecc_train.json": [PUBLISHED],
        "collection/part/p0.jsonl": PASSAGES,
    }
    dataset = load("qrecc", write(tmp_path / "raw", files), tmp_path / "out")
    first, second = dataset.splits["test"].questions
    assert (first.id, first.history, first.reference_rewrite) == ("test-2_1", (), "What does a crane eat?")
    assert second.history == (user("What does a crane eat?"), system("seeds"))
    assert second.reference_rewrite == "What does a crane eat in winter?"
    assert dataset.splits["test"].qrels["test-2_2"] == {"http://a.example/crane_p1": 1}
    (trained,) = dataset.splits["train"].questions
    assert (trained.id, trained.history) == ("train-2_2", (user("Where do storks live?"), system("in Africa")))
    assert trained.reference_rewrite == "Do storks live in Africa all year?"
    assert len(dataset.corpus) == 3


@pytest.mark.parametrize(
    ("kind", "files", "facts"),
    [
        ("topiocqa", {"other.json": []}, ["*topiocqa*.json"]),
        ("topiocqa", {"topiocqa_dev.json": "{"}, ["topiocqa_dev.json"]),
        ("topiocqa", {"topiocqa_dev.json": [{**TOPIOCQA[0], "Question": " "}]}, ["row 1"]),
        (
            "qrecc",
            {"qrecc_test.json": [{**PUBLISHED, "Truth_passages": None}], "corpus.jsonl": '{"_id": "d", "text": "x"}'},
            ["relevant"],
        ),
        ("qrecc", {"qrecc_test.json": [PUBLISHED]}, ["collection/"]),
    ],
)
def test_what_is_wrong_is_named_with_file_and_row(tmp_path, kind, files, facts):
    with refused(DataError, *facts):
        load(kind, write(tmp_path / "raw", files), tmp_path / "out")
