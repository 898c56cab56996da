"""A BEIR folder without near-duplicates, found by a real encoder."""

import json
from functools import partial

import numpy as np
import pytest
from querylect.configs.schema import EnvironmentConfig
from querylect.data.beir import load_beir, save_beir
from querylect.data.check import check
from querylect.data.prepare import near_duplicates, prepare
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.retrievers.encoder import open_encoder
from querylect.errors import DataError

from ..command import end
from ..encoders import DOCUMENTS, save_bert
from ..raising import refused

pytestmark = pytest.mark.model

TEXTS = [DOCUMENTS[0], DOCUMENTS[1].upper(), DOCUMENTS[1], DOCUMENTS[2]]  # the tokenizer lower-cases
QUESTIONS = {"train": {"a": "who tamed the dogs?", "b": "another"}, "test": {"t": "who tamed the dogs"}}
JUDGED = {"a": {"d0": 1}, "b": {"d3": 1}, "t": {"d0": 1, "d1": 1, "d2": 2}}


@pytest.fixture
def folder(tmp_path):
    splits = {
        name: Split([Question(key, text) for key, text in texts.items()], {key: JUDGED[key] for key in texts})
        for name, texts in QUESTIONS.items()
    }
    corpus = [Document(f"d{number}", "", text) for number, text in enumerate(TEXTS)]
    fields = {"t": {"answers": ["Ann"]}}
    save_beir(Dataset("mine", corpus, splits, licence="CC0", ignore_identical_ids=True), tmp_path / "mine", fields)
    return tmp_path / "mine"


def test_judgements_follow_the_copy_that_is_kept(tmp_path, folder, capsys):
    model = save_bert(tmp_path / "bert")
    assert end("data", "prepare", folder, "--to", tmp_path / "out", "--encoder", model) == 0
    assert "mine: 3 documents; questions: 2 train, 1 test\n1 near-duplicates removed" in capsys.readouterr().out
    dataset, before = load_beir(tmp_path / "out"), load_beir(folder)
    assert [document.id for document in dataset.corpus] == ["d0", "d1", "d3"]
    assert dataset.splits["test"].qrels == {"t": {"d0": 1, "d1": 2}}
    assert (dataset.licence, dataset.ignore_identical_ids) == (before.licence, True)
    assert (tmp_path / "out" / "duplicates.tsv").read_text().splitlines()[1].split("\t")[:2] == ["d2", "d1"]
    details = json.loads((tmp_path / "out" / "meta.json").read_text())["near_duplicates"]
    assert (details["cosine_over"], details["removed"]) == (0.99, 1)
    assert '"answers": ["Ann"]' in (tmp_path / "out" / "queries.jsonl").read_text()
    assert "5 files, each with the sha256" in "\n".join(check(tmp_path / "out"))


@pytest.mark.parametrize("encoder", [None, pytest.fail])
def test_a_corpus_without_documents_is_refused_before_the_encoder_is_opened(tmp_path, encoder):
    (tmp_path / "corpus.jsonl").touch()
    with refused(DataError, tmp_path / "corpus.jsonl"):
        prepare(tmp_path, tmp_path / "out", encoder)


def test_without_an_encoder_only_questions_are_taken_out(tmp_path, folder):
    assert any("nearly the same" in line for line in prepare(folder, tmp_path / "all"))
    assert load_beir(tmp_path / "all").splits == load_beir(folder).splits
    prepare(folder, tmp_path / "out", near=True)
    assert [question.id for question in load_beir(tmp_path / "out").splits["train"].questions] == ["b"]
    assert load_beir(tmp_path / "out").corpus == load_beir(folder).corpus
    with refused(DataError, tmp_path / "out"):
        prepare(folder, tmp_path / "out")
    with refused(DataError, "--encoder", "'bm25'"):
        prepare(folder, tmp_path / "new", partial(open_encoder, EnvironmentConfig(retriever="bm25")))


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_blocks_decide_nothing(size, monkeypatch):
    """The greedy rule, document by document, over vectors with chains of neighbours."""
    angles = np.concatenate([np.linspace(0, 1.2, 25), [0.0, 0.5, 3.0, 3.0], np.linspace(1.3, 0, 20)])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    threshold, expected, retained = 0.99, [], []
    for position, vector in enumerate(vectors):
        twin = next((earlier for earlier in retained if float(vectors[earlier] @ vector) > threshold), None)
        if twin is None:
            retained.append(position)
        else:
            expected.append((position, twin))
    monkeypatch.setattr("querylect.data.prepare.BLOCK", size)
    duplicates = near_duplicates(vectors, threshold)
    assert [(position, kept) for position, (kept, _) in duplicates.items()] == expected
    assert all(cosine > threshold for _, cosine in duplicates.values())
    assert 3 < len(retained) < len(vectors) / 2
