"""Which option an answer names: a letter, a box, "Answer:", a JSON field, the words of an option; else none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from querylect.eval.tasks.choice import chosen

OPTIONS = ["aspirin", "insulin", "vitamin C", "a statin"]
NAMED = {
    "B": [
        *(
            " (b).\n",
            "B.",
            "**B**",
            "Ｂ",
            "B<|im_end|>",
            "B: insulin",
            "Option B",
            "B, since it lowers sugar",
            "Insulin.",
        ),
        *("The answer is B.", "answer: b", "## Answer\n\nB", "The correct answer is B because it lowers blood sugar."),
        *("\\boxed{A} is wrong, so $\\boxed{\\text{(B) insulin}}$", "Aspirin is for pain.\n\n**B. insulin**"),
        *(
            '{"step_by_step_thinking": "A thins the blood.", "answer_choice": "B"}',
            "Answer: Insulin, as it lowers sugar",
        ),
        "The answer is A. Wait, aspirin thins blood. The answer is B.",
    ],
    "C": [
        *("vitamin c", "Answer: Vitamin C", "Answer: C\nExplanation: Option B. Insulin is for diabetes.", "Answer - C"),
        *("The answer is C. Option A: aspirin is not enough", "C. vitamin C\n\nOption A (aspirin) is wrong."),
        *("I would go with option C, since it heals gums.", "My answer: C. A is not enough."),
        "If the gums bleed, it is no A, so the answer is C.",
    ],
    "D": ["A statin", "The answer is A statin"],
}
UNNAMED = [
    *("", "E", "Answer: F", "\\boxed{G}", "A or B", "A and C", "A/B", "The answer is not B.", "B is incorrect.", "AB"),
    *("Answer: A, or B", "A, or possibly B", "A, possibly B", "B. insulin or A", "B. Aspirin"),
    "If the answer is B, then sugar falls.",
    *("A. aspirin\nB. insulin\nC. vitamin C\nD. a statin", "None of the above.", "I don't know.", "B. aspirin"),
    *(
        "A lesion of the nerve",
        "A Cochrane review is missing.",
        "The answer is a matter of taste",
        '{"answer_choice": "A or B"}',
        "It's C. difficile.",
    ),
]


@pytest.mark.parametrize(("letter", "text"), [(letter, text) for letter, texts in NAMED.items() for text in texts])
def test_the_option_that_an_answer_names(letter, text):
    assert chosen(text, OPTIONS) == "ABCD".index(letter)


@pytest.mark.parametrize("text", UNNAMED)
def test_answers_that_name_no_option(text):
    assert chosen(text, OPTIONS) is None


@pytest.mark.parametrize(
    ("text", "index"), [("Yes, it showed a benefit.", 0), ("Answer: **no**", 1), ("There is no evidence.", None)]
)
def test_yes_no_and_maybe(text, index):
    assert chosen(text, ["yes", "no", "maybe"]) == index


def test_two_and_ten_options():
    assert chosen("C", ["yes", "no"]) is None
    assert chosen("J", [str(number) for number in range(10)]) == 9
    assert chosen("x", ["x", "X."]) is None, "the words of two options name none, and x is no letter of two"
    assert chosen("I think so", [f"drug {number}" for number in range(10)]) is None


@given(st.text(max_size=60), st.lists(st.text(max_size=8), min_size=2, max_size=5))
def test_any_text_is_read_without_an_error(text, options):
    index = chosen(text, options)
    assert index is None or 0 <= index < len(options)
