"""What a reader's text answers: thinking off, the answer behind its mark, and which option it names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from querylect.data.types import Question
from querylect.eval.tasks.reader import chosen, read_answer

OPEN = Question("q", "who?")
OPTIONS = ["aspirin", "insulin", "vitamin C", "a statin"]


@pytest.mark.parametrize(
    ("text", "style", "answer"),
    [
        ("**Answer:** Ada Lovelace**", "short", "Ada Lovelace"),
        ("The answer is:\nAda\n\nShe wrote it.", "short", "Ada"),
        ("The answers are many.", "short", "The answers are many."),
        ("Ada\n\nQuestion: of Italy?\nAnswer: Rome", "short", "Ada\n\nQuestion: of Italy?\nAnswer: Rome"),
        ("<think>x</think> Ada", "short", "Ada"),
        ("Answer: Tom\nNo.\n**Answer:** Ada Lovelace**", "reasoned", "Ada Lovelace"),
        ("She wrote it, so \\boxed{Ada}", "reasoned", "Ada"),
        ("It was Ada.", "reasoned", "It was Ada."),
        ("Answer: Ada", "grounded", "Answer: Ada"),
    ],
)
def test_the_answer_to_an_open_question(text, style, answer):
    assert read_answer(text, OPEN, style) == answer


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        (" (b).\n", "B"),
        ("**B**", "B"),
        ("B: insulin", "B"),
        ("Option B", "B"),
        ("B, since it lowers sugar", "B"),
        ("Insulin.", "B"),
        ("a statin", "D"),
        ("Thoughts first.\n\nThe answer is B.", "B"),
        ("## Answer\n\nAnswer: b", "B"),
        ("Answer: Vitamin C", "C"),
        ("Answer: A\nNo, wait.\nAnswer: C", "C"),
        ("\\boxed{A} is wrong, so $\\boxed{\\text{(B) insulin}}$", "B"),
        ('{"step_by_step_thinking": "A thins the blood.", "answer_choice": "B"}', "B"),
        ('{"answer_choice": "A"} or rather {"answer_choice": "B"}', "B"),
        ("", ""),
        ("E", ""),
        ("Answer: F", ""),
        ("\\boxed{G}", ""),
        ("A or B", ""),
        ("The answer is not B.", ""),
        ("None of the above.", ""),
        ("I don't know.", ""),
        ("A lesion of the nerve", ""),
        ("The answer is a matter of taste", ""),
        ('{"answer_choice": "K"}', ""),
    ],
)
def test_the_option_that_an_answer_names(text, letter):
    index = chosen(text, OPTIONS)
    assert ("" if index is None else "ABCD"[index]) == letter


def test_two_and_ten_options():
    assert chosen("Answer: **no**", ["yes", "no", "maybe"]) == 1
    assert chosen("C", ["yes", "no"]) is None
    assert chosen("J", [str(number) for number in range(10)]) == 9
    assert chosen("x", ["x", "X."]) is None, "the words of two options name none, and x is no letter of two"
    assert chosen("I think so", [f"drug {number}" for number in range(10)]) is None


@given(st.text(max_size=60), st.lists(st.text(max_size=8), min_size=2, max_size=5))
def test_any_text_is_read_without_an_error(text, options):
    index = chosen(text, options)
    assert index is None or 0 <= index < len(options)
