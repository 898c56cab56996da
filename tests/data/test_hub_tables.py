"""Tables of documents, questions and judgements as MTEB and BEIR publish them on the Hub."""

import gzip

import pyarrow as pa
import pytest
from pyarrow import parquet
from querylect.data.beir import load_beir
from querylect.data.get import get
from querylect.errors import DataError

from ..jsonl import jsonl
from ..raising import refused

DOCUMENTS = [{"_id": "d1", "title": "Head", "text": "aspirin"}, {"_id": "d2", "title": "", "text": "insulin"}]
QUESTIONS = [{"_id": "q1", "text": "what helps?"}, {"_id": "q2", "text": "sugar?"}, {"_id": "q3", "text": "unasked"}]
QRELS = [("q1", "d1", 2), ("q1", "d2", 0), ("q2", "d2", 1)]


def as_jsonl(folder):
    """The older form: JSON lines."""
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(jsonl(DOCUMENTS))
    (folder / "queries.jsonl").write_text(jsonl(QUESTIONS))
    qrels = [dict(zip(("query-id", "corpus-id", "score"), row, strict=True)) for row in QRELS]
    (folder / "qrels" / "test.jsonl").write_text(jsonl(qrels))


def as_parquet(folder, prefix=""):
    """The newer form: a folder of Parquet shards for each table; scores are floats, ids are called id."""
    documents = [{"id": row["_id"], "title": row["title"], "text": row["text"]} for row in DOCUMENTS]
    tables = {
        "corpus": {"test-00000-of-00002": documents[:1], "test-00001-of-00002": documents[1:]},
        "queries": {"test-00000-of-00001": [{"id": row["_id"], "text": row["text"]} for row in QUESTIONS]},
        "qrels": {
            "test-00000-of-00001": [{"query-id": q, "corpus-id": d, "score": float(grade)} for q, d, grade in QRELS]
        },
    }
    for table, files in tables.items():
        (folder / f"{prefix}{table}").mkdir(parents=True)
        for name, rows in files.items():
            parquet.write_table(pa.Table.from_pylist(rows), folder / f"{prefix}{table}" / f"{name}.parquet")


def as_beir_on_the_hub(folder):
    """Gzipped JSON lines, and the judgements of another repository put into qrels/, in two parts."""
    (folder / "qrels").mkdir(parents=True)
    for name, records in {"corpus": DOCUMENTS, "queries": QUESTIONS}.items():
        with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.write(jsonl(records))
    for number, part in enumerate((QRELS[:1], QRELS[1:])):
        rows = "".join(f"{q}\t{d}\t{grade}\n" for q, d, grade in part)
        (folder / "qrels" / f"test-0000{number}-of-00002.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    (folder / "README.md").write_text("---\nno: valid: YAML\n---\n# Card\n")


def load(folder, subset=None):
    get("hub:own/tiny", folder / "out", folder, subset)
    return load_beir(folder / "out")


@pytest.mark.parametrize("write", [as_jsonl, as_parquet, as_beir_on_the_hub])
def test_every_published_form_gives_the_same_dataset(tmp_path, write):
    write(tmp_path / "tiny")
    dataset = load(tmp_path / "tiny")
    assert [(d.id, d.title, d.text) for d in dataset.corpus] == [("d1", "Head", "aspirin"), ("d2", "", "insulin")]
    assert [question.text for question in dataset.splits["test"].questions] == ["what helps?", "sugar?"]
    assert dataset.splits["test"].qrels == {"q1": {"d1": 2, "d2": 0}, "q2": {"d2": 1}}
    assert dataset.name == "own/tiny"


def test_a_subset_is_chosen_by_name(tmp_path):
    for language in ("en", "de"):
        as_parquet(tmp_path, f"{language}-")
    for subset in ("fr", None):
        with refused(DataError, "de, en", "--subset"):
            load(tmp_path, subset)
    assert len(load(tmp_path, "de").corpus) == 2


@pytest.mark.parametrize(
    ("rows", "facts"),
    [
        ([("q1", "d1", 0.5)], ["row 1", 0.5]),
        ([("q1", "d1", 1.0), ("q1", "d1", 2.0)], ["row 2", "'q1'", "'d1'", " 2 ", " 1 "]),
    ],
)
def test_a_broken_judgement_is_told(tmp_path, rows, facts):
    as_parquet(tmp_path)
    table = pa.table(
        {"query-id": [r[0] for r in rows], "corpus-id": [r[1] for r in rows], "score": [r[2] for r in rows]}
    )
    parquet.write_table(table, tmp_path / "qrels" / "test-00000-of-00001.parquet")
    with refused(DataError, *facts):
        load(tmp_path)
