"""Judges with scripted answers: their prompts, the values of verdicts, and answers in a wrong form."""

import json

import pytest
from querylect.data.types import Document, Question
from querylect.eval.tasks.gold import Gold
from querylect.eval.tasks.judges import JUDGES, NO_STATEMENTS, Case, judged
from querylect.llms.access import Llm
from querylect.llms.base import SamplingParams
from querylect.methods.method import GARBLED, MISSING, Result, Runner

from ..methods.test_runner import Echo

DOCUMENTS = (Document("d1", "Mercury", "melts at -39"), Document("d2", "Iron", "melts at 1538"))
CHOICE = Gold(Question("q", "What melts at 1538?", ("mercury", "iron")), right=1)
OPEN = Gold(Question("q", "Who?"), answers=("Ada", "Lovelace"))
CONTENT = Gold(Question("q", "What is iron?"), contents=(DOCUMENTS[1],))
CASES = {"utility": CHOICE, "mimic": CHOICE, "context_recall": OPEN}


class Script:
    """Answers each prompt with the first text whose key stands in it."""

    def __init__(self, answers):
        self.answers, self.prompts = answers, []

    def __call__(self, text):
        self.prompts.append(text)
        return next((answer for part, answer in self.answers.items() if part in text), "???")


def verdicts(name, answers, *cases):
    script = Script(
        {part: answer if isinstance(answer, str) else json.dumps(answer) for part, answer in answers.items()}
    )
    outcomes = judged(Runner(Llm(Echo(script)), {}), [name], cases, 200, SamplingParams(max_tokens=1024))
    return [outcome.get(name) for outcome in outcomes], script


NOTES = {"H_plus": "iron melts late", "H_minus": "mercury melts early"}


def case(item, answer="an answer", documents=DOCUMENTS, searched=True):
    return Case(item, Result(tuple(documents), NOTES), searched, answer)


def judgement(key, value):
    """A judge's answer on one question, with an explanation."""
    return {"explanation": "", key: value}


@pytest.mark.parametrize("text", ["ENTAILED", '{"selected_answer": "B", "label": "USEFUL"}'])
def test_a_judge_off_its_form_is_a_failure_and_no_zero(text):
    (verdict,), script = verdicts("utility", {"": text}, case(CHOICE))
    assert (verdict["value"], verdict["failure"]) == (None, GARBLED)
    assert verdict["said"]["text"] == text
    assert len(script.prompts) == 2, "it was asked again once"


@pytest.mark.parametrize("name", sorted(JUDGES))
def test_no_reply_is_missing_and_garbage_is_a_failure(name):
    item = CASES.get(name, CONTENT)
    silent = Gold(Question("q", "silence?", item.question.options), item.right, item.answers, item.contents)
    outcomes, _ = verdicts(name, {}, case(item), case(silent))
    assert [(verdict["value"], verdict["failure"]) for verdict in outcomes] == [(None, GARBLED), (None, MISSING)]


GRADES = {
    "utility": [
        ({"selected_answer": "B", "label": "ENTAILED"}, 1, "entailed"),
        ({"selected_answer": "B", "label": "USEFUL_BUT_NOT_ENTAILED"}, 1, "useful"),
        ({"selected_answer": "B", "label": "NOT_USEFUL"}, 0, "not_useful"),
    ],
    "mimic": [(judgement("quality", "EXCELLENT"), 1, "excellent"), (judgement("quality", "GOOD"), 0, "good")],
    **{
        name: [(judgement("verdict", True), 1, ""), (judgement("verdict", False), 0, "")]
        for name in ("declined", "faithfulness", "answer_relevancy")
    },
}
SEEN = {
    "utility": ["What melts at 1538?", "A. mercury\nB. iron", "Right answer: B. iron", "[2] Iron: melts at 1538"],
    "mimic": ["Right answer: B. iron", "Target: iron melts late", "Mimic: mercury melts early"],
    "faithfulness": ["[1] Mercury", "Reply: an answer"],
}


@pytest.mark.parametrize("name", GRADES)
def test_value_and_label_of_a_grade(name):
    for answer, value, label in GRADES[name]:
        (verdict,), script = verdicts(name, {"": answer}, case(CASES.get(name, CONTENT)))
        assert verdict == {"value": value, "label": label, "said": answer, "failure": ""}
        assert all(part in script.prompts[0] for part in SEEN.get(name, []))


@pytest.mark.parametrize(
    ("name", "nothing"),
    [
        ("utility", case(CHOICE, searched=False)),
        ("mimic", Case(CHOICE, Result(), True, "B")),
        ("declined", case(CONTENT, answer=None)),
    ],
)
def test_where_there_is_nothing_to_judge_nobody_is_asked(name, nothing):
    outcomes, script = verdicts(name, {}, nothing)
    assert (outcomes, script.prompts) == ([None], [])


