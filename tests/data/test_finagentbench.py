"""FinAgentBench in its published form: hand-written prompts, and the twenty real rows."""

import json

import pytest
from querylect.data.beir import load_beir
from querylect.data.get import get
from querylect.errors import DataError

from ..raising import refused


def chunk_prompt(question, chunks):
    listed = "\n".join(f"[Chunk Index {index}] {text}" for index, text in enumerate(chunks))
    return (
        "Identify the 5 most relevant text chunks for answering this question, then rank them.\n"
        f"Question: {question}\nText chunks:\n{listed}\nTask: Select and rank the 5 most relevant chunks.\n"
        "Response Format: [3, 1]"
    )


def document_prompt(question, types):
    listed = "\n\n".join(f"[Document Index {index}] {text}" for index, text in enumerate(types))
    return (
        f"Rank the following financial document types.\n\nQuestion: {question}\n\nDocument Types to rank:\n{listed}\n\n"
        "Your response must be a list of indices in exact list format."
    )


def row(prompt, qrel):
    graded = {} if qrel is None else {"qrel": qrel}
    return {"uuid": "q1", "messages": [{"role": "user", "content": prompt}], **graded}


def write(folder, rows, name="chunk_ranking_kaggle_dev.jsonl"):
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in rows)
    (folder / name).write_text(text, encoding="utf-8")
    return folder


def load(folder, to, task="chunks"):
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
        row(chunk_prompt("Did revenue rise?", ["Cover page", tricky, "Outlook"]), {"0": 0, "1": 2, "2": 1}),
        row(chunk_prompt("Did revenue rise?", ["Other filing", "Outlook"]), {"0": 1, "1": 2}),
        row(chunk_prompt("Is there a dividend?", ["Cover page", "Outlook"]), {"0": 1.0, "1": 0}),
        row(chunk_prompt("Never relevant?", ["Cover page"]), {"0": 0}),
    ]
    write(tmp_path, [row(chunk_prompt("Unlabelled?", ["Held out chunk"]), None)], "chunk_ranking_kaggle_eval.jsonl")
    dataset = load(write(tmp_path, rows), tmp_path / "out")
    assert [d.text for d in dataset.corpus] == ["Cover page", tricky, "Outlook", "Other filing", "Held out chunk"]
    assert grades(dataset) == {
        "Did revenue rise?": {"Cover page": 0, tricky: 2, "Outlook": 2, "Other filing": 1},
        "Is there a dividend?": {"Cover page": 1, "Outlook": 0},
    }
    assert json.loads((tmp_path / "out" / "meta.json").read_text())["notes"][:2] == [
        "finagentbench/chunks: 1 rows have no grades: their candidates are in the corpus, nothing is asked.",
        "finagentbench/chunks: 1 pairs of question and candidate have two grades; the higher one counts.",
    ]


@pytest.mark.parametrize(
    ("prompt", "qrel", "fact"),
    [
        (document_prompt("Who is paid?", ["10-K"]), {"0": 1}, "Text chunks:"),
        (chunk_prompt("Who is paid?", ["a"]), {"1": 1}, "'1'"),
        (chunk_prompt("Who is paid?", ["a"]), {"-1": 1}, "'-1'"),
        (chunk_prompt("Who is paid?", ["a"]), {"0": "high"}, "'high'"),
    ],
)
def test_a_damaged_row_is_named(tmp_path, prompt, qrel, fact):
    with refused(DataError, "chunk_ranking_kaggle_dev.jsonl, ", fact):
        load(write(tmp_path, [row(prompt, qrel)]), tmp_path / "out")


def test_the_document_task_ranks_types(tmp_path):
    rows = [row(document_prompt("Who is paid?", ["DEF14A", "10-K"]), {"1": 3, "0": 4})]
    dataset = load(write(tmp_path, rows, "document_ranking_kaggle_dev.jsonl"), tmp_path / "out", "documents")
    assert grades(dataset) == {"Who is paid?": {"DEF14A": 4, "10-K": 3}}


def test_the_real_rows_are_read(realdata, tmp_path):
    dataset = load(realdata / "finagentbench", tmp_path / "out", "documents")
    assert sorted(document.text for document in dataset.corpus) == ["10-K", "10-Q", "8-K", "DEF14A", "Earnings"]
    lines = (realdata / "finagentbench" / "finagentbench_document_ranking_dev_head20.jsonl").read_text().splitlines()
    assert len(dataset.splits["test"].questions) == len(lines) == 20
    first = json.loads(lines[0])["qrel"]
    loaded_grades = next(iter(grades(dataset).values()))
    assert (loaded_grades["Earnings"], sorted(loaded_grades.values())) == (first["4"], sorted(first.values()))
