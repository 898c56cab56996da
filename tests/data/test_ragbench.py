"""RAGBench in its published form: hand-written rows, and four real parts end to end."""

import json

import pyarrow as pa
from pyarrow import parquet
from querylect.data.beir import load_beir
from querylect.data.get import get
from querylect.data.ragbench import PARTS, open_ragbench
from querylect.data.rows import document_id
from querylect.errors import DataError

from ..raising import refused

ROWS = {
    ("covidqa", "test"): [
        ("7", "How does it spread?", ["By droplets.", "Masks help."], ["0a", "0b."]),
        ("8", "Do masks help?", ["Masks help.", "By droplets."], ["1a", "9a", "x"]),
    ],
    ("covidqa", "train"): [
        ("1", "HOW does it spread?", ["By droplets."], ["0a"]),
        ("2", "Who is at risk?", ["The old.", " "], ["0a"]),
    ],
    ("emanual", "test"): [
        ("7", "How do I turn it on?", ["Press power.", "Masks help."], []),
        ("7", "How do I turn it on?", ["Press power.", "Plug it in."], ["1c"]),
    ],
}


def write(folder, rows=ROWS, **columns):
    """The published layout of these rows."""
    for (part, split), part_rows in rows.items():
        (folder / part).mkdir(parents=True, exist_ok=True)
        names = ("id", "question", "documents", "all_relevant_sentence_keys")
        table = {name: [row[column] for row in part_rows] for column, name in enumerate(names)}
        table |= {
            "dataset_name": [f"{part}_{split}"] * len(part_rows),
            "adherence_score": [True] * len(part_rows),
        } | columns
        parquet.write_table(pa.table(table), folder / part / f"{split}-00000-of-00001.parquet")
    return folder


def load(folder, parts="covidqa,emanual"):
    get("ragbench", folder / "out", folder, subset=parts)
    return load_beir(folder / "out")


def test_all_documents_are_one_corpus_and_those_of_a_row_are_relevant(tmp_path):
    dataset = load(write(tmp_path))
    texts = [document.text for document in dataset.corpus]
    assert sorted(texts) == sorted(["By droplets.", "The old.", "Masks help.", "Press power.", "Plug it in."])
    test = dataset.splits["test"]
    assert [question.id for question in test.questions] == ["covidqa/7", "covidqa/8", "emanual/7"]
    assert test.qrels["covidqa/8"] == {document_id("Masks help."): 1, document_id("By droplets."): 1}
    # two rows, one question: the documents of both
    assert set(test.qrels["emanual/7"]) == {document_id(t) for t in ("Press power.", "Masks help.", "Plug it in.")}
    assert [question.text for question in dataset.splits["train"].questions] == ["Who is at risk?"]
    assert dataset.licence.startswith("CC BY 4.0")
    notes = "\n".join(json.loads((tmp_path / "out" / "meta.json").read_text())["notes"])
    assert "1 of 6 rows repeat a question" in notes
    assert "1 of 2 questions of train are taken out" in notes


def test_an_id_that_two_questions_have_stays_two_questions(tmp_path):
    rows = {("covidqa", "test"): [("1", "one?", ["a"], []), ("1", "two?", ["b"], [])]}
    questions = load(write(tmp_path, rows), "covidqa").splits["test"].questions
    assert [question.text for question in questions] == ["one?", "two?"]
    assert questions[0].id == "covidqa/1"
    assert questions[1].id.startswith("covidqa/1-")


def test_a_shard_that_is_missing_cut_off_or_of_something_else_is_named(tmp_path):
    shard = write(tmp_path) / "covidqa" / "test-00000-of-00001.parquet"
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    with refused(DataError, shard):
        load(tmp_path)
    parquet.write_table(pa.table({"question": ["?"]}), shard)
    with refused(DataError, shard, "documents"):
        load(tmp_path)
    shard.rename(shard.with_name("test-00000-of-00002.parquet"))
    with refused(DataError, tmp_path / "covidqa", "1 of 2"):
        load(tmp_path)


def test_only_the_whole_benchmark_bears_its_name(tmp_path):
    rows = [("1", "one?", ["a"], [])]
    folder = write(tmp_path, {(part, "test"): rows for part in PARTS})
    assert open_ragbench(folder).name == "ragbench"
    assert open_ragbench(folder, ["covidqa", "cuad"]).name == "ragbench[covidqa,cuad]"
