"""MAIN-RAG, worked by hand: the score of first tokens, the mean as threshold, what has no score."""

import math

import pytest
from querylect.llms.base import Text
from querylect.methods.main_rag import NO_JUDGEMENT, judge, selected
from querylect.methods.method import MISSING

from ..scripted import ASKED, Shelf, doc, ids, main_rag, run

QUERY = ASKED.text


def judged(**verdicts):
    """A predictor that answers "Ann from X" and a judge with the given first tokens (or text) for each document."""

    def answer(prompt):
        name = prompt.partition("Document: text of ")[2].split("\n")[0]
        if "You tell useful documents from noise" not in prompt:
            return None if verdicts[name] == "no prediction" else f"Ann from {name}"
        first = verdicts[name]
        return None if first is None else Text("?", True, first)

    return answer


def test_what_is_at_or_above_the_mean_is_kept_best_first():
    verdicts = {
        "a": {"Yes": -1.0, "No": -1.0},
        "b": {"Yes": -0.5, "No": -2.5},
        "c": {"No": -0.5, "Yes": -4.5},
        "d": {"Yes": -1.0, "No": -3.0},
        "e": {"Yes": -1.5, "No": -1.5},
    }
    shelf = Shelf({QUERY: [doc(name) for name in "abcde"]})
    result, model = run(main_rag(), judged(**verdicts), wiki=shelf)
    assert result.notes["scores"] == {"a": 0, "b": 2, "c": -4, "d": 2, "e": 0}
    assert result.notes["threshold"] == 0, "the mean of 0, 2, -4, 2 and 0"
    assert ids(result) == ["b", "d", "a", "e"], "a score that is the mean stays; equal scores in the given order"
    assert (shelf.plans[0].k, len(model.prompts)) == (15, 10)
    assert "Answer: Ann from a" in model.prompts[5], "all documents are answered from, then all judged"
    assert [(draw.max_tokens, draw.first_logprobs) for draw in model.draws[4:6]] == [(32, 0), (1, 20)]
    documents = [doc(str(number)) for number in range(3)]
    assert selected(dict.fromkeys(documents, 0.1)) == tuple(documents), "whatever is rounded"
    assert [document.id for document in selected(dict(zip(documents, [0.1, 0.2, 0.3], strict=True)))] == ["2", "1"]


def test_a_judge_that_says_neither_scores_nothing():
    verdicts = {
        "a": {"Yes": -0.25, "No": -2.25},
        "b": {"Maybe": -0.1, "<think>": -3.0},
        "c": {},
        "d": None,
        "e": "no prediction",
    }
    result, _ = run(main_rag(), judged(**verdicts), wiki=Shelf({QUERY: [doc(name) for name in "abcde"]}))
    assert (ids(result), result.notes["threshold"], result.notes["missing"]) == (["a"], 2.0, 2)
    for names, failure in (("bc", NO_JUDGEMENT), ("bcd", MISSING), ("be", MISSING)):
        result, _ = run(main_rag(), judged(**verdicts), wiki=Shelf({QUERY: [doc(name) for name in names]}))
        assert (result.failure, result.documents) == (failure, ())
    result, _ = run(main_rag(), judged(), wiki=Shelf({}))
    assert (result.failure, result.documents) == ("", ())


def test_the_score_of_first_tokens():
    assert judge({"Yes": -0.5, "No": -2.0, "the": -5.0}) == (1.5, False)
    score, bounded = judge({" Yes": math.log(0.3), "yes": math.log(0.2), "▁No": math.log(0.25)})
    assert (score, bounded) == (pytest.approx(math.log(2)), False)
    assert judge({"yesterday": -0.1, "Nope": -2.0}) is None
    assert judge({}) is None
    listed = judge({"Yes": math.log(0.6), "the": math.log(0.2), "a": math.log(0.05)})
    assert listed == (pytest.approx(math.log(12)), True), "No is at most as likely as the least that is listed"
    assert judge({"No": math.log(0.9)}) == (pytest.approx(-math.log(9)), True), "one token, and 0.1 for all others"
    assert judge({"Yes": 0.0, "No": -math.inf}) == (pytest.approx(24 * math.log(2)), True)
    assert judge({"Yes": -1000.0, "No": -1001.0}) == (pytest.approx(1.0), False)
