"""Metrics of answers and the reading of answers: by hand, by the definition of SQuAD, equal with the usual packages."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from querylect.data.types import Question
from querylect.errors import ConfigError
from querylect.eval.tasks import metrics
from querylect.eval.tasks.metrics import score_text, tokens
from querylect.eval.tasks.reader import read_answer
from querylect.eval.tasks.shift import overlap, retrieval_shift

from ..raising import refused


@pytest.mark.parametrize(
    ("answer", "right", "em", "overlap"),
    [
        ("the cat sat", ["a cat"], 0, 2 / 3),
        ("cat cat", ["cat cat dog"], 0, 4 / 5),
        ("dog", ["cat", "big dog", "dogs"], 0, 2 / 3),
        ("18 May 2018", ["May 18, 2018"], 0, 1),
        ("", ["cat"], 0, 0),
        ("the", ["a"], 1, 1),
        ("Zürich", ["zürich"], 1, 1),
    ],
)
def test_exact_match_and_f1(answer, right, em, overlap):
    assert score_text(answer, right, ["em", "f1"]) == pytest.approx({"em": em, "f1": overlap})


@pytest.mark.parametrize(
    ("answer", "right", "expected"),
    [
        ("The answer is Paris, France.", ["paris"], 1),
        ("in 2018", ["20", "1", "8"], 0),
        ("parish", ["paris"], 0),
        ("It was Marie  Curie", ["Pierre Curie", "the Marie Curie"], 1),
        ("anything", ["the"], 0),
    ],
)
def test_accuracy_looks_for_whole_words_in_their_order(answer, right, expected):
    assert score_text(answer, right, ["accuracy"]) == {"accuracy": expected}


TEXTS = st.text(st.sampled_from("ab the,.X "), max_size=12)


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=3))
def test_metrics_stay_in_their_range_and_agree(answer, right):
    scores = score_text(answer, right, ["f1", "em"])
    assert 0 <= scores["f1"] <= 1
    assert scores["f1"] == 1 or scores["em"] == 0
    assert score_text(answer, [answer], ["f1", "em"]) == {"f1": 1, "em": 1}


WORDS = st.lists(st.sampled_from(["the", "cat", "sat", "on", "a", "Mat.", "dogs", ""]), max_size=8).map(" ".join)


def test_rouge_by_hand():
    """Answer of 4 words, right one of 6: 3 shared words, 1 shared pair, a longest common subsequence of 3."""
    pytest.importorskip("rouge_score")
    scores = score_text("the cat ate fish", ["the cat sat and ate it"], ["rouge1", "rouge2", "rougeL"])
    assert scores == {"rouge1": pytest.approx(6 / 10), "rouge2": pytest.approx(2 / 8), "rougeL": pytest.approx(6 / 10)}


def test_bleu_by_hand():
    """Precision 2/3 of words, 1/2 of pairs; the answer is as long as the right one, so nothing is taken off."""
    pytest.importorskip("sacrebleu")
    scores = score_text("a b c", ["a b d"], ["bleu1", "bleu2"])
    assert scores == {"bleu1": pytest.approx(2 / 3), "bleu2": pytest.approx((2 / 3 * 1 / 2) ** 0.5)}


@given(WORDS, WORDS)
@settings(max_examples=40)
def test_rouge_and_bleu_are_those_of_their_packages(answer, right):
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rouge1", "rouge2", "rougeL"])
    sacrebleu = pytest.importorskip("sacrebleu.metrics")
    names = ["rouge1", "rouge2", "rougeL", "bleu1", "bleu2", "bleu3", "bleu4"]
    scores = score_text(answer, [right], names)
    for name, score in scorer.score(right, answer).items():
        assert scores[name] == pytest.approx(score.fmeasure)
    for order in (1, 2, 3, 4):
        usual = sacrebleu.BLEU(max_ngram_order=order, effective_order=True).sentence_score(answer, [right]).score
        assert scores[f"bleu{order}"] == pytest.approx(usual / 100)


def test_scripts_without_spaces_are_no_silent_zero():
    pytest.importorskip("rouge_score")
    pytest.importorskip("sacrebleu")
    assert tokens("服用阿胶 Café_x 2") == ["服", "用", "阿", "胶", "café", "x", "2"]
    scores = score_text("服用阿胶", ["多服用阿胶"], ["rouge1", "rougeL", "bleu1"])
    assert scores["rouge1"] == scores["rougeL"] == pytest.approx(8 / 9)
    assert 0.7 < scores["bleu1"] < 1


def test_what_cannot_be_scored_is_refused(monkeypatch):
    with refused(ConfigError, "'meteor'"):
        score_text("x", ["x"], ["meteor"])
    with pytest.raises(ValueError, match="right answer"):
        score_text("x", [], ["em"])
    monkeypatch.setattr(metrics, "find_spec", lambda name: None)
    for name in (*metrics.ROUGE, *metrics.BLEU):
        with refused(ConfigError, repr(name), "'.[text-metrics]'"):
            score_text("x", ["x"], [name])
    assert score_text("x", ["x"], ["em"]) == {"em": 1}


TWO = Question("q", "Does it?", ("yes", "no"))
TEN = Question("q", "Which?", tuple(f"drug {number}" for number in range(10)))


@pytest.mark.parametrize(
    ("text", "question", "choice"),
    [
        ('{"step_by_step_thinking": "not A", "answer_choice": "B"}', TWO, 1),
        ('{"answer_choice": "A"} or rather {"answer_choice": "B"}', TWO, 1),
        ('{"step_by_step_thinking": "broken, "answer_choice": J', TEN, 9),
        ('{"answer_choice": "K"}', TEN, None),
        ("", TWO, None),
    ],
)
def test_a_reasoned_choice(text, question, choice):
    assert read_answer(text, question, "reasoned").choice == choice


def test_a_reasoned_answer_stands_in_its_last_line():
    question = Question("q", "who?")
    assert read_answer("Answer: Tom\nNo.\n**Answer:** Ada Lovelace**", question, "reasoned").answer == "Ada Lovelace"
    bare = read_answer("It was Ada.", question, "reasoned")
    assert bare.answer == "It was Ada."
    assert read_answer("<think>x</think> Ada", question, "short").answer == "Ada"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("**Answer:** Ada Lovelace**", "Ada Lovelace"),
        ("The answer is:\nAda\n\nShe wrote it.", "Ada"),
        ("The answer is 12.\n\nIt is a number.", "12."),
        ("The answers are many.", "The answers are many."),
        ("Ada\n\nQuestion: of Italy?\nAnswer: Rome", "Ada\n\nQuestion: of Italy?\nAnswer: Rome"),
        ("The answer is: Ada\n\nThe answer is a name.", "Ada"),
    ],
)
def test_a_short_answer_is_what_stands_behind_its_mark(text, answer):
    assert read_answer(text, Question("q", "who?"), "short").answer == answer
    assert read_answer(text, Question("q", "who?"), "grounded").answer == text.strip()


def test_overlap_by_hand():
    assert overlap("abcde", "edxyz", 5) == (2, 0.4)
    assert overlap("abcde", "edxyz", 2) == (0, 0.0)
    assert overlap("ab", "abc", 5) == (2, pytest.approx(2 / 3))
    a = {"1": "abcde", "2": "abcde", "3": None, "4": "abcde", "5": "", "6": "abcde", "7": ""}
    b = {"1": "vwxyz", "2": "abxyz", "3": "abcde", "4": "abcde", "5": "", "6": "", "7": None}
    shift = retrieval_shift(a, b, 5)
    assert (shift.n, shift.left_out, shift.zero_overlap) == (3, 2, pytest.approx(1 / 3))
    assert shift.empty == 2, "a method that ranked no document has no overlap, not one of zero"
    assert (shift.mean_overlap, shift.mean_shared) == (pytest.approx(1.4 / 3), pytest.approx(7 / 3))
    assert retrieval_shift(a, b, 5, ["1", "3"]).zero_overlap == 1
    none = retrieval_shift(a, b, 5, [])
    assert (none.n, none.zero_overlap, none.mean_overlap) == (0, None, None), "no question is not every question"
