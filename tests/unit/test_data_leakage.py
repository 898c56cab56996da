"""Questions in two splits: by id, by words, by nearly the same letters."""

import pytest
from querylect.data.leakage import (
    THRESHOLD,
    _pieces,
    jaccard,
    near_duplicates,
    near_overlap,
    near_questions,
    without_leaks,
)
from querylect.data.types import Dataset, Question, Split

from ..raising import refused

LONG = "how do i set the date and the time of the television when it is not connected to the internet"


def split(*questions):
    return Split([Question(identifier, text) for identifier, text in questions], {i: {"d": 1} for i, _ in questions})


def test_near_duplicates_are_found_and_paraphrases_are_not():
    left = [LONG, "what is the capital of france", "who wrote the odyssey", LONG.replace("television", "radio")]
    right = [
        LONG.replace("internet", "internets").upper() + "?",
        "which city is the seat of the french government",
        "who wrote the Odysey",
    ]
    near = near_duplicates(left, right)
    assert [(pair.left, pair.right) for pair in near] == [(0, 0)]
    assert near[0].similarity == jaccard(_pieces(left[0]), _pieces(right[0])) >= THRESHOLD


def test_what_is_proposed_is_what_comparing_every_pair_finds():
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda"]
    words += ["mu", "nu", "xi", "omicron", "pi", "rho", "sigma"]
    texts = [" ".join(words[start : start + 9]) + f" {end}" for start in range(9) for end in words[::3]]
    left, right = texts[::2], texts[1::2] + [" ".join(words[start::2]) for start in range(6)]
    exact = {place: max(jaccard(_pieces(one), _pieces(other)) for one in left) for place, other in enumerate(right)}
    found = {pair.right: pair.similarity for pair in near_duplicates(left, right)}
    assert found == {place: best for place, best in exact.items() if best >= THRESHOLD}
    assert 0 < len(found) < len(right)


def test_texts_shorter_than_a_piece_are_compared_whole():
    assert [pair[:2] for pair in near_duplicates(["ab", "", "xyz"], ["AB!", "xy", ""])] == [(0, 0), (1, 2)]
    assert near_duplicates([], ["ab"]) == near_duplicates(["ab"], []) == []


def test_jaccard_by_hand():
    # abcdef → abcde bcdef; abcdeg → abcde bcdeg: one of three
    assert jaccard(_pieces("abcdef"), _pieces("abcdeg")) == pytest.approx(1 / 3)


def test_near_overlap_leaves_out_what_is_wholly_the_same():
    dataset = Dataset(
        "set",
        (),
        {
            "train": split(("a", LONG), ("b", "x")),
            "test": split(("c", LONG + "?"), ("b", "other"), ("d", LONG.replace("internet", "internets"))),
        },
    )
    (sentence,) = near_overlap(dataset)
    assert sentence.startswith("set: 1 of 3 questions of test are nearly the same as one of train")
    pairs = near_questions(dataset.splits["train"].questions, dataset.splits["test"].questions)
    assert [(one.id, other.id) for one, other in pairs] == [("a", "d")]


def test_leaks_are_taken_out_of_the_earlier_split():
    near = LONG.replace("internet", "internets")
    splits = {
        "train": split(("1", "Same words!"), ("2", "kept"), ("t", "same id"), ("3", "of validation"), ("4", near)),
        "validation": split(("v", "of validation"), ("t", "an id of test")),
        "test": split(("t", "tested"), ("u", "same WORDS"), ("w", LONG)),
    }
    held, notes = without_leaks("set", splits)
    assert {name: [question.id for question in each.questions] for name, each in held.items()} == {
        "train": ["2", "4"],
        "validation": ["v"],
        "test": ["t", "u", "w"],
    }
    assert set(held["train"].qrels) == {"2", "4"}
    assert notes == [
        "set: 1 of 2 questions of validation are taken out: they stand in a later split.",
        "set: 3 of 5 questions of train are taken out: they stand in a later split.",
    ]
    held, notes = without_leaks("set", splits, near=True)
    assert [question.id for question in held["train"].questions] == ["2"]
    assert "set: 4 of 5 questions of train are taken out: they stand in a later split, or nearly so." in notes


def test_a_split_without_a_question_left_is_taken_out():
    held, _ = without_leaks("set", {"train": split(("a", "x")), "test": split(("b", "X"))})
    assert list(held) == ["test"]


def test_evaluation_refuses_what_was_trained_on_and_tells_what_nearly_was(caplog):
    from querylect.errors import DataError
    from querylect.eval.leakage import refuse_overlap

    train = [Question("a", LONG), Question("b", "x")]
    with caplog.at_level("WARNING"):
        refuse_overlap("set", "test", [Question("c", LONG.replace("internet", "internets"))], train)
    assert "set: 1 of 1 questions of test are nearly the same as one of train" in caplog.text
    with refused(DataError, None, "1 ", "train", "test"):
        refuse_overlap("set", "test", [Question("c", LONG.upper())], train)
