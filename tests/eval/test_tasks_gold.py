"""Right answers from every published form, and what is refused or skipped."""

from collections import Counter

import pytest
from querylect.configs.paper import TaskConfig
from querylect.configs.schema import RunConfig
from querylect.data.types import Question, Utterance
from querylect.errors import DataError
from querylect.eval.tasks.gold import gold_answers, read_gold, read_items

from ..jsonl import write_jsonl
from ..raising import refused

SCORES = ("cover_em", "f1", "em")


def file(tmp_path, *rows):
    return write_jsonl(tmp_path / "gold.jsonl", *rows)


def test_open_questions_in_every_form(tmp_path):
    gold = read_gold(
        file(
            tmp_path,
            {"_id": "nq", "question": "who?", "answers": ["Röntgen", "W. C. Röntgen"]},
            {"_id": "finance", "text": "how much?", "answer": "$1577.00"},
            {"_id": "beir", "text": "same?", "metadata": {"answer": "yes"}},
            {"_id": "span", "text": "what?", "answer": ["fixed-price"]},
            {"_id": "number", "text": "how many?", "answer": 7},
            {"_id": "parts", "text": "which two?", "answer": ["one", "two"]},
            {"_id": "none", "text": "?"},
            {"_id": "blank", "text": "?", "answers": ["", " "]},
        )
    )
    assert {identifier: entry.answers for identifier, entry in gold.by_id.items()} == {
        "nq": ("Röntgen", "W. C. Röntgen"),
        "finance": ("$1577.00",),
        "beir": ("yes",),
        "span": ("fixed-price",),
        "number": ("7",),
    }
    assert (gold.skipped, gold.choice) == (3, False)
    with refused(DataError, "line 1", "['a', 'b']"):
        read_gold(file(tmp_path, {"_id": "list", "text": "?", "answers": "['a', 'b']"}))
    assert gold.by_id["nq"].score("It was Röntgen", SCORES) == pytest.approx({"cover_em": 1, "f1": 0.5, "em": 0})


def test_multiple_choice_by_letter_text_and_list(tmp_path):
    gold = read_gold(
        file(
            tmp_path,
            {"_id": "a", "question": "q", "options": {"A": "yes", "B": "no"}, "answer": "B", "answer_text": "no"},
            {"_id": "b", "question": "q", "options": ["x"] + [str(n) for n in range(9)], "answer": "J"},
            {"_id": "c", "question": "q", "options": ["left", "right"], "answer": "right"},
        )
    )
    assert [entry.right for entry in gold.by_id.values()] == [1, 9, 1]
    assert gold.by_id["a"].question.options == ("yes", "no")
    assert gold.by_id["a"].score("B", SCORES) == {"accuracy": 1.0}
    assert gold.by_id["a"].score("no idea", SCORES) == {"accuracy": 0.0}


def test_where_right_answers_come_from(tmp_path):
    config = RunConfig.model_validate({"answers": {"gold": str(file(tmp_path, {"_id": "a", "answer": "x"}))}})
    assert list(gold_answers(config.env, config.answers).by_id) == ["a"]
    with refused(DataError, "hpo", "--gold"):
        gold_answers(RunConfig().env, RunConfig().answers)
    with refused(DataError, tmp_path / "nowhere.jsonl"):
        read_gold(tmp_path / "nowhere.jsonl")


def test_lines_that_cannot_be_asked_are_counted(tmp_path):
    history = [{"role": "user", "content": "What is triptan?"}]
    rows = [
        {"_id": "1", "question": "who?", "answers": ["Ada"], "history": history, "excluded_ids": ["d1"]},
        {"_id": "2", "question": " ", "answers": ["Ada"]},
        {"_id": "3", "question": "which?", "answer": ["both", "of them"]},
    ]
    path = file(tmp_path, *rows)
    (item,), about = read_items("open", TaskConfig(kind="open", data=str(path)), None, 0)
    assert about == {"asked": 1, "skipped": 2, "sample": "all"}
    expected = Question("1", "who?", history=(Utterance("user", "What is triptan?"),), excluded=("d1",))
    assert item.question == expected
    with refused(DataError, path, "open questions"):
        read_items("open", TaskConfig(kind="choice", data=str(path)), None, 0)


def test_real_sets(realdata):
    sizes = {"mmlu_med": (1089, 0, True), "medqa_us_first600": (600, 0, True), "nq_open_test": (3610, 0, False)}
    for name, expected in sizes.items():
        gold = read_gold(realdata / "qa" / f"{name}.jsonl")
        assert (len(gold.by_id), gold.skipped, gold.choice) == expected
        assert gold.choice or all(entry.answers for entry in gold.by_id.values())
    assert len(read_gold(realdata / "financebench" / "queries.jsonl").by_id) == 150
    tatqa = read_gold(realdata / "tatqa" / "queries.jsonl")
    assert len(tatqa.by_id) + tatqa.skipped == 3331
    assert tatqa.skipped > 0
    task = TaskConfig(kind="choice", options=["yes", "no"], data=str(realdata / "pubmedqa" / "queries.jsonl"))
    yes_no, about = read_items("pubmedqa", task, None, 0)
    counts = Counter(item.right for item in yes_no)
    assert counts == {0: 552, 1: 338}, "PubMedQA's labelled set: 552 yes, 338 no, 110 maybe"
    assert about["skipped"] == 110
    medquad, _ = read_items("medquad", TaskConfig(kind="content", data=str(realdata / "medquad")), 20, 0)
    assert len(medquad) == 20
    assert all(item.contents and item.contents[0].text for item in medquad)