def test_relevancy_needs_one_document_that_answers():
    yes, no = judgement("answerable", True), judgement("answerable", False)
    (verdict,), script = verdicts("relevancy", {"Mercury": yes}, case(CONTENT))
    assert (verdict["value"], verdict["said"], len(script.prompts)) == (1, {"d1": True}, 1)
    assert verdicts("relevancy", {"Mercury": no, "Iron": yes}, case(CONTENT))[0][0]["value"] == 1
    assert verdicts("relevancy", {"Mercury": no, "Iron": no}, case(CONTENT))[0][0]["value"] == 0
    assert verdicts("relevancy", {"Iron": yes}, case(CONTENT))[0][0]["value"] == 1, (
        "one that is off its form hides no yes"
    )
    (verdict,), _ = verdicts("relevancy", {"Iron": no}, case(CONTENT))
    assert (verdict["value"], verdict["failure"]) == (None, GARBLED), "but it is no no"
    assert verdicts("relevancy", {}, case(CONTENT, documents=()))[0][0]["value"] == 0


def test_guideline_in_three_steps():
    answers = {
        "Ideal answer: a metal": {"points": ["a metal", "an element"]},
        "- a metal\n- an element": judgement("score", 0.5),
        "from the text below": "a metal",
    }
    (verdict,), script = verdicts("guideline", answers, case(CONTENT, "It is a metal."))
    assert (verdict["value"], verdict["said"]["points"]) == (0.5, ["a metal", "an element"])
    assert "[1] Iron" in script.prompts[0], "the golden answer is from the documents of the question"
    assert "Mercury" not in script.prompts[0]
    assert "Answer: It is a metal." in script.prompts[2]
    wrong = {**answers, "- a metal\n- an element": judgement("score", 1.5)}
    assert verdicts("guideline", wrong, case(CONTENT))[0][0]["failure"] == GARBLED
    thought = {**answers, "from the text below": "<think>a metal? yes</think>\na metal"}
    (verdict,), script = verdicts("guideline", thought, case(CONTENT))
    assert (verdict["value"], "think" in script.prompts[1]) == (0.5, False)


def mark(statement, attributed):
    return {"statement": statement, "attributed": attributed, "reason": ""}


def marks(*attributed):
    return {"statements": [mark(number, attributable) for number, attributable in enumerate(attributed, start=1)]}


def test_context_recall_in_two_steps():
    needed = {"statements": ["Ada lived.", "She wrote.", "In 1843."]}
    answers = {"Statements:\n1. Ada lived.": marks(True, False, True), "List": needed}
    (verdict,), script = verdicts("context_recall", answers, case(OPEN))
    assert verdict["value"] == pytest.approx(2 / 3)
    assert "Answer: Ada (or: Lovelace)" in script.prompts[0]
    assert "3. In 1843." in script.prompts[1]
    twice = {"statements": [*marks(True, True, True)["statements"], mark(2, True)]}
    for wrong in (marks(True, True), twice):
        (verdict,), _ = verdicts("context_recall", {"Statements:\n": wrong, "List": needed}, case(OPEN))
        assert (verdict["value"], verdict["failure"]) == (None, GARBLED), "every statement is to be judged once"
    (verdict,), _ = verdicts("context_recall", {"List": {"statements": [" "]}}, case(OPEN))
    assert (verdict["value"], verdict["failure"]) == (None, NO_STATEMENTS)


def test_context_recall_of_several_sources_is_judged_for_each_as_well():
    needed = {"statements": ["one", "two"]}
    answers = {
        "[1] Mercury: melts at -39\n[2]": marks(True, True),
        "[1] Mercury": marks(False, True),
        "[1] Iron": marks(True, False),
        "List": needed,
    }
    both = Case(OPEN, Result(DOCUMENTS, sources=("wiki", "pairs")), True, "x")
    wiki_only = Case(OPEN, Result(DOCUMENTS, sources=("wiki", "wiki")), True, "x")
    (verdict, alike), script = verdicts("context_recall", answers, both, wiki_only)
    assert (verdict["value"], verdict["said"]["by_source"]) == (1.0, {"wiki": 0.5, "pairs": 0.5})
    assert (alike["value"], alike["said"]["by_source"]) == (1.0, {"wiki": 1.0}), "what is known is not asked again"
    assert len(script.prompts) == 1 + 3, "equal prompts once"
    assert "by_source" not in verdicts("context_recall", answers, case(OPEN))[0][0]["said"]
    (verdict,), _ = verdicts("context_recall", {**answers, "[1] Iron": "hm"}, both)
    assert (verdict["value"], verdict["said"]["by_source"]) == (1.0, {"wiki": 0.5, "pairs": None})
