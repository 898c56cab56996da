"""A published benchmark as a BEIR folder, near-duplicates taken out by a real encoder."""

import json
from functools import partial

import numpy as np
import pytest
from querylect.cli import main
from querylect.configs.schema import DatasetConfig, EnvironmentConfig
from querylect.data import prepare as preparing
from querylect.data.beir import load_beir, save_beir
from querylect.data.check import check
from querylect.data.load import load_dataset
from querylect.data.prepare import prepare
from querylect.data.ragbench import document_id
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.retrievers.encoder import open_encoder
from querylect.errors import DataError

from ..encoders import DOCUMENTS, save_bert
from ..raising import refused
from .test_ragbench import write

pytestmark = pytest.mark.server

SAME = DOCUMENTS[1].upper()  # the tokenizer lower-cases: another text with the same embedding
ROWS = {
    ("covidqa", "test"): [("1", "one?", [DOCUMENTS[0], SAME], []), ("2", "two?", [DOCUMENTS[1], SAME], [])],
    ("covidqa", "train"): [("3", "three?", [DOCUMENTS[2], DOCUMENTS[3], DOCUMENTS[4]], [])],
}
PART = {"kind": "ragbench", "parts": ["covidqa"]}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return partial(open_encoder, EnvironmentConfig(retriever=save_bert(tmp_path_factory.mktemp("bert"))))


@pytest.fixture
def published(tmp_path):
    return DatasetConfig(path=str(write(tmp_path / "ragbench", ROWS)), **PART)


def test_judgements_follow_the_copy_that_is_kept(tmp_path, published, encoder):
    meta = prepare(published, tmp_path / "out", encoder)
    dataset = load_beir(tmp_path / "out")
    kept_id = document_id(SAME)  # the first in corpus order: test rows stand after train rows, SAME before its twin
    removed_id = document_id(DOCUMENTS[1])
    assert {kept_id, removed_id} - {document.id for document in dataset.corpus} == {removed_id}
    assert dataset.splits["test"].qrels == {
        "covidqa/1": {document_id(DOCUMENTS[0]): 1, kept_id: 1},
        "covidqa/2": {kept_id: 1},
    }
    assert meta["near_duplicates"] | {"model": "", "encoder": ""} == {
        "encoder": "",
        "model": "",
        "max_length": meta["near_duplicates"]["max_length"],
        "cosine_over": 0.99,
        "removed": 1,
    }
    assert (tmp_path / "out" / "duplicates.tsv").read_text().splitlines()[1].split("\t")[:2] == [removed_id, kept_id]
    assert meta == json.loads((tmp_path / "out" / "meta.json").read_text())
    assert meta["documents"] == 5
    assert meta["questions"] == {"train": 1, "test": 2}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    report = "\n".join(check(tmp_path / "out"))
    assert "5 files, each with the sha256" in report
    assert "no question stands in two splits" in report


def test_without_an_encoder_it_is_what_the_kind_reads(tmp_path, published):
    prepare(published, tmp_path / "out")
    ours, direct = load_beir(tmp_path / "out"), load_dataset(published)
    assert (ours.corpus, ours.name, ours.licence) == (direct.corpus, direct.name, direct.licence)
    assert ours.splits["test"].qrels == direct.splits["test"].qrels
    with refused(DataError, tmp_path / "out"):
        prepare(published, tmp_path / "out")


def test_an_encoder_is_asked_for(tmp_path, published):
    with refused(DataError, "--encoder", "'bm25'"):
        prepare(published, tmp_path / "out", partial(open_encoder, EnvironmentConfig(retriever="bm25")))


@pytest.mark.parametrize("block", [1, 3, 7, 100])
def test_blocks_decide_nothing(monkeypatch, block):
    """The greedy rule, document by document, over vectors with chains of neighbours."""
    monkeypatch.setattr(preparing, "BLOCK", block)
    angles = np.concatenate([np.linspace(0, 1.2, 25), [0.0, 0.5, 3.0, 3.0], np.linspace(1.3, 0, 20)])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

    class Fixed:
        """Returns the vectors by index, which is the text of each document."""

        def documents(self, documents):
            return vectors[[int(document.text) for document in documents]] * 3

    threshold, expected, retained = 0.99, [], []
    for position, vector in enumerate(vectors):
        twin = next((earlier for earlier in retained if float(vectors[earlier] @ vector) > threshold), None)
        if twin is None:
            retained.append(position)
        else:
            expected.append((position, twin))
    documents = [Document(str(position), "", str(position)) for position in range(len(vectors))]
    duplicates = preparing.near_duplicates(preparing.embedded(documents, Fixed()), threshold)
    assert [(duplicate.position, duplicate.kept) for duplicate in duplicates] == expected
    assert all(duplicate.cosine > threshold for duplicate in duplicates)
    assert 3 < len(retained) < len(vectors) / 2


def test_leaks_are_listed_by_every_criterion_and_left_out_where_the_dataset_is_read(tmp_path, capsys):
    questions = {
        "train": {"a": "who tamed the dog?", "b": "who tamed the dogs", "d": "unlike all others"},
        "test": {"t": "Who tamed the dog"},
    }
    splits = {
        name: Split([Question(key, text) for key, text in texts.items()], {key: {"d1": 1} for key in texts})
        for name, texts in questions.items()
    }
    save_beir(Dataset("mine", [Document("d1", "", "Ann.")], splits), tmp_path / "mine")
    listed = tmp_path / "leaks.jsonl"
    arguments = ["data", "check", tmp_path / "mine", "--leaks", listed]
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, arguments)))
    assert not ended.value.code
    stdout = capsys.readouterr().out
    assert "1 of 1 questions of test are nearly the same as one of train" in stdout
    lines = [json.loads(line) for line in listed.read_text().splitlines()]
    assert {(line["_id"], line["criterion"], line["of"]["_id"]) for line in lines} == {
        ("a", "words", "t"),
        ("b", "letters", "t"),
    }
    config = DatasetConfig(path=str(tmp_path / "mine"))
    assert [question.id for question in load_dataset(config).splits["train"].questions] == ["b", "d"]
    dataset = load_dataset(config.model_copy(update={"leave_out": str(listed)}))
    assert [question.id for question in dataset.splits["train"].questions] == ["d"]
    assert "mine: 2 of 3 questions of train are left out" in " ".join(dataset.notes)
    listed.write_text('{"split": "test", "_id": "nobody"}\n')
    with refused(DataError, listed, "'nobody'", "mine"):
        load_dataset(config.model_copy(update={"leave_out": str(listed)}))


def test_a_benchmark_is_read_and_prepared_without_what_is_left_out(tmp_path, published):
    listed = tmp_path / "leaks.jsonl"
    listed.write_text('{"split": "test", "_id": "covidqa/2"}\n')
    config = published.model_copy(update={"leave_out": str(listed)})
    assert [question.id for question in load_dataset(config).splits["test"].questions] == ["covidqa/1"]
    assert prepare(config, tmp_path / "out")["questions"] == {"train": 1, "test": 1}
