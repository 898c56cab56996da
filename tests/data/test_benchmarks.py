"""RAGBench and FinAgentBench in their published forms, in rows of our own and real ones; test_bright.py has BRIGHT."""

import json

import pyarrow as pa
import pytest
from pyarrow import parquet
from querylect.data.beir import load_beir
from querylect.data.benchmarks import PARTS, open_ragbench
from querylect.data.get import get
from querylect.data.rows import document_id
from querylect.errors import DataError

from ..jsonl import jsonl
from ..raising import refused

ROWS = {
    ("covidqa", "test"): [
        ("7", "How does it spread?", ["By droplets.", "Masks help."]),
        ("8", "Do masks help?", ["Masks help.", "By droplets."]),
    ],
    ("covidqa", "train"): [("1", "HOW does it spread?", ["By droplets."]), ("2", "Who is at risk?", ["The old.", " "])],
    ("emanual", "test"): [
        ("7", "How do I turn it on?", ["Press power.", "Masks help."]),
        ("7", "How do I turn it on?", ["Press power.", "Plug it in."]),
        ("7", "And off?", ["Press power."]),
    ],
}


def write_ragbench(folder, rows=ROWS):
    for (part, split), part_rows in rows.items():
        (folder / part).mkdir(parents=True, exist_ok=True)
        table = {
            name: [row[column] for row in part_rows] for column, name in enumerate(("id", "question", "documents"))
        }
        table["adherence_score"] = [True] * len(part_rows)
        parquet.write_table(pa.table(table), folder / part / f"{split}-00000-of-00001.parquet")
    return folder


def load_ragbench(folder):
    get("ragbench", folder / "out", folder, subset="covidqa,emanual")
    return load_beir(folder / "out")


def test_all_documents_are_one_corpus_and_those_of_a_row_are_relevant(tmp_path):
    dataset = load_ragbench(write_ragbench(tmp_path))
    texts = [document.text for document in dataset.corpus]
    assert sorted(texts) == sorted(["By droplets.", "The old.", "Masks help.", "Press power.", "Plug it in."])
    test = dataset.splits["test"]
    ids = [question.id for question in test.questions]
    assert ids[:3] == ["covidqa/7", "covidqa/8", "emanual/7"]
    assert ids[3].startswith("emanual/7-"), "another question of the same id"
    assert test.qrels["covidqa/8"] == {document_id("Masks help."): 1, document_id("By droplets."): 1}
    # two rows, one question: the documents of both
    assert set(test.qrels["emanual/7"]) == {document_id(t) for t in ("Press power.", "Masks help.", "Plug it in.")}
    assert [question.text for question in dataset.splits["train"].questions] == ["Who is at risk?"]
    assert dataset.licence.startswith("CC BY 4.0")
    notes = "\n".join(json.loads((tmp_path / "out" / "meta.json").read_text())["notes"])
    assert "1 of 7 rows repeat a question" in notes
    assert "1 questions of train are by id or text one of test" in notes


def test_a_shard_that_is_missing_cut_off_or_of_something_else_is_named(tmp_path):
    shard = write_ragbench(tmp_path) / "covidqa" / "test-00000-of-00001.parquet"
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    with refused(DataError, shard):
        load_ragbench(tmp_path)
    parquet.write_table(pa.table({"id": ["1"], "question": ["?"]}), shard)
    with refused(DataError, shard, "documents"):
        load_ragbench(tmp_path)
    shard.rename(shard.with_name("test-00000-of-00002.parquet"))
    with refused(DataError, tmp_path / "covidqa", "1 of 2"):
        load_ragbench(tmp_path)


def test_only_the_whole_of_ragbench_bears_its_name(tmp_path):
    folder = write_ragbench(tmp_path, {(part, "test"): ROWS["covidqa", "test"] for part in PARTS})
    assert open_ragbench(folder).name == "ragbench"
    assert open_ragbench(folder, ["covidqa", "cuad"]).name == "ragbench[covidqa,cuad]"


