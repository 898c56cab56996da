"""A `limit` draws a nested random sample that depends on a seed and on ids alone."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from querylect.data.sampling import draw


@dataclass(frozen=True)
class Item:
    id: str


MANY = [Item(f"q{number}") for number in range(200)]


@given(st.permutations(MANY[:30]), st.integers(1, 30), st.integers(1, 30), st.integers(0, 3))
def test_a_smaller_sample_begins_a_larger_one_whatever_the_order(items, first_size, second_size, seed):
    small, large = sorted((first_size, second_size))
    assert draw(items, small, seed) == draw(MANY[:30], large, seed)[:small]


def test_a_sample_is_known_by_hand_and_is_not_the_first_of_the_file():
    assert [item.id for item in draw(MANY, 3, 0)] == ["q150", "q188", "q39"]
    assert draw(MANY, 3, 0) != draw(MANY, 3, 1)
    assert draw(MANY, None, 0) == MANY
    assert sorted(draw(MANY, 500, 0), key=MANY.index) == MANY
