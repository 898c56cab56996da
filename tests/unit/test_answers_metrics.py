"""Exact match and F1 on cases worked out by the published SQuAD definition; accuracy and options on hand cases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from querylect.eval.answers.metrics import chosen, contains, exact_match, f1, normalise


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Eiffel-Tower, a landmark!", "eiffeltower landmark"),
        ("An apple\tand the  pear", "apple and pear"),
        ("theatre", "theatre"),
        ("U.S.A.", "usa"),
        ("a the an", ""),
        ("L'été", "lété"),
        ("a-b", "ab"),
        ("“Paris”", "“paris”"),
    ],
)
def test_normalisation(text, expected):
    assert normalise(text) == expected


@pytest.mark.parametrize(
    ("answer", "right", "em", "overlap"),
    [
        ("The cat.", ["a cat"], 1, 1),
        ("the cat sat", ["a cat"], 0, 2 / 3),
        ("cat cat", ["cat"], 0, 2 / 3),
        ("cat cat", ["cat cat dog"], 0, 4 / 5),
        ("dog", ["cat", "big dog", "dogs"], 0, 2 / 3),
        ("18 May 2018", ["May 18, 2018"], 0, 1),
        ("nothing", ["cat"], 0, 0),
        ("", ["cat"], 0, 0),
        ("the", ["a"], 1, 1),
        ("Zürich", ["zürich"], 1, 1),
    ],
)
def test_exact_match_and_f1(answer, right, em, overlap):
    assert exact_match(answer, right) == em
    assert f1(answer, right) == pytest.approx(overlap)


@pytest.mark.parametrize(
    ("answer", "right", "expected"),
    [
        ("The answer is Paris, France.", ["paris"], 1),
        ("in 2018", ["20", "1", "8"], 0),
        ("parish", ["paris"], 0),
        ("It was Marie  Curie", ["Pierre Curie", "the Marie Curie"], 1),
        ("Curie, Marie", ["Marie Curie"], 0),
        ("", ["a"], 0),
        ("anything", ["the"], 0),
    ],
)
def test_accuracy_looks_for_whole_words_in_their_order(answer, right, expected):
    assert contains(answer, right) == expected


words = st.text(st.sampled_from("ab the,.X "), max_size=12)


@given(words, st.lists(words, min_size=1, max_size=3))
def test_metrics_stay_in_their_range_and_agree(answer, right):
    overlap, em = f1(answer, right), exact_match(answer, right)
    assert 0 <= overlap <= 1
    assert overlap == 1 or em == 0
    assert f1(answer, [answer]) == exact_match(answer, [answer]) == 1


OPTIONS = ["aspirin", "insulin", "vitamin C", "a statin"]


@pytest.mark.parametrize(
    ("answer", "place"),
    [
        ("B", 1),
        (" (b).\n", 1),
        ("**C**", 2),
        ("B) because it lowers sugar", 1),
        ("(D): a statin", 3),
        ("C. vitamin C", 2),
        ("The answer is B.", 1),
        ("I think the answer is A, no, the answer is (C)", 2),
        ("Answer: D", 3),
        ("The answer is **B**", 1),
        ("Insulin.", 1),
        ("A statin", 3),
        ("E", None),
        ("Answer: F", None),
        ("Q: which one lowers sugar? Answer: B", 1),
        ("", None),
        ("A lesion of the nerve", None),
        ("e.g. insulin", None),
        ("A or B", None),
        ("the answer is a matter of taste", None),
        ("胰岛素", None),
    ],
)
def test_which_option_an_answer_names(answer, place):
    assert chosen(answer, OPTIONS) == place


def test_two_and_ten_options():
    assert chosen("B", ["yes", "no"]) == 1
    assert chosen("C", ["yes", "no"]) is None
    assert chosen("no", ["yes", "no"]) == 1
    assert chosen("J", [str(number) for number in range(10)]) == 9
    assert chosen("x", ["x", "X."]) is None, "the words of two options name none, and x is no letter of two"
