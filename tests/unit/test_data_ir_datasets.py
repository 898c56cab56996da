"""Datasets of ir_datasets, with a hand-written dataset in its registry."""

import sys

import pytest
from querylect.configs.schema import DatasetConfig
from querylect.data.load import load_dataset
from querylect.errors import DataError, MissingPackageError

from ..raising import refused


@pytest.fixture
def library(tmp_path, monkeypatch):
    """ir_datasets with nothing but `tiny` (documents and questions), `tiny/test`, `tiny/dev` (judgements too), …"""
    ir_datasets = pytest.importorskip("ir_datasets", reason="pip install -e '.[ir-datasets]'")
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path))
    from ir_datasets.formats import TrecQrels, TsvDocs, TsvQueries

    class File:
        """What a downloaded file is to the library."""

        def __init__(self, name, text):
            self._path = tmp_path / name
            self._path.write_text(text)

        def path(self, force=True):
            return str(self._path)

        def stream(self):
            return self._path.open("rb")

    documents = TsvDocs(File("docs.tsv", "d1\taspirin relieves headache\nd2\tinsulin\n"))
    questions = TsvQueries(File("queries.tsv", "q1\twhat helps?\nq2\tsugar?\n"))
    qrels = {
        "tiny/test": "q1 0 d1 2\nq1 0 d2 0\nq1 0 gone 1\nq1 0 gone-too 0\n",
        "msmarco-passage/trec-dl-1900/judged": "q1 0 d1 2\n",
        "beir/msmarco/test": "q1 0 d1 2\nq1 0 d2 1\n",
        "beir/msmarco/dev": "q2 0 d2 1\n",
        "tiny/dev": "q2 0 d2 1\n",
        "tiny/lost": "q2 0 gone 1\n",
    }
    registered = dict(ir_datasets.registry._registered)
    ir_datasets.registry._registered.clear()
    for name in ("tiny", "beir/msmarco"):
        ir_datasets.registry.register(name, ir_datasets.Dataset(documents, questions))
    for name, text in qrels.items():
        judgements = TrecQrels(File(name.replace("/", "-"), text), {0: "no", 1: "yes", 2: "very"})
        ir_datasets.registry.register(name, ir_datasets.Dataset(documents, questions, judgements))
    yield ir_datasets
    ir_datasets.registry._registered.clear()
    ir_datasets.registry._registered.update(registered)


def load(identifier):
    return load_dataset(DatasetConfig(kind="ir_datasets", path=identifier))


def test_an_id_with_judgements_is_a_split(library):
    dataset = load("tiny/test")
    texts = {document.id: document.text for document in dataset.corpus}
    assert texts == {"d1": "aspirin relieves headache", "d2": "insulin"}
    assert dataset.splits["test"].qrels == {"q1": {"d1": 2, "d2": 0}}
    assert dataset.name == "tiny"
    assert [question.text for question in dataset.splits["test"].questions] == ["what helps?"]
    assert any("2 of 4 judgements are dropped, 1 of them of relevant documents" in note for note in dataset.notes)
    assert list(load("tiny/dev").splits) == ["validation"]


def test_binary_metrics_count_grade_2_for_trec_dl_passages_only(library):
    assert load("msmarco-passage/trec-dl-1900/judged").relevance_level == 2
    assert load("tiny/test").relevance_level == 1


def test_of_beirs_msmarco_only_the_split_of_trec_dl_counts_from_grade_2(library):
    dataset = load("beir/msmarco")
    levels = {name: split.relevance_level(dataset.relevance_level) for name, split in dataset.splits.items()}
    assert levels == {"validation": 1, "test": 2}


def test_an_id_without_judgements_stands_for_its_splits(library):
    assert {name: len(split.questions) for name, split in load("tiny").splits.items()} == {"validation": 1, "test": 1}


def test_what_the_catalogue_does_not_have_is_told(library):
    with refused(DataError, "'tiny/none'"):
        load("tiny/none")
    with refused(DataError, "tiny/lost", "1 of 1", "'gone'"):
        load("tiny/lost")
    library.registry.register("bare", library.Dataset(library.load("tiny").docs_handler()))
    with refused(DataError, "'bare'"):
        load("bare")


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with refused(MissingPackageError, "-e '.[ir-datasets]'"):
        load("tiny/test")
