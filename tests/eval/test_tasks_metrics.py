"""Metrics of answers: by hand, by the definition of SQuAD, equal with the usual packages."""

import re
import string
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from querylect.eval.tasks.metrics import score_text, tokens

WORDS = st.lists(st.sampled_from(["the", "cat", "sat", "on", "a", "Mat.", "dogs", ""]), max_size=8).map(" ".join)


def squad(answer, right):
    """EM and F1 as in the evaluation script of SQuAD 1.1."""

    def words(text):
        text = "".join(character for character in text.lower() if character not in set(string.punctuation))
        return re.sub(r"\b(a|an|the)\b", " ", text).split()

    given_words, expected = words(answer), words(right)
    same = sum((Counter(given_words) & Counter(expected)).values())
    precision, recall = same / len(given_words) if given_words else 0, same / len(expected)
    return float(given_words == expected), 2 * precision * recall / (precision + recall) if same else 0.0


@given(WORDS, st.lists(WORDS.map("cat {}".format), min_size=1, max_size=3))
def test_em_and_f1_are_those_of_squad(answer, right):
    scores = score_text(answer, right, ["em", "f1"])
    assert scores["em"] == max(squad(answer, one)[0] for one in right)
    assert scores["f1"] == pytest.approx(max(squad(answer, one)[1] for one in right))


@pytest.mark.parametrize("right", ["A", "The The", "+", "a", "The"])
def test_an_answer_without_words_is_never_right(right):
    """SQuAD's form of both is empty, and so would be equal."""
    names = ["em", "f1", "precision", "recall", "cover_em"]
    for answer in ("...", "", "an", "!", "?"):
        assert set(score_text(answer, [right], names).values()) == {0.0}
    assert set(score_text(f" {right.lower()}", [right], names).values()) == {1.0}


@pytest.mark.parametrize(
    ("answer", "right", "expected"),
    [
        ("The answer is Paris, France.", ["paris"], 1),
        ("in 2018", ["20", "1", "8"], 0),
        ("parish", ["paris"], 0),
        ("It was Marie  Curie", ["Pierre Curie", "the Marie Curie"], 1),
    ],
)
def test_cover_em_looks_for_whole_words_in_their_order(answer, right, expected):
    assert score_text(answer, right, ["cover_em"]) == {"cover_em": expected}


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
