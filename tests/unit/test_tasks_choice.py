"""Which option an answer names: forms that chat models use, and forms that name none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from querylect.eval.tasks.choice import chosen

OPTIONS = ["aspirin", "insulin", "vitamin C", "a statin"]

NAMED = {
    "A": [
        *("A", "The answer is A.", "Answer: A", "A is the correct answer."),
        "The correct option is A because it thins blood.",
    ],
    "B": [
        *("B", " (b).\n", "B.", "[B]", "B) because it lowers sugar", "(B) insulin", "B: insulin"),
        *("B. insulin\n\nInsulin lowers blood glucose by moving it into cells.", "Option B", "option (B)"),
        *("The answer is B.", "The answer is **B**", "The answer is (B) insulin.", "The answer is: B"),
        *("The answer is option B.", "the answer is b.", "ANSWER: B", "answer: b", "**Answer:** B"),
        *("**Answer: B**", "### Answer\n\nAnswer = B", "Final answer: B", "Final Answer: (B)"),
        *("**Final Answer**: B. insulin", "My final answer is B.", "The final answer is $\\boxed{B}$.", "\\boxed{B}"),
        *("\\boxed{\\text{B}}", "$\\boxed{\\textbf{(B)}}$", "\\[\\boxed{\\text{B. insulin}}\\]"),
        *("So the answer is\n\nB", "<answer>B</answer>", "<answer> B. insulin </answer>", "[[B]]", "#### B"),
        *("answer_choice: B", 'answer_choice: "B"', '"answer_choice": "B"'),
        *('{"step_by_step_thinking": "A thins the blood.", "answer_choice": "B"}', '{"answer": "B"}'),
        *('{"answer_choice": "B. insulin"}', '```json\n{"answer_choice": "Option B"}\n```'),
        "Let me think. Aspirin thins blood, and a statin lowers cholesterol.\n\nTherefore, the answer is B.",
        *("Let me think. Aspirin thins blood.\n\nB", "Aspirin is for pain.\n\n**B. insulin**"),
        *("The correct answer is B, not A.", "The correct answer to the question is B", "The best choice is B."),
        *("The correct choice would be (B) insulin.", "The most likely answer is B.", "The answer is probably B."),
        *("I think the answer is B.", "I'm not sure, but I think the answer is B.", "I would choose B."),
        *("I choose option B.", "I'd go with B.", "I'll go with option (B).", "Option B is correct."),
        *("Option B (insulin) is the best answer.", "B is correct."),
        "B is the right answer because it lowers blood sugar.",
        "I first thought that the answer is A, but the answer is B.",
        "The answer is A. Wait, aspirin thins blood. The answer is B.",
        *("If it were a headache, the answer would be A. It is not, so the answer is B.", "Insulin.", "insulin"),
        *("The answer is insulin.", "Answer: Insulin"),
        *("The correct answer is: insulin, since it lowers blood sugar.", "Insulin, because it lowers blood sugar."),
        *("Ｂ", "B\n\nI hope this helps!"),
        *("Sure! The correct answer is:\n\n**B) insulin**", "Here is my answer:\n\nB", "B, since it lowers sugar"),
        "B<|im_end|>",
    ],
    "C": [
        *("**C**", "C. vitamin C", "The answer is option C", "vitamin c", "Vitamin C is C.\nAnswer: C"),
        *("C - vitamin C", "It's C.", "It’s C because it is a vitamin."),
        *("It's C.\nVitamin C is an antioxidant.", "Ans: C", "The ans is C", "Choose C"),
        *("Select option C.", "Hence C.", "Aspirin thins the blood. Hence, C.", "Aspirin thins the blood.\nSo C"),
        *("Answer C",),
    ],
    "D": ["(D): a statin", "A statin", "The answer is a statin.", "The answer is A statin", "Answer: D"],
}
UNNAMED = [
    *("", "E", "Answer: F", "\\boxed{G}", "A or B", "A and C", "A, B", "A/B", "Both A and C are correct."),
    *("The answer is A or B.", "The answer is A and C.", "The answer is (A) aspirin or (B) insulin.", "Answer: A, C"),
    *("Answer: B (insulin) and C (vitamin C)", "Either A or B is correct.", "It could be B."),
    *("The answer could be B, or it might be C.", "The answer might be B.", "The answer may be B."),
    *("If the patient is diabetic, the answer is B.", "The answer is B if the patient is diabetic, otherwise A."),
    *("If it is acute, the answer is A. If it is chronic, the answer is B.", "The answer is not B."),
    *("The answer isn't B.", "B is incorrect.", "B is not correct.", "A is wrong. B is wrong."),
    "A) aspirin is wrong\nB) insulin is possible\nC) vitamin C is wrong",
    *("A. aspirin\nB. insulin\nC. vitamin C\nD. a statin", "A is correct and C is correct."),
    *("Option A is correct. Option C is correct too.", "None of the above.", "The answer is none of the above."),
    *("I cannot determine the answer.", "I'm sorry, but I can't help with that.", "I don't know."),
    *("I am not able to give medical advice.", "Is the answer B?", "Could you give the options?", "The answer is"),
    "Let's go through the options. A is aspirin, which thins blood. B is",
    *("To decide, I first consider option A, aspirin, and then option B, insul", "A lesion of the nerve"),
    *("e.g. insulin", "A patient with diabetes needs care.", "the answer is a matter of taste"),
    *("The answer is a combination of several drugs.", "Aspirin or insulin"),
    *("Aspirin, insulin and a statin all have side effects.", "Insulin and vitamin C are both possible."),
    *('{"answer_choice": ""}', '{"answer_choice": "A or B"}', '{"answer_choice": "A", "answer": "B"}'),
    *(
        '{"answer_choice": "unsure"}',
        "B. aspirin",
        "The answer is B. vitamin C",
    ),
    *("I believe more tests are needed.", "Vitamin deficiency", "AB", "It's a good question."),
    *("It's A good question.", "It's a", "It's A or B.", "It's not C.", "It's C. difficile."),
    *("It's B cells.", "Choose a doctor.", "Choose A doctor.", "Choose a", "Choose A, B, C or D."),
    *("Choose C if it is acute.", "Hence A, aspirin, is out.", "Hence A and B.", "So, A. Smith wrote it."),
    *("Answer A question first.", "Answer C is wrong.", "Loans: A", "Trans A"),
    *("According to the documents, insulin and vitamin C.", "According to aspirin, insulin, and more."),
]


@pytest.mark.parametrize(("letter", "text"), [(letter, text) for letter, texts in NAMED.items() for text in texts])
def test_the_option_that_an_answer_names(letter, text):
    assert chosen(text, OPTIONS) == "ABCD".index(letter)


@pytest.mark.parametrize("text", UNNAMED)
def test_answers_that_name_no_option(text):
    assert chosen(text, OPTIONS) is None


YES_NO = {
    0: [
        *("Yes", "yes.", "Yes, because the trial showed a benefit.", "Yes. The documents say so."),
        *("The answer is yes.", "Final answer: **yes**", "<answer>yes</answer>"),
    ],
    1: [
        *("**No**", "No, it does not.", "I think the answer is no", "Answer: No", "B", "B. no"),
        *('{"answer_choice": "no"}', "\\boxed{no}", "The trial found no benefit.\n\nAnswer: no"),
        "Based on the context, no.",
    ],
    2: [
        *("ANSWER: MAYBE", "The answer is maybe.", "The documents do not agree.\n\nMaybe"),
    ],
    None: [
        *("It's yes.", "Based on the context, no evidence was found.", "Based on the context, it is not known."),
        *("Based on the context, yes or no.", "Yes and no.", "Yes or no", "Yes, no, maybe.", "There is no evidence."),
        *("No evidence was found in the documents.", "It depends.", "I cannot say whether the answer is yes."),
        *("If the dose is high, the answer is yes.", "not sure", "D"),
    ],
}


@pytest.mark.parametrize(("text", "index"), [(text, index) for index, texts in YES_NO.items() for text in texts])
def test_yes_no_and_maybe(text, index):
    assert chosen(text, ["yes", "no", "maybe"]) == index


def test_two_and_ten_options():
    assert chosen("B", ["yes", "no"]) == 1
    assert chosen("C", ["yes", "no"]) is None
    assert chosen("J", [str(number) for number in range(10)]) == 9
    assert chosen("x", ["x", "X."]) is None, "the words of two options name none, and x is no letter of two"
    assert chosen("I", [f"drug {number}" for number in range(10)]) == 8
    assert chosen("Therefore I", [f"drug {number}" for number in range(10)]) is None
    assert chosen("I think so", [f"drug {number}" for number in range(10)]) is None


@given(st.text(max_size=60), st.lists(st.text(max_size=8), min_size=2, max_size=5))
def test_any_text_is_read_without_an_error(text, options):
    index = chosen(text, options)
    assert index is None or 0 <= index < len(options)
