"""The questions of a task, from hand-written lines and from real collections."""

from collections import Counter

from querylect.configs.paper import TaskConfig
from querylect.errors import DataError
from querylect.eval.tasks.items import read_items

from ..jsonl import write_jsonl
from ..raising import refused


def task(path, rows=None, **settings):
    if rows is not None:
        write_jsonl(path, *rows)
    return TaskConfig(data=str(path), **settings)


def test_option_sets_of_two_and_ten(tmp_path):
    ten = {letter: f"drug {letter}" for letter in "ABCDEFGHIJ"}
    rows = [
        {"_id": "2", "question": "is it?", "options": ["yes", "no"], "answer": "no"},
        {"_id": "10", "question": "welche Arznei – 药?", "options": ten, "answer": "J"},
    ]
    two, tenth = read_items("mcq", task(tmp_path / "f", rows, kind="choice"), None, 0).items
    assert (two.right, two.question.options) == (1, ("yes", "no"))
    assert (tenth.right, len(tenth.question.options), tenth.question.text) == (9, 10, "welche Arznei – 药?")
    assert len(read_items("mcq", task(tmp_path / "f", kind="choice"), 1, 0).items) == 1


def test_lines_that_cannot_be_asked_are_counted(tmp_path):
    rows = [
        {"_id": "1", "question": "who?", "answers": ["Ada"]},
        {"_id": "2", "question": " ", "answers": ["Ada"]},
        {"_id": "3", "question": "which?", "answer": ["both", "of them"]},
    ]
    loaded = read_items("open", task(tmp_path / "f", rows, kind="open"), None, 0)
    assert ([item.question.id for item in loaded.items], loaded.skipped) == (["1"], 2)
    with refused(DataError, tmp_path / "g", 2):
        read_items("open", task(tmp_path / "g", [rows[1], {"_id": "4", "answer": "x"}], kind="open"), None, 0)


def test_real_collections(realdata):
    mmlu = read_items("mmlu", task(realdata / "qa" / "mmlu_med.jsonl", kind="choice"), None, 0)
    assert (len(mmlu.items), mmlu.skipped) == (1089, 0)
    assert {len(item.question.options) for item in mmlu.items} == {4}
    settings = {"kind": "choice", "options": ["yes", "no"]}
    yes_no = read_items("pubmedqa", task(realdata / "pubmedqa" / "queries.jsonl", **settings), None, 0)
    counts = Counter(item.right for item in yes_no.items)
    assert counts == {0: 552, 1: 338}, "PubMedQA's labelled set: 552 yes, 338 no, 110 maybe"
    assert yes_no.skipped == 110
    medquad = read_items("medquad", task(realdata / "medquad", kind="content"), 20, 0)
    assert len(medquad.items) == 20
    assert all(item.contents and item.contents[0].text for item in medquad.items)
