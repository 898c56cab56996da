"""The configured dataset: leaks, packaged sets, the corpus hash, and the real BEIR folders."""

import pytest
from querylect.configs.environment import DatasetConfig
from querylect.data import corpus as corpus_module
from querylect.data.beir import load_beir, save_beir
from querylect.data.corpus import corpus_hash, load_dataset
from querylect.data.types import Dataset, Document, Question, Split
from querylect.errors import DataError

from ..command import end
from ..jsonl import read_jsonl
from ..raising import refused


def test_corpus_hash_stands_for_ever():
    """An index on disk is matched by this value: changing it makes every index foreign."""
    corpus = [Document("d1", "Título", "text"), Document("d2", "", "")]
    assert corpus_hash(iter(corpus)) == "d60099dcc0dc3bef93b1e515ac29191710820f0c2a178385cbcd833762a4a212"


def split(texts):
    return Split([Question(key, text) for key, text in texts.items()], {key: {"d": 1} for key in texts})


def ids(dataset):
    return {name: [question.id for question in split.questions] for name, split in dataset.splits.items()}


def test_leaks_are_listed_by_every_criterion_and_left_out_where_the_dataset_is_read(tmp_path, capsys):
    train = {"a": "who tamed the dog?", "b": "who tamed the dogs?", "d": "unlike all others"}
    splits = {"train": split(train), "test": split({"t": "Who tamed the  dog?"})}
    save_beir(Dataset("mine", [Document("d", "", "Ann.")], splits), tmp_path / "mine")
    listed, config = tmp_path / "leaks.jsonl", DatasetConfig(path=str(tmp_path / "mine"))
    assert end("data", "check", tmp_path / "mine", "--leaks", listed) == 0
    stdout = capsys.readouterr().out
    assert "4 files, each with the sha256" in stdout
    assert "mine: 1 documents" in stdout
    assert "train: 3 questions, 3 judgements, 3 above 0 (1.00 a question; grades 1)" in stdout
    found = {(line["_id"], line["criterion"], line["of"]["_id"]) for line in read_jsonl(listed)}
    assert found == {("a", "text", "t"), ("b", "near", "t")}
    for loaded in (load_dataset(config), load_dataset(config, {"d"})):
        assert ids(loaded) == {"train": ["b", "d"], "test": ["t"]}
        assert loaded.notes[-1].startswith("mine: 1 questions of train are by id or text one of test")
    assert capsys.readouterr().err.count("1 questions of train are by id or text") == 2, "what is removed is printed"
    (tmp_path / "mine" / "queries.jsonl").write_text("")
    assert end("data", "check", tmp_path / "mine") == 2
    assert "1 of 4 files" in capsys.readouterr().err


def test_a_packaged_set_is_made_once_and_read_as_any_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = []

    def make():
        made.append("small")
        return Dataset("small", [Document("d", "", "x")], {"test": split({"q": "?"})})

    monkeypatch.setattr(corpus_module, "PACKAGED", {"small": make})
    for _ in range(2):
        assert ids(load_dataset(DatasetConfig(path="small"))) == {"test": ["q"]}
    assert made == ["small"]
    (folder,) = (path for path in (tmp_path / "querylect" / "datasets").iterdir() if path.is_dir())
    assert read_jsonl(folder / "queries.jsonl") == [{"_id": "q", "text": "?"}]
    with refused(DataError, "nowhere"):
        load_dataset(DatasetConfig(path="nowhere"))


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
