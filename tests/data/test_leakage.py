"""Questions in two splits: by id, by words, by nearly the same letters; documents of two splits."""

import pytest
from querylect.data.leakage import (
    exact_leaks,
    near_leaks,
    near_overlap,
    overlap,
    read_left_out,
    without,
    without_leaks,
    words,
    write_leaks,
)
from querylect.data.types import Dataset, Question, Split
from querylect.errors import DataError

from ..jsonl import read_jsonl
from ..raising import refused

LONG = "how do i set the date and the time of the television when it is not connected to the internet"


def split(*questions):
    return Split([Question(identifier, text) for identifier, text in questions], {i: {"d": 1} for i, _ in questions})


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("Wer heilt Röteln?", "wer heilt roteln"),
        ("Wer heilt Ro\u0308teln", "wer heilt roteln"),
        ("ｗｈａｔ ｉｓ ①", "what is 1"),
        ("pa\u200bin, naïve", "pain naive"),
        ("Straße İstanbul", "strasse istanbul"),
    ],
)
def test_words_are_compared_in_one_form(text, same):
    assert words(text) == words(same) == same


def test_words_keep_what_distinguishes_questions():
    assert words("5 µg") != words("5 mg")
    assert words("대한민국") == "대한민국"
    assert words("что это") != words("кто это")


def test_near_overlap_leaves_out_what_is_wholly_the_same():
    test = split(("c", LONG + "?"), ("b", "other"), ("d", LONG.replace("internet", "internets")))
    dataset = Dataset("set", (), {"train": split(("a", LONG), ("b", "x")), "test": test})
    assert [leak.criterion for leak in exact_leaks(dataset.splits)] == ["words", "id"]
    assert overlap(dataset) == [
        "set: 1 question ids and 1 question texts stand in both train and test (for instance 'b'): "
        "figures for test are not held out."
    ]
    assert near_overlap(dataset) == []
    dataset.splits["train"].questions[0] = Question("a", LONG.replace("date", "dates"))
    (sentence,) = near_overlap(dataset)
    assert sentence.startswith("set: 2 of 3 questions of test are nearly the same as one of train")
    assert {(leak.question.id, leak.other.id) for leak in near_leaks(dataset.splits)} == {("a", "c"), ("a", "d")}


def test_leaks_are_taken_out_of_the_earlier_split():
    near = LONG.replace("internet", "internets")
    splits = {
        "train": split(("1", "Same words!"), ("2", "kept"), ("t", "same id"), ("3", "of validation"), ("4", near)),
        "validation": split(("v", "of validation"), ("t", "an id of test")),
        "test": split(("t", "tested"), ("u", "same WÖRDS"), ("w", LONG)),
    }
    clean, notes = without_leaks("set", splits)
    left = {name: [question.id for question in clean_split.questions] for name, clean_split in clean.items()}
    assert left == {"train": ["2", "4"], "validation": ["v"], "test": ["t", "u", "w"]}
    assert set(clean["train"].qrels) == {"2", "4"}
    assert notes == [
        "set: 1 of 2 questions of validation are taken out: they stand in a later split.",
        "set: 3 of 5 questions of train are taken out: they stand in a later split.",
    ]
    clean, notes = without_leaks("set", splits, near=True)
    assert [question.id for question in clean["train"].questions] == ["2"]
    assert "set: 4 of 5 questions of train are taken out: they stand in a later split, or nearly so." in notes


def test_leaks_are_listed_in_a_file_whose_lines_are_left_out(tmp_path):
    splits = {
        "train": split(("a", "who tamed the dog"), ("b", "who tamed the dogs"), ("c", "unlike")),
        "test": split(("t", "who tamed the dog?")),
    }
    write_leaks(tmp_path / "leaks.jsonl", [leak.record() for leak in (*exact_leaks(splits), *near_leaks(splits))])
    lines = read_jsonl(tmp_path / "leaks.jsonl")
    listed = [(line["split"], line["_id"], line["criterion"], line["of"]["_id"]) for line in lines]
    assert listed == [("train", "a", "words", "t"), ("train", "b", "letters", "t")]
    assert lines[1]["similarity"] == pytest.approx(17 / 18, abs=1e-4)
    left_out = read_left_out(tmp_path / "leaks.jsonl")
    assert [question.id for question in without(splits, left_out)["train"].questions] == ["c"]
    (tmp_path / "leaks.jsonl").write_text('{"split": "learn", "_id": "a"}\n')
    with refused(DataError, "leaks.jsonl, line 1", "'learn'", "train, validation, test"):
        read_left_out(tmp_path / "leaks.jsonl")
