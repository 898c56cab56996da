"""Pairs of texts that are nearly the same, found among many."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from querylect.data.near_texts import THRESHOLD, near_duplicates, similarity

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def near_pairs(left, right):
    return {(pair.left, pair.right) for pair in near_duplicates([left, "unrelated text"], ["another", right])}


@given(st.text("abc xyz", min_size=6, max_size=60).map(lambda text: " ".join(text.split())), st.randoms())
def test_every_edit_of_one_letter_is_found_from_six_letters_on(text, draw):
    position = draw.randrange(len(text) + 1)
    edits = {
        text[:position] + "q" + text[position:],
        text[:position] + text[position + 1 :],
        text[:position] + "q" + text[position + 1 :],
        text[:position] + text[position + 1 : position + 2] + text[position : position + 1] + text[position + 2 :],
    }
    for edited in edits:
        if min(len(text), len(edited)) >= 6:
            assert (0, 1) in near_pairs(text, edited), (text, edited)


@given(st.lists(st.text(LETTERS, min_size=3, max_size=9), min_size=8, max_size=30), st.randoms())
def test_a_word_more_or_less_and_another_order_are_found(words, draw):
    longer = list(words)
    longer.insert(draw.randrange(len(words) + 1), "inserted")
    assert (0, 1) in near_pairs(" ".join(words), " ".join(longer))
    assert (0, 1) in near_pairs(" ".join(longer), " ".join(words))
    assert (0, 1) in near_pairs(" ".join(words), " ".join(reversed(words)))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("what is mumps", "what is lupus"),  # another word
        ("deaf", "dead"),  # too short for an edit
        ("asthma", "severe asthma"),  # too short for a word
        ("what is the capital of france", "which city is the seat of the french government"),
        ("how is asthma treated", "how is anemia treated"),
    ],
)
def test_other_texts_are_not(left, right):
    assert near_pairs(left, right) == set()
    assert similarity(left, right) is None


def test_an_edit_is_found_from_four_characters_on_in_scripts_without_spaces():
    assert near_pairs("感冒怎么办", "感冒怎么办呢") == {(0, 1)}
    assert near_pairs("缺铁贫血", "缺铁性贫血") == {(0, 1)}
    assert near_pairs("なぜ咳か", "なぜ咳が") == {(0, 1)}
    assert near_pairs("肝炎吗", "肝炎") == set()
    assert near_pairs("ab呢cd", "ab cd") == near_pairs("ab cd", "ab呢cd"), "whichever of the two comes first"


def test_long_texts_are_found_by_their_pieces():
    draw = random.Random(0)
    texts = [" ".join("".join(draw.choices(LETTERS, k=6)) for _ in range(40)) for _ in range(30)]
    edited = [text.replace(text.split()[7], "another").replace(text.split()[20], "other one") for text in texts]
    pairs = near_duplicates(texts, edited)
    assert {(pair.left, pair.right) for pair in pairs} == {(index, index) for index in range(30)}
    assert all(THRESHOLD <= pair.similarity < 1 for pair in pairs)


def test_what_is_found_is_what_comparing_every_pair_finds():
    draw = random.Random(1)
    vocabulary = ["".join(draw.choices(LETTERS, k=draw.randint(2, 8))) for _ in range(12)]
    texts = [" ".join(draw.choices(vocabulary, k=draw.randint(1, 6))) for _ in range(300)]
    left, right = texts[:150], [text[:-1] if index % 3 else text for index, text in enumerate(texts[150:])]
    every = {
        (left_index, right_index): value
        for left_index, first in enumerate(left)
        for right_index, second in enumerate(right)
        if (value := similarity(first, second)) is not None
    }
    assert {(pair.left, pair.right): pair.similarity for pair in near_duplicates(left, right)} == every
    assert 10 < len(every) < 5000