def chunk_prompt(question, chunks):
    listed = "\n".join(f"[Chunk Index {index}] {text}" for index, text in enumerate(chunks))
    return (
        "Identify the 5 most relevant text chunks for answering this question, then rank them.\n"
        f"Question: {question}\nText chunks:\n{listed}\nTask: Select and rank the 5 most relevant chunks.\n"
        "Response Format: [3, 1]"
    )


def prompt_row(prompt, qrel):
    graded = {} if qrel is None else {"qrel": qrel}
    return {"uuid": "q1", "messages": [{"role": "user", "content": prompt}], **graded}


def load_finagentbench(folder, to, task="chunks"):
    get("finagentbench", to, folder, subset=task)
    return load_beir(to)


def grades(dataset):
    """Question text → chunk text → grade."""
    texts = {document.id: document.text for document in dataset.corpus}
    split = dataset.splits["test"]
    return {q.text: {texts[d]: g for d, g in split.qrels[q.id].items()} for q in split.questions}


def test_prompts_are_taken_apart_and_pooled(tmp_path):
    tricky = "Revenue rose.\n[Chunk Index 7] is cited.\n\nTask: none"
    rows = [
        prompt_row(chunk_prompt("Did revenue rise?", ["Cover page", tricky, "Outlook"]), {"0": 0, "1": 2, "2": 1}),
        prompt_row(chunk_prompt("Did revenue rise?", ["Other filing", "Outlook"]), {"0": 1, "1": 2}),
        prompt_row(chunk_prompt("Is there a dividend?", ["Cover page", "Outlook"]), {"0": 1.0, "1": 0}),
        prompt_row(chunk_prompt("Never relevant?", ["Cover page"]), {"0": 0}),
    ]
    (tmp_path / "chunk_ranking_kaggle_dev.jsonl").write_text(jsonl(rows))
    unlabelled = prompt_row(chunk_prompt("Unlabelled?", ["Held out chunk"]), None)
    (tmp_path / "chunk_ranking_kaggle_eval.jsonl").write_text(jsonl([unlabelled]))
    dataset = load_finagentbench(tmp_path, tmp_path / "out")
    assert [d.text for d in dataset.corpus] == ["Cover page", tricky, "Outlook", "Other filing", "Held out chunk"]
    assert grades(dataset) == {
        "Did revenue rise?": {"Cover page": 0, tricky: 2, "Outlook": 2, "Other filing": 1},
        "Is there a dividend?": {"Cover page": 1, "Outlook": 0},
    }
    notes = json.loads((tmp_path / "out" / "meta.json").read_text())["notes"]
    assert [note.split()[1] for note in notes[:2]] == ["1", "1"]


@pytest.mark.parametrize(
    ("prompt", "qrel", "fact"),
    [
        ("Question: Who is paid?\n\nDocument Types to rank:\n[Document Index 0] 10-K\n", {"0": 1}, "Text chunks:"),
        (chunk_prompt("Who is paid?", ["a"]), {"1": 1}, "candidate 1 of 1"),
        (chunk_prompt("Who is paid?", ["a"]), {"-1": 1}, "-1"),
        (chunk_prompt("Who is paid?", ["a"]), {"0": "high"}, "'high'"),
    ],
)
def test_a_damaged_prompt_or_grade_is_named(tmp_path, prompt, qrel, fact):
    (tmp_path / "chunk_ranking_kaggle_dev.jsonl").write_text(jsonl([prompt_row(prompt, qrel)]))
    with refused(DataError, "chunk_ranking_kaggle_dev.jsonl, line 1", fact):
        load_finagentbench(tmp_path, tmp_path / "out")


def test_the_real_rows_rank_types_of_documents(realdata, tmp_path):
    dataset = load_finagentbench(realdata / "finagentbench", tmp_path / "out", "documents")
    assert sorted(document.text for document in dataset.corpus) == ["10-K", "10-Q", "8-K", "DEF14A", "Earnings"]
    lines = (realdata / "finagentbench" / "finagentbench_document_ranking_dev_head20.jsonl").read_text().splitlines()
    assert len(dataset.splits["test"].questions) == len(lines) == 20
    first = json.loads(lines[0])["qrel"]
    loaded_grades = next(iter(grades(dataset).values()))
    assert (loaded_grades["Earnings"], sorted(loaded_grades.values())) == (first["4"], sorted(first.values()))
